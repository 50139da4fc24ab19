"""A population is the same tree of trials, whoever trains it and whatever dies on the way."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import opened_database
from fake_workers import FakeWorker, WorkerOptions, create, faults_of, results_of, settings_of

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.records.results import TrialRecord

BUDGET = {
    "kind": "population",
    "size": 4,
    "every": 2,
    "exploit": 0.25,
    "perturb": {"x": [0.8, 1.25]},
}


def population(tmp_path: Path, name: str) -> WorkerOptions:
    """A study of three generations of four fake trials."""
    url = f"sqlite:///{tmp_path / name}.db"
    settings = replace(settings_of("tree", trials=12, epochs=6), budget=BUDGET, concurrency=4)
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
    assert [t.state for t in whole] == ["complete"] * 12
    assert [len(t.epochs) for t in whole] == [2] * 4 + [4] * 4 + [6] * 4
    trials = ran(population(tmp_path, "two"), workers=2, kills=kills)
    assert tree_of(trials) == tree_of(whole)
    assert faults_of(trials, results_of(whole)) == []
    replaced = [t for t in whole if t.parent is not None and t.parent.changed]
    assert len(replaced) == 2, "one of each generation is replaced"
    assert all(t.parent.number == t.number - 4 for t in whole if t.parent and not t.parent.changed)
