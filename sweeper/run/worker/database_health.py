"""Health of the database from one worker's view, and the queue of writes while it is unreachable.

The queue writes in its own thread, so that the trial's supervisor can always react to a stop, a lost
lease or a death. Writes must be idempotent: if a connection breaks during a commit, it is unknown
whether the commit succeeded. After a limit of some minutes waiting callers give up.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sweeper.errors import DatabaseUnavailableError
from sweeper.records.events import Listener, Notice

T = TypeVar("T")

LONGEST_ABSENCE = 600.0
"""Seconds for which trials continue without the database."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class DatabaseHealth:
    """Health of the database, shared by all callers in a worker.

    ``listener`` receives a notice when it becomes unreachable and when it answers again; after ``limit`` seconds
    waiting callers give up.
    """

    def __init__(self, listener: Listener, limit: float = LONGEST_ABSENCE) -> None:
        self.limit = limit
        self._listener = listener
        self._changing = threading.Lock()
        self._away_since: float | None = None
        self._error: DatabaseUnavailableError | None = None

    @property
    def away_for(self) -> float:
        """Return for how many seconds the database has been unreachable; 0 if it answers."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def given_up(self) -> bool:
        """Return whether the database has been unreachable for longer than the limit."""
        return self.away_for > self.limit

    def error(self) -> DatabaseUnavailableError:
        """Return the error to raise once it is given up."""
        return DatabaseUnavailableError(
            f"the database was unreachable for {self.away_for:.0f} s ({self._error}); trials were "
            "stopped at a checkpoint, and will resume from there"
        )

    def failed(self, error: DatabaseUnavailableError, since: float) -> None:
        """Record that a call that started at ``since``, on the monotonic clock, failed."""
        # Of several callers that fail at once, one reports; it does so after the lock, as listeners are slow.
        with self._changing:
            first = self._away_since is None
            self._error = error
            if first:
                self._away_since = since
        if first:
            ago = timedelta(seconds=time.monotonic() - since)
            time_of_day = (datetime.now(UTC) - ago).astimezone().strftime("%H:%M:%S")
            self._listener(
                Notice(
                    f"the database is unreachable since {time_of_day}: {error}. Training continues, and "
                    f"reports of trials are kept; after {self.limit:.0f} s trials checkpoint and "
                    "stop"
                )
            )

    def answered(self) -> None:
        # Nearly always, so it is read without the lock first.
        if self._away_since is None:
            return
        with self._changing:
            gone = self.away_for
            was_away = self._away_since is not None
            self._away_since = None
        if was_away:
            self._listener(Notice(f"the database is reachable again after {gone:.0f} s"))

    def retrying(
        self,
        call: Callable[[], T],
        give_up: Callable[[], bool],
        sleep: Callable[[float], object] = time.sleep,
    ) -> T:
        """Call until the database answers; an earlier call without an answer may have been carried out.

        Raises:
            DatabaseUnavailableError: The fault is not temporary, or ``give_up`` returned True.
        """
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                result = call()
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
            pause = min(2 * pause, _LONGEST_PAUSE)


MOST_ENTRIES = 1000
"""Maximum number of queued writes; when the queue is full, callers wait, and finally the trial does."""

_LOOK_AROUND = 0.1
"""Seconds between two calls of ``waiting``."""

Write = Callable[[], T]
"""A call to the database, which may be carried out twice if an answer is lost."""


class WriteQueue:
    """Executor with one thread, which makes writes in order and retries each until it is carried out.

    Methods with a parameter ``waiting`` call it a few times a second while they wait; an error that it
    raises ends the wait.
    """

    def __init__(self, name: str, health: DatabaseHealth) -> None:
        self._health = health
        self._executor = ThreadPoolExecutor(1, name)
        self._room = threading.BoundedSemaphore(MOST_ENTRIES)
        self._closed = threading.Event()
        self._error: BaseException | None = None

    @property
    def broken(self) -> bool:
        """Return whether a write raised an error, after which nothing more is written."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error of a write, if there is one: `SupersededError` if the attempt is no longer current."""
        if self._error is not None:
            raise self._error

    def write(self, call: Write[T], waiting: Callable[[], None]) -> Future[T]:
        """Queue ``call``; wait while the queue is full. The error of an earlier write is raised."""
        while not self._room.acquire(timeout=_LOOK_AROUND):
            waiting()
            self.check()
        try:
            self.check()
            return self._executor.submit(self._carry_out, call)
        except BaseException:
            self._room.release()
            raise

    def ask(self, question: Write[T], waiting: Callable[[], None]) -> T:
        """Call ``question`` in the order of the queue, and return its result or raise its error."""
        answer = self.write(question, waiting)
        while wait([answer], _LOOK_AROUND).not_done:
            waiting()
        return answer.result()

    def close(self) -> None:
        """Stop writing, even if writes are queued. Idempotent."""
        self._closed.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, call: Write[T]) -> T:
        try:
            # No write follows one that failed, because each may depend on the earlier ones.
            self.check()
            return self._health.retrying(call, self._closed.is_set, self._closed.wait)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._room.release()
