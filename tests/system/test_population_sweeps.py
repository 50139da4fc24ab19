"""A population of real trials is the same tree wherever it is trained, and however it is killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import leaving
import pytest
from study_files import StudyText
from sweeps import (
    Ended,
    RunningCommand,
    database_url,
    differing,
    results_of,
    sweep,
    trials_in,
)

from sweeper.records.results import TrialRecord

POPULATION_STUDY = StudyText(
    name="population",
    head="from sweeper import Population, Scale",
    arguments="""objective="val_loss", epochs=6, trials=6, concurrency=2, sampler="random",
    checkpoint_every=Every(steps=7), audit="off",
    budget=Population(size=2, every=2, exploit=0.5, perturb={"learning_rate": Scale(0.5, 2.0)})""",
)
"""Three generations of two trials, two epochs each: the best, and the worst."""

SIZE = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the study's file, and what one worker made of it in ``one``."""
    made = tmp_path_factory.mktemp("population")
    sweep(
        POPULATION_STUDY.write(made / "population.py"), made / "one", workers=1, isolation="inline"
    )
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
    assert [t.state for t in alone] == ["complete"] * 3 * SIZE
    for generation in (alone[:SIZE], alone[SIZE : 2 * SIZE]):
        best, worst = sorted(generation, key=lambda t: t.value or 0.0)
        replaced = alone[worst.number + SIZE]
        assert replaced.parent is not None
        assert replaced.parent.number == best.number
        assert replaced.parent.digest == best.digest
        assert replaced.params["learning_rate"] != best.params["learning_rate"]
        unchanged = alone[best.number + SIZE]
        assert unchanged.parent is not None
        assert (unchanged.parent.number, unchanged.params) == (best.number, best.params)


def test_another_tree_is_noticed(alone: tuple[TrialRecord, ...]) -> None:
    """The control: a member that goes on from another one makes the comparison below fail."""
    assert is_the_same_tree(alone, alone)
    last = alone[-1]
    assert last.parent is not None
    other = replace(
        last, parent=replace(last.parent, number=(last.parent.number + 1) % SIZE + SIZE)
    )
    assert not is_the_same_tree([*alone[:-1], other], alone)
    assert not is_the_same_tree([*alone[:-1], replace(last, digest="0" * 32)], alone)


def test_a_generations_members_are_measured_and_leave_as_others_do(
    directory: Path,
    alone: tuple[TrialRecord, ...],
    tmp_path: Path,
    here: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "command", here)
    changed = next(t for t in alone[SIZE:] if t.parent is not None and t.parent.changed)
    unchanged = next(t for t in alone[2 * SIZE :] if t.parent is not None and not t.parent.changed)
    leaving.check_leaving(
        directory / "population.py", directory / "one", (changed, unchanged), tmp_path
    )


def killed_once(file: Path, runs: Path) -> tuple[TrialRecord, ...]:
    """Run two generations of the study, kill it as soon as it has branched, and run them out."""
    words = ("run", file, "--workers", 2, "--trials", 2 * SIZE, "--runs-dir", runs)
    with RunningCommand(*words, cwd=runs) as run:
        assert run.wait_for(f"trial {SIZE} ", "attempt 1"), run.err
        run.kill_group()
    unfinished = [t for t in trials_in(runs, "population") if t.state != "complete"]
    assert any(trial.parent is not None for trial in unfinished)
    return sweep(file, runs, trials=2 * SIZE).trials


def test_one_that_is_killed_where_it_branches_is_the_same_tree(
    directory: Path, alone: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    found = killed_once(directory / "population.py", tmp_path)
    assert is_the_same_tree(found, alone[: 2 * SIZE])


def test_a_winners_schedule_gives_its_digest(
    directory: Path, alone: tuple[TrialRecord, ...], here: Callable[..., Ended]
) -> None:
    runs = directory / "one"
    winner = min(alone[2 * SIZE :], key=lambda t: t.value or 0.0)
    flags = ("--storage", database_url(runs), "--runs-dir", runs)
    verified = here("verify", "population", "--trial", winner.number, *flags, cwd=directory)
    assert verified.code == 0, verified.out + verified.err
    assert f"trial {winner.number} holds: final digest, value, 6 epochs" in verified.out
    # Whether or not the winner has a changed one before it.
    replaced = next(t for t in alone[SIZE:] if t.parent is not None and t.parent.changed)
    verified = here("verify", "population", "--trial", replaced.number, *flags, cwd=directory)
    assert verified.code == 0, verified.out + verified.err
    assert f"trial {replaced.number} holds: final digest" in verified.out


def test_the_best_is_shown_with_its_schedule(
    directory: Path, alone: tuple[TrialRecord, ...], here: Callable[..., Ended]
) -> None:
    storage = ("--storage", database_url(directory / "one"))
    best = json.loads(here("best", "population", *storage, "--json", cwd=directory).out)
    first, *later = best["schedule"]
    assert (first["from_epoch"], first["to_epoch"]) == (0, 2)
    assert [(s["from_epoch"], s["to_epoch"]) for s in later] == [
        (n, n + 2) for n in range(2, len(alone[best["number"]].epochs), 2)
    ]
    assert best["schedule"][-1]["trial"] == best["number"]
    assert best["schedule"][-1]["params"] == best["params"]
