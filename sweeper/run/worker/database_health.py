"""Health of the database from one worker's view, and the queue of writes while it is away.

The queue writes in a thread of its own, so that the trial's supervisor is never kept from
seeing a stop, a lost lease or a death. Every entry must bear being written twice: a connection
that breaks during a commit leaves open whether the commit was made.

A database that is away for some minutes stops no training. It is said once when it goes and once
when it is back; past the limit, whoever has waited gives up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from sweeper.errors import DatabaseUnavailableError
from sweeper.records.events import Event, Notice

T = TypeVar("T")

LONGEST_ABSENCE = 600.0
"""Seconds for which trials go on without the database."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class DatabaseHealth:
    """Health of the database, shared by all callers in a worker.

    Args:
        tell: Called with a notice when the database goes and when it is back.
        limit: Seconds after which the absence counts as too long.
    """

    def __init__(self, tell: Callable[[Event], None], limit: float = LONGEST_ABSENCE) -> None:
        self.limit = limit
        self._tell = tell
        self._changing = threading.Lock()
        self._away_since: float | None = None
        self._error: DatabaseUnavailableError | None = None

    @property
    def away_for(self) -> float:
        """Seconds since the database last failed to answer for the first time; 0 if it answers."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def given_up(self) -> bool:
        """Return whether it has been away for longer than the limit."""
        return self.away_for > self.limit

    def error(self) -> DatabaseUnavailableError:
        """Return the error to raise once it is given up."""
        return DatabaseUnavailableError(
            f"the database was unreachable for {self.away_for:.0f} s ({self._error}); trials were "
            "stopped at a checkpoint, and will resume from there"
        )

    def failed(self, error: DatabaseUnavailableError, since: float) -> None:
        """Record that a call begun at ``since``, on the monotonic clock, was not answered."""
        with self._changing:
            first = self._away_since is None
            self._error = error
            if first:
                self._away_since = since
        if first:
            ago = timedelta(seconds=time.monotonic() - since)
            at = (datetime.now(UTC) - ago).astimezone().strftime("%H:%M:%S")
            self._tell(
                Notice(
                    f"the database is unreachable since {at}: {error}. Training continues, and "
                    f"reports of trials are kept; after {self.limit:.0f} s trials checkpoint and "
                    "stop"
                )
            )

    def answered(self) -> None:
        """Record that a call was answered."""
        if self._away_since is None:
            return
        with self._changing:
            gone = self.away_for
            was_away, self._away_since = self._away_since is not None, None
        if was_away:
            self._tell(Notice(f"the database is reachable again after {gone:.0f} s"))

    def retrying(
        self,
        call: Callable[[bool], T],
        give_up: Callable[[], bool],
        sleep: Callable[[float], object] = time.sleep,
    ) -> T:
        """Call until the database answers.

        Args:
            call: Its argument is whether it was called before, and may have been carried out then.
            give_up: Whether to stop trying.
            sleep: Waits some seconds, or less.

        Raises:
            DatabaseUnavailableError: It would fail again for as long as nobody mends it, or
                ``give_up`` said so.
        """
        pause = _FIRST_PAUSE
        again = False
        while True:
            began = time.monotonic()
            try:
                result = call(again)
            except DatabaseUnavailableError as error:
                if not error.passing:
                    raise
                self.failed(error, began)
                if not give_up():
                    sleep(pause)
                if give_up():
                    raise
            else:
                self.answered()
                return result
            again = True
            pause = min(2 * pause, _LONGEST_PAUSE)


MOST_ENTRIES = 1000
"""So many entries wait at most; then whoever writes waits too, and at last the trial."""

_LOOK_AROUND = 0.1
"""Seconds between two calls of ``waiting`` while an answer is waited for."""


@dataclass(frozen=True)
class Entry:
    """One write. ``again``: it may have been written already."""

    write: Callable[[bool], object]

    def joined(self, later: Entry) -> Entry | None:
        """Return one entry that writes both at once; None if they cannot be joined."""
        del later
        return None


class WriteQueue:
    """Writes entries one after another, each until it is written.

    Where a method takes ``waiting``, it is called a few times a second, and what it raises ends
    the waiting.

    Args:
        name: Of its thread.
        health: Notes whether the database answers.
    """

    def __init__(self, name: str, health: DatabaseHealth) -> None:
        self._health = health
        self._entries: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Return whether an entry raised, so that nothing more is written."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error of an entry, if there is one.

        Raises:
            SupersededError: The attempt is no longer the trial's current one.
            DatabaseUnavailableError: The database has a fault that does not pass.
            Exception: Whatever else the entry raised.
        """
        if self._error is not None:
            raise self._error

    def write(self, entry: Entry, waiting: Callable[[], None]) -> None:
        """Queue ``entry`` after the others; waits only while the queue is full.

        Raises:
            Exception: What an earlier entry raised.
        """
        with self._changed:
            while len(self._entries) >= MOST_ENTRIES and self._error is None:
                waiting()
                self._changed.wait(_LOOK_AROUND)
            self.check()
            # The first entry may be on its way to the database.
            joined = self._entries[-1].joined(entry) if len(self._entries) > 1 else None
            if joined is not None:
                self._entries[-1] = joined
            else:
                self._entries.append(entry)
            self._changed.notify_all()

    def ask(self, question: Callable[[bool], T], waiting: Callable[[], None]) -> T:
        """Ask ``question`` in the order of the queue, and return its answer.

        Raises:
            Exception: What the question, or an earlier entry, raised.
        """
        answer: _Answer[T] = _Answer(question)
        self.write(Entry(answer.find), waiting)
        with self._changed:
            while not answer.found and self._error is None:
                waiting()
                self._changed.wait(_LOOK_AROUND)
        self.check()
        return answer.value[0]

    def settle(self, waiting: Callable[[], None]) -> None:
        """Wait until everything is written.

        Raises:
            Exception: What an entry raised.
        """
        with self._changed:
            while self._entries and self._error is None:
                waiting()
                self._changed.wait(_LOOK_AROUND)
        self.check()

    def close(self) -> None:
        """Stop writing, even if entries wait. May be called again."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries or self._closed.is_set())
                if self._closed.is_set():
                    return
                entry = self._entries[0]
            try:
                self._health.retrying(entry.write, self._closed.is_set, self._closed.wait)
            except BaseException as error:
                # Whoever writes here or waits for an answer gets it.
                with self._changed:
                    self._error = error
                    self._entries.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._entries.popleft()
                self._changed.notify_all()


class _Answer(Generic[T]):
    def __init__(self, question: Callable[[bool], T]) -> None:
        self._question = question
        self.value: list[T] = []

    @property
    def found(self) -> bool:
        return bool(self.value)

    def find(self, again: bool) -> None:
        self.value = [self._question(again)]
