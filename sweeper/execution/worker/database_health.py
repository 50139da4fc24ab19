"""Whether the database answers, as one worker sees it, and how long it has been away.

A database that is away for some minutes stops no training. It is said once when it goes and once
when it is back; past the limit, whoever has waited gives up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sweeper.errors import DatabaseUnavailableError
from sweeper.events import Event, Notice

T = TypeVar("T")

LONGEST_ABSENCE = 600.0
"""Seconds for which trials go on without the database."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class DatabaseHealth:
    """Shared by everything in a worker that calls the database.

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
        """Whether it has been away for longer than the limit."""
        return self.away_for > self.limit

    def error(self) -> DatabaseUnavailableError:
        """What to raise once it is given up."""
        return DatabaseUnavailableError(
            f"the database has been away for {self.away_for:.0f} s ({self._error}); trials were "
            "stopped at a checkpoint, and go on from there when the study is resumed"
        )

    def failed(self, error: DatabaseUnavailableError, since: float) -> None:
        """Note that a call begun at ``since``, on the monotonic clock, was not answered."""
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
                    f"the database is away since {at}: {error}. Training goes on and what trials "
                    f"tell waits; after {self.limit:.0f} s they checkpoint and stop"
                )
            )

    def answered(self) -> None:
        """Note that a call was answered."""
        if self._away_since is None:
            return
        with self._changing:
            gone = self.away_for
            was_away, self._away_since = self._away_since is not None, None
        if was_away:
            self._tell(Notice(f"the database is back after {gone:.0f} s"))

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
