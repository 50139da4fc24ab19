"""A database that goes away under a run: what trials tell waits, in order, and nobody waits unseen."""

import shutil
import threading
import time
from pathlib import Path

import pytest
from scripted_trials import crash, finish, scripted_sweep, train_until_stopped
from waiting import until

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError, SupersededError
from sweeper.records.events import EpochFinished, Notice
from sweeper.run.worker import database_health
from sweeper.run.worker.database_health import DatabaseHealth, WriteQueue


def unavailable(*, passing=True):
    error = DatabaseUnavailableError("no answer")
    error.passing = passing
    return error


# A run whose database goes away


def test_what_is_said_meanwhile_is_written_once_in_order_and_many_epochs_at_once(
    tmp_path, monkeypatch
):
    record_epochs = Repository.record_epochs
    away = [True]
    tries = []
    writes = []

    def record(repository, token, records, values):
        tries.append(len(records))
        if away:
            raise unavailable()
        writes.append([record.epoch for record in records])
        assert values == {record.epoch: record.metrics["loss"] for record in records}
        return record_epochs(repository, token, records, values)

    def train(trial):
        trial.begin()
        for epoch in range(250):
            trial.end_epoch(epoch, loss=float(epoch))
        return trial.finish(1.0)

    monkeypatch.setattr(Repository, "record_epochs", record)
    with scripted_sweep(tmp_path, {None: train}, epochs=300) as sweep:
        with sweep.serving():
            assert until(lambda: sum(isinstance(e, EpochFinished) for e in sweep.events) == 250)
            assert until(lambda: len(tries) >= 2)
            assert not writes
            away.clear()
        assert sweep.outcomes() == ["complete"]
        assert [record.epoch for record in sweep.trials[0].epochs] == list(range(250))
        assert [epoch for epochs in writes for epoch in epochs] == list(range(250))
        assert len(writes) <= 4, "one that was on its way, and hundred at a time"
        gone, back = sweep.notices
        assert gone.startswith("the database is unreachable since")
        assert "Training continues" in gone
        assert back.startswith("the database is reachable again after")


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_file_that_is_removed_ends_the_run_with_an_error_and_costs_no_checkpoint(
    tmp_path, change
):
    def script(trial):
        (Path(trial.assignment.checkpoints[-1]) / "step-000000001").mkdir(parents=True)
        return train_until_stopped(trial)

    with scripted_sweep(tmp_path, {None: script}, trials=2) as sweep:
        with sweep.serving():
            assert until(lambda: list(tmp_path.rglob("step-000000001")))
            file = tmp_path / "scripted.db"
            if change == "replaced":
                shutil.copy(file, tmp_path / "other")
                (tmp_path / "other").replace(file)
            else:
                file.unlink()
        assert isinstance(sweep.error, DatabaseUnavailableError)
        assert f"was {change}" in str(sweep.error)
        assert "checkpoints are not affected" in str(sweep.error)
        assert list(tmp_path.rglob("step-000000001"))
        assert len(sweep.launcher.launched) == 1, "nothing more is begun"
        assert file.exists() == (change == "replaced"), "no empty file takes its place"


def test_control_a_database_that_stays_is_none_the_worse_for_being_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///relative.db", create=True) as database:
        monkeypatch.chdir("/")
        assert Repository(database).study_names() == ()


@pytest.mark.parametrize("passing", [True, False], ids=["away for a while", "gone for good"])
def test_a_database_that_goes_while_an_attempt_is_prepared_leaves_none_open(
    tmp_path, monkeypatch, *, passing
):
    trial = Repository.trial
    errors = [unavailable(passing=passing)] * 2

    def trial_once_it_is_back(repository, study, number):
        if errors:
            raise errors.pop()
        return trial(repository, study, number)

    with scripted_sweep(tmp_path, {(0, 1): crash, (0, 2): finish}) as sweep:
        monkeypatch.setattr(Repository, "trial", trial_once_it_is_back)
        sweep.serve()
        errors.clear()
        assert (sweep.error is None) == passing
        assert sweep.outcomes() == ["crashed", "complete" if passing else "interrupted"]
        assert passing == any("is reachable again" in text for text in sweep.notices)


def test_a_claim_whose_answer_is_lost_costs_no_attempt(tmp_path, monkeypatch):
    claim = Repository.claim
    errors = [unavailable()]

    def claim_and_lose_the_answer(repository, *arguments, **options):
        claimed = claim(repository, *arguments, **options)
        if errors:
            raise errors.pop()
        return claimed

    monkeypatch.setattr(Repository, "claim", claim_and_lose_the_answer)
    with scripted_sweep(tmp_path, {}, trials=2) as sweep:
        sweep.serve()
        assert not errors
        assert [sweep.outcomes(n) for n in range(2)] == [["complete"], ["complete"]]


# The queue of writes


class Writes:
    """Holds what was written; ``error`` is raised while there is one."""

    def __init__(self):
        self.error = None
        self.written = []

    def write(self, entry):
        if self.error is not None:
            raise self.error
        self.written.append(entry)


def patiently():
    """Wait on."""


@pytest.fixture
def writes():
    return Writes()


@pytest.fixture
def queue():
    write_queue = WriteQueue("test", DatabaseHealth(lambda _event: None, limit=600.0))
    yield write_queue
    write_queue.close()


def test_whoever_waits_looks_around_and_may_leave(writes, queue):
    class KilledError(Exception):
        pass

    looks = []

    def look():
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise KilledError

    writes.error = unavailable()
    for call in (lambda: writes.write("question"), lambda: None):
        looks.clear()
        with pytest.raises(KilledError):
            queue.ask(call, look)
        assert looks[-1] - looks[0] < 1


@pytest.mark.parametrize("error", [unavailable(passing=False), SupersededError("another attempt")])
def test_a_fault_that_does_not_pass_reaches_whoever_writes_and_nothing_is_written_after_it(
    writes, queue, error
):
    writes.error = error
    queue.write(lambda: writes.write("x"), patiently)
    assert until(lambda: queue.broken)
    writes.error = None
    for call in (
        lambda: queue.write(lambda: writes.write("later"), patiently),
        lambda: queue.ask(lambda: 1, patiently),
        queue.check,
    ):
        with pytest.raises(type(error)):
            call()
    assert writes.written == []


def test_only_so_much_waits_and_then_the_trial_waits_too(writes, monkeypatch):
    monkeypatch.setattr(database_health, "MOST_ENTRIES", 5)
    queue = WriteQueue("test", DatabaseHealth(lambda _event: None))
    writes.error = unavailable()

    def write_six():
        for number in range(6):
            queue.write(lambda number=number: writes.write(number), patiently)

    thread = threading.Thread(target=write_six)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    writes.error = None
    thread.join(10)
    queue.ask(lambda: None, patiently)
    assert writes.written == list(range(6))
    queue.close()


def test_an_absence_is_too_long_after_its_limit_and_not_before():
    events = []
    health = DatabaseHealth(events.append, limit=100.0)
    health.failed(unavailable(), time.monotonic() - 99)
    assert not health.given_up
    health.failed(unavailable(), time.monotonic())
    assert health.away_for > 98
    health.answered()
    health.answered()
    health.failed(unavailable(), time.monotonic() - 101)
    assert health.given_up
    assert "for 101 s (no answer)" in str(health.error())
    assert [type(event) for event in events] == [Notice] * 3
