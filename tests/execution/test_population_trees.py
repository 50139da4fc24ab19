"""A population is the same tree of trials, whoever trains it and whatever dies on the way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import opened_database
from fake_workers import FakeWorker, WorkerOptions, create, faults_of, results_of, settings_of
from study_files import StudyText
from sweeps import sweep

from sweeper.cli.main import main
from sweeper.results import TrialRecord
from sweeper.storage.database import Database
from sweeper.storage.repository import Repository

UNWATCHED = True

BUDGET = {
    "kind": "population",
    "size": 4,
    "every": 2,
    "exploit": 0.25,
    "perturb": {"x": [0.8, 1.25]},
}


def population(tmp_path: Path, name: str) -> WorkerOptions:
    """A study of four generations of four fake trials."""
    url = f"sqlite:///{tmp_path / name}.db"
    settings = replace(settings_of("tree", trials=16, epochs=8), budget=BUDGET, concurrency=4)
    with opened_database(tmp_path / f"{name}.db") as database:
        create(Repository(database), settings)
    return WorkerOptions(url, str(tmp_path / name), "tree", pace=0.01)


def ran(options: WorkerOptions, *, workers: int, kills: int = 0) -> tuple[TrialRecord, ...]:
    """The trials, trained by so many workers of which so many are killed."""
    chance = random.Random(5)
    for _ in range(kills):
        with FakeWorker(options) as worker:
            worker.wait_for("EpochFinished")
            time.sleep(chance.uniform(0, 0.15))
            worker.kill()
    running = [FakeWorker(options) for _ in range(workers)]
    try:
        assert [worker.end() for worker in running] == [0] * workers
    finally:
        for worker in running:
            worker.__exit__()
    with Database.open(options.url, create=False) as database:
        return Repository(database).trials("tree")


def tree_of(trials: Sequence[TrialRecord]) -> dict[int, Any]:
    return {t.number: (t.parent and (t.parent.number, t.parent.step), t.params) for t in trials}


# Two workers of whom three were killed before see all that two undisturbed ones do.
@pytest.mark.parametrize("kills", [3, pytest.param(0, marks=pytest.mark.whole)])
def test_a_population_is_the_same_tree_on_one_worker_and_on_two_of_whom_some_are_killed(
    tmp_path: Path, kills: int
) -> None:
    whole = ran(population(tmp_path, "one"), workers=1)
    assert [t.state for t in whole] == ["complete"] * 16
    assert [len(t.epochs) for t in whole] == [2] * 4 + [4] * 4 + [6] * 4 + [8] * 4
    trials = ran(population(tmp_path, "two"), workers=2, kills=kills)
    assert tree_of(trials) == tree_of(whole)
    assert faults_of(trials, results_of(whole)) == []
    replaced = [t for t in whole if t.parent is not None and t.parent.changed]
    assert len(replaced) == 3, "one of each generation is replaced"
    assert all(t.parent.number == t.number - 4 for t in whole if t.parent and not t.parent.changed)


STUDY = StudyText(
    head="from sweeper import Population, Scale",
    arguments='objective="val_loss", epochs=2, trials=4, concurrency=2, sampler="random", '
    'audit="off", budget=Population(size=2, every=1, exploit=0.5, '
    'perturb={"learning_rate": Scale(0.5, 2.0)})',
)


def test_the_winners_schedule_replayed_gives_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    file = STUDY.write(tmp_path / "small.py")
    trials = sweep(file, runs, workers=1, isolation="inline").trials
    assert [t.state for t in trials] == ["complete"] * 4
    replaced = next(t for t in trials[2:] if t.parent is not None and t.parent.changed)
    capsys.readouterr()
    assert main(["best", "small", "--json", "--runs-dir", str(runs)]) == 0
    best = json.loads(capsys.readouterr().out)
    first, *later = best["schedule"]
    assert (first["from_epoch"], first["to_epoch"]) == (0, 1)
    assert [(s["from_epoch"], s["to_epoch"]) for s in later] in ([], [(1, 2)])
    assert best["schedule"][-1]["trial"] == best["number"]
    assert best["schedule"][-1]["params"] == best["params"]
    words = ("verify", "small", "--workers", "1", "--trial", str(replaced.number))
    verified = main([*words, "--runs-dir", str(runs)])
    out, err = capsys.readouterr()
    assert verified == 0, out + err
    assert f"trial {replaced.number} holds: final digest" in out
