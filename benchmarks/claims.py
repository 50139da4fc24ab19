"""What the database costs a trial: alone and with 10,000 trials there, and for 200 workers at once.

Usage: ``python benchmarks/claims.py [sqlite] [postgresql]``; both by default. The second needs
``SWEEPER_TEST_POSTGRES``, a server's URL, and makes and drops a database of its own there. No
TensorFlow: each "trial" writes what a real one of one epoch has written, and then sleeps, or not.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from ratios import Ratio

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.maintenance import copied_tables
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.declarations.space import FloatRange
from sweeper.records.results import CheckpointRecord, EpochRecord

TRIALS = 1000
THERE = 10_000
WORKERS, PROCESSES = 200, 4
MEAN_SECONDS = 5.0
RATE = FloatRange(1e-5, 1.0, log=True)


def study(name: str, target: int, window: int | None = None) -> StudyRow:
    return StudyRow(name, {"epochs": 1}, "loss", "minimize", target, window, 0)


def train(repository: Repository, claim: Claim) -> None:
    """Write what a trial of one parameter and one epoch has written, but its end."""
    token = claim.token
    repository.record_process(token, 1, "fork", None)
    repository.record_fingerprint(token, {"tensorflow": "2.21", "keras": "3.15"})
    repository.record_parameter(token, "rate", RATE, 0.01)
    repository.record_process(token, 1, "fork", 0)
    repository.record_epochs(token, [EpochRecord(0, {"loss": 0.5, "accuracy": 0.9})], {0: 0.5})
    path = f"runs/trial-{claim.number}/attempt-01/checkpoints/step-56"
    repository.record_checkpoint(token, CheckpointRecord(56, 1, "ab" * 16, 4096, path))


def run_trials(repository: Repository, name: str, count: int) -> float:
    """Run ``count`` trials that do nothing; the seconds that each took of its worker's time."""
    me = WorkerIdentity.here()
    began = time.perf_counter()
    for _ in range(count):
        repository.release_lost(name)
        claim = repository.claim(name, me, lambda number: number)
        assert isinstance(claim, Claim), claim
        train(repository, claim)
        repository.finish(claim.token, Ending("complete", value=0.5, digest="ab" * 16))
    return (time.perf_counter() - began) / count


def multiply(database: Database, name: str, times: int) -> None:
    """Copy the rows of the study's only trial ``times`` times over, in every table they are in."""
    tables = {table.name: table for table in copied_tables()}
    keys = {"trials": "trial_id", "sweeper_trials": "id"}
    of_trial = {
        "trials": ("trial_params", "trial_values", "trial_intermediate_values"),
        "sweeper_trials": ("sweeper_attempts", "sweeper_epochs", "sweeper_checkpoints"),
    }

    def work(connection: sa.Connection) -> None:
        chosen = connection.execute(
            sa.select(tables["sweeper_studies"]).where(tables["sweeper_studies"].c.name == name)
        ).one()
        first = {}
        for table, study_id in (
            ("trials", chosen.optuna_study_id),
            ("sweeper_trials", chosen.id),
        ):
            query = sa.select(tables[table]).where(tables[table].c.study_id == study_id)
            first[table] = connection.execute(query).one()
        largest = {
            table: connection.scalar(sa.select(sa.func.max(tables[table].c[key])))
            for table, key in keys.items()
        }
        for table, key in keys.items():
            rows = []
            for n in range(1, times + 1):
                row = dict(first[table]._mapping)
                row |= {key: largest[table] + n, "number": n}
                if table == "sweeper_trials":
                    row["optuna_trial_id"] = largest["trials"] + n
                rows.append(row)
            connection.execute(sa.insert(tables[table]), rows)
            for part in of_trial[table]:
                column = tables[part].c.trial_id
                query = sa.select(tables[part]).where(column == getattr(first[table], key))
                pattern = dict(connection.execute(query).one()._mapping)
                own = {c.name for c in tables[part].primary_key} - {"trial_id", "epoch"}
                rows = []
                for n in range(1, times + 1):
                    row = {k: v for k, v in pattern.items() if k not in own}
                    row["trial_id"] = largest[table] + n
                    if "claim_key" in row:
                        row["claim_key"] = uuid.uuid4().hex
                    rows.append(row)
                connection.execute(sa.insert(tables[part]), rows)

    database.write(work)


def on_sqlite() -> bool:
    few: list[float] = []
    many: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(3):
            url = f"sqlite:///{directory}/{uuid.uuid4().hex}.db"
            with Database.open(url, create=True) as database:
                repository = Repository(database)
                repository.create_or_open(study("few", TRIALS))
                repository.create_or_open(study("many", THERE + TRIALS))
                run_trials(repository, "many", 1)
                multiply(database, "many", THERE - 1)
                # In turn, so that a machine that slows down slows both.
                for _ in range(4):
                    few.append(1000 * run_trials(repository, "few", TRIALS // 12))
                    many.append(1000 * run_trials(repository, "many", TRIALS // 12))
    ratio = Ratio(
        f"database time a trial on SQLite, with {THERE:,} trials there against a new study",
        many,
        few,
        "ms",
        1.3,
        at_most=True,
    )
    print(ratio.line())
    return ratio.holds


@contextmanager
def a_database(server: str):
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    name = f"sweeper_claims_{uuid.uuid4().hex[:8]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        url = engine.url.set(database=name).render_as_string(hide_password=False)
        Database.open(url, create=True).close()
        yield url
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        engine.dispose()


def worker_threads(url: str, name: str, mean: float, threads: int, seed: int) -> None:
    """One process's share of the workers; prints each one's claims and seconds on a line."""
    repository = Repository(Database.open(url, create=False))
    me = WorkerIdentity.here()
    lines: list[str] = []

    def work(index: int) -> None:
        chance = random.Random(seed * 1000 + index)
        key = uuid.uuid4().hex
        repository.join(name, me, key=key)
        numbers, asked, spent = [], [], 0.0

        def timed(call: Callable[[], object]) -> object:
            nonlocal spent
            began = time.perf_counter()
            result = call()
            spent += time.perf_counter() - began
            return result

        began = time.perf_counter()
        while True:
            before = spent
            claim = timed(lambda: repository.claim(name, me, lambda number: number, worker_key=key))
            if not isinstance(claim, Claim):
                break
            asked.append(spent - before)
            numbers.append(claim.number)
            if mean:
                timed(partial(train, repository, claim))
                # Log-normal with this mean.
                time.sleep(chance.lognormvariate(math.log(mean) - 0.125, 0.5))
                timed(partial(repository.renew, [claim.token], 60.0, worker_key=key))
            timed(partial(repository.finish, claim.token, Ending("complete", value=0.5)))
        total = time.perf_counter() - began
        longest = max(asked, default=0.0)
        lines.append(f"{total} {spent} {longest} {' '.join(map(str, numbers))}")

    pool = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    print("\n".join(lines), flush=True)
    repository.database.close()


def simulate(url: str, name: str, *, workers: int, mean: float, trials: int) -> bool:
    with Database.open(url, create=False) as database:
        Repository(database).create_or_open(study(name, trials))
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "worker",
                url,
                name,
                str(mean),
                str(workers // PROCESSES),
                str(i),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    rows = []
    for process in processes:
        output, _ = process.communicate(timeout=170)
        assert process.returncode == 0
        rows += [line.split() for line in output.splitlines() if line]
    elapsed = time.perf_counter() - began
    claimed = Counter(int(number) for row in rows for number in row[3:])
    doubled = sum(times - 1 for times in claimed.values())
    each = [len(row) - 3 for row in rows]
    waits = [float(row[2]) for row in rows]
    share = sum(float(row[1]) for row in rows) / sum(float(row[0]) for row in rows)
    length = f"{mean:g} s long on average" if mean else "of no length"
    print(
        f"{len(rows)} workers on PostgreSQL, {trials:,} trials {length}\n"
        f"    {trials / elapsed:,.0f} claims a second in {elapsed:.1f} s; {doubled} doubled, "
        f"{trials - len(claimed)} missing; {min(each)} to {max(each)} trials a worker "
        f"(median {statistics.median(each):g}); longest wait for a claim "
        f"{1000 * statistics.median(waits):.0f} ms in the median worker, "
        f"{1000 * max(waits):.0f} ms in the worst; the database has {100 * share:.1f}% of the time"
    )
    return doubled == 0 and len(claimed) == trials and min(each) > 0


def on_postgresql(server: str) -> bool:
    with a_database(server) as url:
        steady = simulate(url, "steady", workers=WORKERS, mean=MEAN_SECONDS, trials=5 * WORKERS)
        rush = simulate(url, "rush", workers=8, mean=0.0, trials=TRIALS)
    return steady and rush


def main() -> int:
    if sys.argv[1:2] == ["worker"]:
        url, name, mean, threads, seed = sys.argv[2:]
        worker_threads(url, name, float(mean), int(threads), int(seed))
        return 0
    wanted = sys.argv[1:] or ["sqlite", "postgresql"]
    held = True
    if "sqlite" in wanted:
        held = on_sqlite() and held
    if "postgresql" in wanted:
        server = os.environ.get("SWEEPER_TEST_POSTGRES")
        if not server:
            print("SWEEPER_TEST_POSTGRES is unset, so PostgreSQL is left out")
            return 1
        held = on_postgresql(server) and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
