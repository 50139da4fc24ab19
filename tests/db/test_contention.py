"""Many at one database: nobody is told that it is locked, and no trial is given out twice."""

from dataclasses import replace

import pytest
from databases import postgresql_database

from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow

ROW = StudyRow("busy", {"epochs": 3}, "loss", "minimize", 10**6, None, 0)

WORKER = """
url, seconds, key = words[0], float(words[1]), words[2] * 32
repository, me = Repository(Database.open(url, create=False)), WorkerIdentity.here()
repository.join("busy", me, key=key)
ready()
until = time.time() + seconds
done = 0
while time.time() < until:
    repository.release_lost("busy", observer=key)
    claim = repository.claim("busy", me, lambda number: number, worker_key=key)
    repository.record_parameter(claim.token, "x", FloatRange(0, 1), 0.5)
    for epoch in range(3):
        repository.record_epochs(claim.token, [EpochRecord(epoch, {"loss": 1.0})], {epoch: 1.0})
        path = f"{claim.number}/{epoch}"
        repository.record_checkpoint(claim.token, CheckpointRecord(epoch, epoch, "ab", 1, path))
        repository.renew([claim.token], 60, worker_key=key)
        time.sleep(0.02)  # it trains
    repository.finish(claim.token, Ending("complete", value=1.0))
    done += 1
said = str(done)
"""

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
repository, me = Repository(Database.open(words[0], create=False)), WorkerIdentity.here()
ready()
won = []
while (claim := repository.claim("busy", me, lambda number: number)) is not None:
    if isinstance(claim, Claim):
        won.append(claim.number)
        time.sleep(0.002)  # it trains
        repository.finish(claim.token, Ending("complete", value=1.0))
said = " ".join(map(str, won))
"""


def test_several_processes_that_create_one_database_at_once_all_succeed(processes, tmp_path):
    path = tmp_path / "runs" / "sweeper.db"
    processes.run([(CREATOR, f"sqlite:///{path}", path)] * 3, 60)
    with Database.open(f"sqlite:///{path}", create=False) as database:
        for table in ("sweeper_alembic_version", "alembic_version"):
            query = f"SELECT count(*) FROM {table}"
            assert database.read(lambda c, q=query: c.exec_driver_sql(q).scalar()) == 1


@pytest.mark.parametrize(
    "seconds", [pytest.param(1, marks=pytest.mark.whole), pytest.param(120, marks=pytest.mark.soak)]
)
def test_four_workers_and_two_readers_share_a_sqlite_file(processes, tmp_path, seconds):
    url = f"sqlite:///{tmp_path / 'sweeper.db'}"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        repository.create_or_open(ROW)
        workers = [(WORKER, url, seconds, letter) for letter in "abcd"]
        readers = [(READER, url, seconds) for _ in range(2)]
        said = processes.run([*workers, *readers], seconds + 60)
        counts = [int(out) for out in said]
        status = repository.status("busy")
        assert status.complete == sum(counts[:4])
        assert status.running == status.interrupted == 0
        assert min(counts) > 0


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
        *said, read = processes.run([(RACER, url), (RACER, url), (READER, url, 1)], 120)
        won = [[int(number) for number in out.split()] for out in said]
        assert sorted(won[0] + won[1]) == list(range(rounds))
        assert {len(trial.attempts) for trial in repository.trials("busy")} == {1}
        assert min(map(len, won)) > 10, "they did not race"
        assert int(read) > 0, "Optuna's tools read meanwhile"
