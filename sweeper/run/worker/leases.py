"""Leases of a worker, renewed by a separate thread so that a slow trial never loses its lease.

The same thread queries requests to stop. A lease is lost if this process was suspended or disconnected
for too long. The trial's supervisor then notices that within a second; and the database refuses all
writes of an attempt that has lost its lease.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from sweeper.errors import DatabaseUnavailableError
from sweeper.run.worker.database_health import DatabaseHealth

if TYPE_CHECKING:
    from sweeper.db.repository import LostAttempt, Repository, StopRequest, WorkerIdentity

LEASE_SECONDS = 60.0
"""Seconds without a renewal after which a worker on another machine counts as gone."""

_RENEWALS = 4
"""Number of renewals within the length of a lease."""

_LONGEST_POLL = 1.0
"""Maximum seconds between two queries for a request to stop."""

CALL_PATIENCE = 1.0
"""Seconds for which one call to the database is retried before it counts as unanswered."""

_JOIN_PATIENCE = 60.0
"""Seconds for which a starting worker waits for the database."""


@dataclass(frozen=True)
class WorkerRow:
    """Row of a worker in the table of workers; ``key`` is unique, and has 32 characters."""

    engine: str = "local"
    slots: int = 1
    lease_seconds: float = LEASE_SECONDS
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class LeaseKeeper:
    """Keeper of a worker's leases: it adds the worker's row, renews the leases, and ends the row.

    A context manager that every slot enters: the first adds the row, and the last ends it. ``on_stop`` is
    called when a stop of the study is requested, and again when the request changes; ``on_error`` with
    errors that are no temporary faults of the database. The row ends with the worker's ``error``.
    """

    repository: Repository
    study: str
    worker: WorkerIdentity
    row: WorkerRow
    health: DatabaseHealth
    on_stop: Callable[[StopRequest], None]
    on_error: Callable[[Exception], None]
    error: Exception | None = None
    _inside: int = 0
    _held: dict[int, threading.Event] = field(default_factory=dict)
    _stop: StopRequest | None = None
    _looked: float = -math.inf

    def __post_init__(self) -> None:
        # Three locks, so that a slow call to the database under one blocks neither of the others.
        self._entering = threading.Lock()
        self._holding = threading.Lock()
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread()

    def __enter__(self) -> Self:
        # Slots enter at the same time, and only the first one adds the row.
        with self._entering:
            if self._inside == 0:
                join = partial(self.repository.join, self.study, self.worker, **asdict(self.row))
                self.health.retrying(join, lambda: self.health.away_for > _JOIN_PATIENCE)
                self._ended.clear()
                self._thread = threading.Thread(
                    target=self._keep, name="sweeper-leases", daemon=True
                )
                self._thread.start()
            self._inside += 1
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._entering:
            self._inside -= 1
            if self._inside:
                return
            self._ended.set()
            # Joined first, so that no renewal follows the row's end.
            self._thread.join()
            # If the database cannot be reached, the worker counts as gone when its lease ends.
            with contextlib.suppress(DatabaseUnavailableError):
                self.repository.leave(self.row.key, None if self.error is None else str(self.error))

    def hold(self, token: int) -> threading.Event:
        """Start to renew the lease of the attempt ``token``; return an event that is set when it is lost."""
        with self._holding:
            return self._held.setdefault(token, threading.Event())

    def release(self, token: int) -> None:
        with self._holding:
            self._held.pop(token, None)

    def release_lost(self) -> tuple[LostAttempt, ...]:
        """Close attempts of workers that are gone; do nothing if this process did so within a second."""
        with self._looking:
            if _now() - self._looked < self._interval:
                return ()
            lost = self.repository.release_lost(
                self.study,
                observer=self.row.key,
                lease_seconds=self.row.lease_seconds,
            )
            self._looked = _now()
            return lost

    @property
    def _interval(self) -> float:
        return min(_LONGEST_POLL, self.row.lease_seconds / _RENEWALS)

    def _keep(self) -> None:
        due = _now()
        while not self._ended.wait(self._interval):
            began = time.monotonic()
            try:
                if _now() >= due:
                    self._renew()
                    # Half a poll early, so that waiting for whole polls makes no renewal late.
                    due = _now() + self.row.lease_seconds / _RENEWALS - self._interval / 2
                request = self.repository.stop_requested(self.study)
                if request is not None and request != self._stop:
                    self.on_stop(request)
                self._stop = request
                self.health.answered()
            except DatabaseUnavailableError as error:
                if error.passing:
                    self.health.failed(error, began)
                else:
                    # The slots stop now; until they have ended, their leases are still renewed.
                    self.on_error(error)
                    self._ended.wait(_LONGEST_POLL)
            except Exception as error:
                # The worker must not continue, because no thread renews its leases any more.
                self.on_error(error)
                return

    def _renew(self) -> None:
        # Copied, because slots hold and release leases while the database answers.
        with self._holding:
            leases = dict(self._held)
        renewed = self.repository.renew(
            leases.keys(), self.row.lease_seconds, worker_key=self.row.key
        )
        for token, lost in leases.items():
            if token not in renewed:
                lost.set()


def _now() -> float:
    """Return the seconds of a clock that also counts while the machine is suspended, if there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
