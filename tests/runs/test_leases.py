"""A worker's leases are renewed whatever its trials do, and a lost one is seen at once."""

import threading
import time

import pytest

from sweeper.db.repository import LostAttempt, WorkerIdentity
from sweeper.run.worker.database_health import DatabaseHealth
from sweeper.run.worker.leases import LeaseKeeper, WorkerRow

LEASE = 0.2


class FakeRepository:
    """Notes every call; loses the tokens in ``taken``."""

    def __init__(self):
        self.calls = []
        self.taken = set()
        self.stop = None
        self.fault = None

    def with_patience(self, _seconds):
        return self

    def _note(self, name, *arguments):
        self.calls.append((name, arguments))
        if self.fault is not None:
            raise self.fault

    def join(self, _study, _worker, *, key, **_rest):
        self._note("join", key)

    def leave(self, key, error=None):
        self._note("leave", key, error)

    def renew(self, tokens, _seconds, *, worker_key):
        self._note("renew", sorted(tokens), worker_key)
        return frozenset(tokens) - self.taken

    def stop_requested(self, _study):
        self._note("stop_requested")
        return self.stop

    def release_lost(self, _study, **_rest):
        self._note("release_lost")
        return (LostAttempt(0, 1),)

    def names(self):
        return [name for name, _ in self.calls]


@pytest.fixture
def repository():
    return FakeRepository()


class Kept:
    """A keeper, and what it told."""

    def __init__(self, repository):
        self.events = []
        self.stops = []
        self.errors = []
        self.health = DatabaseHealth(self.events.append)
        self.keeper = LeaseKeeper(
            repository,
            "study",
            WorkerIdentity.here(),
            WorkerRow(lease_seconds=LEASE, key="k" * 32),
            self.health,
            on_stop=self.stops.append,
            on_error=self.errors.append,
        )


@pytest.fixture
def kept(repository):
    return Kept(repository)


def until(reached):
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_slot_joins_and_the_last_leaves(repository, kept):
    with kept.keeper, kept.keeper:
        pass
    assert repository.names()[0] == "join"
    assert repository.calls[-1] == ("leave", ("k" * 32, None))
    assert (repository.names().count("join"), repository.names().count("leave")) == (1, 1)
    with kept.keeper:
        kept.keeper.error = RuntimeError("the disk is full")
    assert repository.calls[-1] == ("leave", ("k" * 32, "the disk is full"))
    assert not any(t.name == "sweeper-leases" for t in threading.enumerate())


def test_a_lasting_fault_is_reported_once_or_again_and_never_kept_quiet(repository, kept):
    with kept.keeper:
        repository.fault = ValueError("a bug")
        until(lambda: kept.errors)
        repository.fault = None
    assert [str(error) for error in kept.errors] == ["a bug"]


def test_the_slots_of_one_worker_look_for_lost_trials_together(repository, kept):
    assert kept.keeper.release_lost() == (LostAttempt(0, 1),)
    assert kept.keeper.release_lost() == ()
    until(kept.keeper.release_lost)
    assert repository.names().count("release_lost") == 2
