"""The ways in which a study's sweep has to be the same one: killed, on PostgreSQL, on a cluster."""

from __future__ import annotations

import random
import time
from pathlib import Path

from databases import postgresql_database
from sweeps import RunningCommand, command, trials_in

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.records.results import TrialRecord


def killed(file: Path, study: str, runs: Path, times: int) -> tuple[TrialRecord, ...]:
    """Run the study on two workers, kill it with all its processes up to so often, and run it out.

    The kills fall up to 1.5 s after a trial's first line, at moments drawn from ``times``; at least
    one falls before the study's end.
    """
    draw = random.Random(times)
    done = 0
    while done < times:
        with RunningCommand("run", file, "--workers", 2, "--runs-dir", runs, cwd=runs) as run:
            run.wait_for("trial")
            time.sleep(draw.uniform(0.0, 1.5))
            if run.process.poll() is not None:
                break
            run.kill_group()
        done += 1
    assert done, "the study was over before it could be killed"
    last = command("run", file, "--workers", 2, "--runs-dir", runs, cwd=runs)
    assert last.code == 0, last.err
    return trials_in(runs, study)


def on_postgresql(file: Path, study: str, runs: Path) -> tuple[TrialRecord, ...]:
    """Run the study on PostgreSQL by two commands side by side."""
    with postgresql_database() as server:
        flags = ("--storage", server.url, "--runs-dir", runs)
        with RunningCommand("run", file, "--workers", 1, *flags, cwd=runs) as first:
            first.wait_for(f"study {study}")
            words = ("worker", study, "--slots", 1, *flags)
            with RunningCommand(*words, cwd=runs) as second:
                assert second.end() == 0, second.err
            assert first.end() == 0, first.err
        with Database.open(server.url, create=False) as database:
            return Repository(database).trials(study)


def on_cluster(file: Path, study: str, runs: Path, engine: str) -> tuple[TrialRecord, ...]:
    """Run the study on two workers of a cluster on this machine; ``engine`` is "dask" or "ray"."""
    words = ("run", file, "--engine", engine, "--workers", 2, "--runs-dir", runs)
    ended = command(*words, cwd=runs)
    assert ended.code == 0, ended.err
    return trials_in(runs, study)
