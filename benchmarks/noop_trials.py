"""What sweeper costs a trial: a thousand that do nothing, and a thousand more behind ten thousand.

Usage: ``python benchmarks/noop_trials.py [TRIALS [BEFORE]]``. Two workers (slots of one run), fresh
processes forked from the fork server, SQLite. Worker time a trial is the time from the first claim
to the last result, times two workers, divided by the trials: start-up and TensorFlow's import are
not in it. See `noop_study` for what the trials are.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ratios import Ratio

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, WorkerIdentity
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.run import run_sweep

STUDY = Path(__file__).with_name("noop_study.py")
WORKERS = 2
BOUND = 0.060
GROWTH = 1.3


def sweep(runs: Path, before: int, total: int) -> float:
    """Run trials ``before`` to ``total``; seconds of worker time for each."""
    results = run_sweep(
        RunRequest(
            WorkerOptions(WORKERS, f"sqlite:///{runs / 'sweeper.db'}", runs, isolation="fork"),
            lambda _event: None,
            source=str(STUDY),
            trials=total,
        )
    )
    ran = [t for t in results.trials if t.number >= before]
    assert len(ran) == total - before
    assert {t.state for t in ran} == {"complete"}
    begun = min(t.attempts[0].started_at for t in ran)
    ended = max(t.attempts[-1].ended_at or begun for t in ran)
    return (ended - begun).total_seconds() * WORKERS / len(ran)


def fill(runs: Path, trials: int) -> None:
    """Put finished trials into the study, without running anything."""
    with Database.open(f"sqlite:///{runs / 'sweeper.db'}", create=False) as database:
        repository = Repository(database)
        repository.set_target("nothing", trials)
        worker = WorkerIdentity.here()
        while isinstance(claim := repository.claim("nothing", worker, lambda n: n), Claim):
            repository.finish(
                claim.token, Ending("complete", end_step=0, value=0.0, digest="0" * 32)
            )


def study_with(runs: Path, trials: int) -> Path:
    """A runs directory whose study has so many trials, none of them from a process."""
    runs.mkdir(parents=True)
    sweep(runs, 0, 1)
    fill(runs, trials)
    return runs


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    before = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        few = study_with(Path(directory) / "few", 1)
        many = study_with(Path(directory) / "many", before)
        print(f"(filled in {time.monotonic() - began:.0f} s)")
        first = sweep(few, 1, 1 + trials)
        second = sweep(many, before, before + trials)
    print(
        f"{trials} trials that do nothing, SQLite, {WORKERS} workers\n"
        f"    {1000 * first:.1f} ms of worker time a trial; wanted < {1000 * BOUND:.0f} ms: "
        f"{'yes' if first < BOUND else 'NO'}"
    )
    print(Ratio(f"with {before} trials there before", [second], [first], "s", GROWTH, True).line())


if __name__ == "__main__":
    main()
