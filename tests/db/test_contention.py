"""Many at one database: nobody is told that it is locked, and no trial is given out twice."""

from dataclasses import replace

import pytest
from databases import postgresql_database

from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow

ROW = StudyRow("busy", {"epochs": 3}, "loss", "minimize", 10**6, None, 0)

READER = """
url, seconds = words[0], float(words[1])
database = Database.open(url, create=False)
repository, storage = Repository(database), database.optuna_storage()
study = optuna.load_study(study_name="busy", storage=storage)
ready()
until = time.time() + seconds
done = 0
while time.time() < until:
    repository.statuses(), repository.trials("busy")[-50:], repository.workers("busy")
    study.get_trials(deepcopy=False), storage.get_all_studies()
    done += 1
    time.sleep(0.1)
said = str(done)
"""

CREATOR = """
assert not os.path.exists(words[1])
ready()
Database.open(words[0], create=True).close()
said = ""
"""

RACER = """
import random

url, key = words[0], words[1] * 32
repository, me = Repository(Database.open(url, create=False)), WorkerIdentity.here()
repository.join("busy", me, key=key)
ready()
won = []
while (claim := repository.claim("busy", me, lambda number: number, worker_key=key)) is not None:
    repository.release_lost("busy", observer=key)
    if isinstance(claim, Claim):
        won.append(claim.number)
        repository.record_parameter(claim.token, "x", FloatRange(0, 1), 0.5)
        repository.record_epochs(claim.token, [EpochRecord(0, {"loss": 1.0})], {0: 1.0})
        kept = CheckpointRecord(1, 1, "ab", 1, str(claim.number))
        repository.record_checkpoint(claim.token, kept)
        repository.renew([claim.token], 60, worker_key=key)
        repository.finish(claim.token, Ending("complete", value=1.0))
        time.sleep(random.uniform(0, 0.005))  # or SQLite gives the lock to the same one again
said = " ".join(map(str, won))
"""


def test_several_processes_that_create_one_database_at_once_all_succeed(processes, tmp_path):
    path = tmp_path / "runs" / "sweeper.db"
    processes.run([(CREATOR, f"sqlite:///{path}", path)] * 3, 60)
    with Database.open(f"sqlite:///{path}", create=False) as database:
        for table in ("sweeper_alembic_version", "alembic_version"):
            query = f"SELECT count(*) FROM {table}"
            assert database.read(lambda c, q=query: c.exec_driver_sql(q).scalar()) == 1


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, file):
    """Give an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{file}"
    else:
        with postgresql_database() as server:
            yield server.url


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_in_many_races_of_two_workers_for_one_trial_each_has_one_winner(processes, url, rounds):
    """With a window of 1 there is one trial to be had at a time, and both ask for it."""
    with Database.open(url, create=False) as database:
        repository = Repository(database)
        repository.create_or_open(replace(ROW, target=rounds, window=1))
        racers = [(RACER, url, letter) for letter in "ab"]
        *outputs, read = processes.run([*racers, (READER, url, 1)], 120)
        won = [[int(number) for number in out.split()] for out in outputs]
        assert sorted(won[0] + won[1]) == list(range(rounds))
        assert {len(trial.attempts) for trial in repository.trials("busy")} == {1}
        # SQLite lets nobody queue for its lock.
        fewest = 10 if url.startswith("postgresql") else 0
        assert min(map(len, won)) > fewest, "they did not race"
        assert int(read) > 0, "Optuna's tools read meanwhile"
