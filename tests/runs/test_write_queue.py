"""While the database is away, what trials tell waits, in order; and nobody waits unseen."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from fake_workers import settings_of
from sweeps import notices_of
from waiting import until

from sweeper.db.repository import Claim
from sweeper.errors import DatabaseUnavailableError, SupersededError
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.messages import EpochsEnded
from sweeper.run.worker import database_health as module
from sweeper.run.worker.database_health import DatabaseHealth, WriteQueue
from sweeper.run.worker.slot import AttemptRecorder


@dataclass
class Database:
    """Holds what was written; ``away`` while it answers nobody."""

    away: bool = False
    passing: bool = True
    written: list[object] = field(default_factory=list)
    tries: int = 0

    def entry(self, what):
        return lambda: self.write(what)

    def write(self, what):
        self.tries += 1
        if self.away:
            error = DatabaseUnavailableError("no answer")
            error.passing = self.passing
            raise error
        self.written.append(what)
        return what


def patiently():
    """Wait on."""


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def events():
    return []


@pytest.fixture
def health(events):
    return DatabaseHealth(events.append, limit=600.0)


@pytest.fixture
def queue(health):
    made = WriteQueue("test", health)
    yield made
    made.close()


def test_what_was_said_while_the_database_was_away_is_written_once_and_in_order(
    database, queue, events, health
):
    database.away = True
    for number in range(50):
        queue.write(database.entry(number), patiently)
    assert until(lambda: database.tries >= 2)
    assert health.away_for > 0
    assert database.written == []
    database.away = False
    queue.ask(lambda: None, patiently)
    assert database.written == list(range(50))
    assert health.away_for == 0
    away, back = notices_of(events)
    assert away.startswith("the database is unreachable since")
    assert "Training continues" in away
    assert back.startswith("the database is reachable again after")


def test_whoever_waits_looks_around_and_may_leave(database, queue):
    class KilledError(Exception):
        pass

    looks = []

    def look():
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise KilledError

    database.away = True
    with pytest.raises(KilledError):
        queue.ask(lambda: database.write("question"), look)
    looks.clear()
    with pytest.raises(KilledError):
        queue.ask(lambda: None, look)
    assert looks[-1] - looks[0] < 1


@pytest.mark.parametrize("passing", [False, None])
def test_a_fault_that_does_not_pass_reaches_whoever_writes_and_nothing_is_written_after_it(
    database, queue, *, passing
):
    if passing is None:
        entry = lambda: (_ for _ in ()).throw(SupersededError("another attempt"))  # noqa: E731
        expected = SupersededError
    else:
        database.away, database.passing = True, False
        entry, expected = database.entry("x"), DatabaseUnavailableError
    queue.write(entry, patiently)
    assert until(lambda: queue.broken)
    database.away = False
    for call in (
        lambda: queue.write(database.entry("later"), patiently),
        lambda: queue.ask(lambda: None, patiently),
        lambda: queue.ask(lambda: 1, patiently),
        queue.check,
    ):
        with pytest.raises(expected):
            call()
    assert database.written == []


def test_only_so_much_waits_and_then_the_trial_waits_too(database, health, monkeypatch):
    monkeypatch.setattr(module, "MOST_ENTRIES", 5)
    queue = WriteQueue("test", health)
    database.away = True
    for number in range(5):
        queue.write(database.entry(number), patiently)
    written = threading.Event()

    def sixth():
        queue.write(database.entry(5), patiently)
        written.set()

    thread = threading.Thread(target=sixth)
    thread.start()
    assert not written.wait(0.2)
    database.away = False
    thread.join(10)
    queue.ask(lambda: None, patiently)
    assert database.written == list(range(6))
    queue.close()


def test_epochs_that_waited_for_the_database_are_written_at_once_each_once_and_in_order(
    database, queue
):
    def record_epochs(_token, records, values):
        database.write(tuple(record.epoch for record in records))
        assert values == {record.epoch: record.metrics["loss"] for record in records}

    study = SimpleNamespace(
        settings=settings_of("s", trials=1, epochs=300),
        impatient=SimpleNamespace(record_epochs=record_epochs),
        worker=SimpleNamespace(pid=1),
    )
    claim = Claim("s", 0, 1, token=7, seed=0, optuna_trial_id=0)
    context = SimpleNamespace(study=study, tell=lambda _: None, reported_files=set())
    recorder = AttemptRecorder(context, claim, queue, patiently)
    database.away = True
    for epoch in range(250):
        recorder.record(EpochsEnded((EpochRecord(epoch, {"loss": 1.0}),), epoch + 1, 0.1))
    database.away = False
    queue.ask(lambda: None, patiently)
    written = [epoch for each in database.written for epoch in each]
    assert written == list(range(250))
    assert len(database.written) <= 4, "one that was on its way, and hundred at a time"


# Contact


def test_an_absence_is_too_long_after_its_limit_and_not_before(events):
    health = DatabaseHealth(events.append, limit=100.0)
    error = DatabaseUnavailableError("no answer")
    health.failed(error, time.monotonic() - 99)
    assert not health.given_up
    health.failed(error, time.monotonic())
    assert health.away_for > 98
    health.answered()
    health.answered()
    health.failed(error, time.monotonic() - 101)
    assert health.given_up
    assert "for 101 s (no answer)" in str(health.error())
    assert len(notices_of(events)) == 3
