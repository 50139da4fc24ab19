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
done, longest = 0, 0.0
while time.time() < until:
    began = time.time()
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
    done, longest = done + 1, max(longest, time.time() - began)
said = f"{done} {longest}"
"""

READER = """
url, seconds = words[0], float(words[1])
database = Database.open(url, create=False)
repository, storage = Repository(database), database.optuna_storage()
study = optuna.load_study(study_name="busy", storage=storage)
ready()
until = time.time() + seconds
done, longest = 0, 0.0
while time.time() < until:
    began = time.time()
    repository.statuses(), repository.trials("busy")[-50:], repository.workers("busy")
    study.get_trials(deepcopy=False), storage.get_all_studies()
    done, longest = done + 1, max(longest, time.time() - began)
    time.sleep(0.1)
said = f"{done} {longest}"
"""

RACER = """
repository, me = Repository(Database.open(words[0], create=False)), WorkerIdentity.here()
ready()
won = []
while (claim := repository.claim("busy", me, lambda number: number)) is not None:
    if isinstance(claim, Claim):
        won.append(claim.number)
        repository.finish(claim.token, Ending("complete", value=1.0))
said = " ".join(map(str, won))
"""


def steady_load(processes, path, seconds):
    url = f"sqlite:///{path / 'sweeper.db'}"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        repository.create_or_open(ROW)
        workers = [(WORKER, url, seconds, letter) for letter in "abcd"]
        readers = [(READER, url, seconds) for _ in range(2)]
        said = processes.run([*workers, *readers], seconds + 60)
        counts = [int(out.split()[0]) for out in said]
        status = repository.status("busy")
        assert status.complete == sum(counts[:4])
        assert status.running == status.interrupted == 0
        assert min(counts) > 0


@pytest.mark.whole
def test_four_workers_and_two_readers_share_a_sqlite_file(processes, tmp_path):
    steady_load(processes, tmp_path, 1)


@pytest.mark.soak
def test_four_workers_and_two_readers_share_a_sqlite_file_for_two_minutes(processes, tmp_path):
    steady_load(processes, tmp_path, 120)


def race(processes, rounds):
    """With a window of 1 there is one trial to be had at a time, and both ask for it."""
    with (
        postgresql_database() as server,
        Database.open(server.url, create=False) as database,
    ):
        repository = Repository(database)
        repository.create_or_open(replace(ROW, target=rounds, window=1))
        reader = (READER, server.url, 1)
        *said, read = processes.run([*[(RACER, server.url)] * 2, reader], 120)
        won = [[int(number) for number in out.split()] for out in said]
        assert sorted(won[0] + won[1]) == list(range(rounds))
        assert {len(trial.attempts) for trial in repository.trials("busy")} == {1}
        assert min(map(len, won)) > 10, "they did not race"
        assert int(read.split()[0]) > 0, "Optuna's tools read meanwhile"


def test_in_a_hundred_races_of_two_workers_for_one_trial_each_has_one_winner(processes):
    race(processes, 100)


@pytest.mark.chaos
def test_in_a_thousand_races_of_two_workers_for_one_trial_each_has_one_winner(processes):
    race(processes, 1000)
