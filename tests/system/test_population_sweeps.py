"""A population of real trials is the same tree wherever it is trained, and however it is killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from leaving import check_leaving
from same_sweeps import killed, on_cluster, on_postgresql
from study_files import StudyText
from sweeps import command, database_url, differing, results_of, sweep, trials_in

from sweeper.results import TrialRecord

POPULATION_STUDY = StudyText(
    name="population",
    head="from sweeper import Population, Scale",
    arguments="""objective="val_loss", epochs=6, trials=12, concurrency=4, sampler="random",
    checkpoint_every=Every(steps=7),
    budget=Population(size=4, every=2, perturb={"learning_rate": Scale(0.5, 2.0)})""",
)
"""Three generations of four trials, two epochs each."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the study's file, and what one worker made of it in ``one``."""
    made = tmp_path_factory.mktemp("population")
    sweep(POPULATION_STUDY.write(made / "population.py"), made / "one", workers=1)
    return made


@pytest.fixture(scope="module")
def alone(directory: Path) -> tuple[TrialRecord, ...]:
    return trials_in(directory / "one", "population")


def tree_of(trials: Sequence[TrialRecord]) -> dict[int, Any]:
    """From which checkpoint each trial goes on, and with what changed."""
    return {
        t.number: t.parent and (t.parent.number, t.parent.step, t.parent.digest, t.parent.changed)
        for t in trials
    }


def is_the_same_tree(found: Sequence[TrialRecord], alone: Sequence[TrialRecord]) -> bool:
    return (
        differing(results_of(found), results_of(alone)) == []
        and tree_of(found) == tree_of(alone)
        and all(t.digest for t in found)
    )


def test_the_worst_of_each_generation_goes_on_from_its_best(
    alone: tuple[TrialRecord, ...],
) -> None:
    assert [t.state for t in alone] == ["complete"] * 12
    for generation in (alone[:4], alone[4:8]):
        best, *_, worst = sorted(generation, key=lambda t: t.value or 0.0)
        replaced = alone[worst.number + 4]
        assert replaced.parent is not None
        assert replaced.parent.number == best.number
        assert replaced.parent.digest == best.digest
        assert replaced.params["learning_rate"] != best.params["learning_rate"]
        unchanged = alone[best.number + 4]
        assert unchanged.parent is not None
        assert (unchanged.parent.number, unchanged.params) == (best.number, best.params)


def test_another_tree_is_noticed(alone: tuple[TrialRecord, ...]) -> None:
    """The control: a member that goes on from another one makes the comparison below fail."""
    assert is_the_same_tree(alone, alone)
    last = alone[-1]
    assert last.parent is not None
    other = replace(last, parent=replace(last.parent, number=(last.parent.number + 1) % 4 + 4))
    assert not is_the_same_tree([*alone[:-1], other], alone)
    assert not is_the_same_tree([*alone[:-1], replace(last, digest="0" * 32)], alone)


def test_a_generations_members_are_measured_and_leave_as_others_do(
    directory: Path, alone: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    changed = next(t for t in alone[4:] if t.parent is not None and t.parent.changed)
    unchanged = next(t for t in alone[8:] if t.parent is not None and not t.parent.changed)
    check_leaving(directory / "population.py", directory / "one", (changed, unchanged), tmp_path)


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.whole)])
def test_one_that_is_killed_is_the_same_tree_and_its_winners_schedule_gives_its_digest(
    directory: Path, alone: tuple[TrialRecord, ...], tmp_path: Path, times: int
) -> None:
    file = directory / "population.py"
    found = killed(file, "population", tmp_path, times)
    assert is_the_same_tree(found, alone)
    winner = min(found[8:], key=lambda t: t.value or 0.0)
    flags = ("--storage", database_url(tmp_path), "--runs-dir", tmp_path)
    verified = command("verify", "population", "--trial", winner.number, *flags, cwd=directory)
    assert verified.code == 0, verified.out + verified.err
    assert f"trial {winner.number} holds: final digest, value, 6 epochs" in verified.out


@pytest.mark.whole
def test_two_workers_on_postgresql_give_the_same_tree(
    directory: Path, alone: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    found = on_postgresql(directory / "population.py", "population", tmp_path)
    assert is_the_same_tree(found, alone)


@pytest.mark.whole
@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_cluster_gives_the_same_tree(
    engine: str, directory: Path, alone: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    found = on_cluster(directory / "population.py", "population", tmp_path, engine)
    assert is_the_same_tree(found, alone)
