"""What an attempt wants to write, in order, whether or not the database answers just now.

A thread of the queue's own writes, so that whoever supervises the trial is never kept from
seeing a stop, a lost lease or a death. Every entry must bear being written twice: a connection
that breaks during a commit leaves open whether the commit was made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sweeper.execution.worker.database_health import DatabaseHealth

T = TypeVar("T")

MOST_ENTRIES = 1000
"""So many entries wait at most; then whoever writes waits too, and at last the trial."""

_LOOK_AROUND = 0.1
"""Seconds between two calls of ``waiting`` while an answer is waited for."""


@dataclass(frozen=True)
class Entry:
    """One write. ``again``: it may have been written already."""

    write: Callable[[bool], object]

    def joined(self, later: Entry) -> Entry | None:
        """Both as one entry, which writes them at once; None where that cannot be."""
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
        """Whether an entry raised, so that nothing more is written."""
        return self._error is not None

    def check(self) -> None:
        """Raise what an entry raised.

        Raises:
            SupersededError: The attempt is no longer the trial's current one.
            DatabaseUnavailableError: The database has a fault that does not pass.
            Exception: Whatever else the entry raised.
        """
        if self._error is not None:
            raise self._error

    def write(self, entry: Entry, waiting: Callable[[], None]) -> None:
        """Have ``entry`` written after those before it; waits only while there are too many.

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
        """Have ``question`` asked in its turn, like an entry, and return its answer.

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
        """Write nothing more, whether or not something still waits. May be called again."""
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
