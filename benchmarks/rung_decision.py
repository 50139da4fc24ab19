"""How long it takes to decide a rung of 1,000 paused trials, against pausing one of them.

Usage: ``python benchmarks/rung_decision.py [TRIALS]``; 1,000 by default, on SQLite, and on PostgreSQL where
``SWEEPER_TEST_POSTGRES`` is a server's URL (a database of its own is made there and dropped).

Each trial is claimed, reports an epoch and pauses, as a worker has it; nothing is trained. The last of them
to pause finds the rung full, and decides it in the same transaction. What that one takes is set against
what pausing takes in the median of the others.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from claims import a_database

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.db.rungs import DecidedRung
from sweeper.declarations.budgets import Halving, describe_budget
from sweeper.declarations.searching import Objective
from sweeper.records.results import EpochRecord

BOUND = 1.0
"""Seconds."""

EPOCHS = 1000
"""At a factor of 1,000: one bracket, whose first rung has a thousand trials."""


def study(trials: int) -> StudyRow:
    """One round of so many trials, with rungs after 1, 10 and 100 epochs."""
    budget = describe_budget(
        Halving(factor=10), epochs=EPOCHS, pruner=None, objectives=(Objective("loss", "minimize"),)
    )
    definition = {"epochs": EPOCHS, "concurrency": 8, "budget": budget}
    return StudyRow("rung", definition, "loss", "minimize", trials, None, 0)


def decide(url: str, trials: int, *, create: bool) -> bool:
    """Pause all trials, and tell what the last pause took; whether that is within the bound."""
    took = []
    with Database.open(url, create=create) as database:
        repository = Repository(database)
        repository.create_or_open(study(trials))
        me = WorkerIdentity.here()
        decided: tuple[DecidedRung, ...] = ()
        for number in range(trials):
            claim = repository.claim("rung", me, lambda n: n)
            assert isinstance(claim, Claim), claim
            value = (number * 37 % trials) / trials
            repository.record_epochs(claim.token, [EpochRecord(0, {"loss": value})], {0: value})
            ending = Ending("paused", 1, value, f"{number:032}", rung=1)
            began = time.perf_counter()
            decided = repository.finish(claim.token, ending)
            took.append(time.perf_counter() - began)
        (rung,) = decided
        assert len(rung.promoted) + len(rung.ended) == trials
    *others, last = took
    one = statistics.median(others)
    print(
        f"a rung of {trials} trials is decided in {last:.3f} s ({url.partition(':')[0]}); pausing one "
        f"takes {one * 1000:.1f} ms, ratio {last / one:.0f}; wanted < {BOUND:g} s: "
        f"{'yes' if last < BOUND else 'NO'}"
    )
    return last < BOUND


def main() -> int:
    """Measure on each database that there is; 1 where one is too slow."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as directory:
        held = decide(f"sqlite:///{Path(directory) / 'sweeper.db'}", trials, create=True)
    server = os.environ.get("SWEEPER_TEST_POSTGRES")
    if server:
        with a_database(server) as url:
            held = decide(url, trials, create=False) and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
