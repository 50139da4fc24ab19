"""What the slots of one worker share: the study, the database, the listener, and when to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sweeper.definition import StudySettings
from sweeper.errors import SweeperError
from sweeper.events import Event
from sweeper.execution.channel import Assignment
from sweeper.execution.isolation import Launcher
from sweeper.paths import RunPaths
from sweeper.search.sampling import SamplerSpec
from sweeper.storage.repository import Repository, WorkerIdentity

if TYPE_CHECKING:
    from sweeper.execution.worker import AttemptSupervisor

__all__ = ["InlineRunner", "SlotContext"]


class InlineRunner(Protocol):
    """Runs a trial in this process, handing its messages to ``supervisor``."""

    def __call__(self, assignment: Assignment, supervisor: AttemptSupervisor) -> None: ...


@dataclass
class SlotContext:
    """What the slots of one worker share.

    Attributes:
        listener: Told of every event, one at a time.
        runner: Starts trial processes; or runs trials in this one.
        search: How parameters are drawn.
    """

    repository: Repository
    settings: StudySettings
    search: SamplerSpec
    paths: RunPaths
    worker: WorkerIdentity
    runner: Launcher | InlineRunner
    listener: Callable[[Event], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    killing: threading.Event = field(default_factory=threading.Event)
    error: SweeperError | None = None
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, event: Event) -> None:
        with self._telling:
            self.listener(event)

    def abort(self, error: SweeperError) -> None:
        """Stop every slot because of ``error``, which is not one trial's own."""
        self.error = self.error or error
        self.stopping.set()

    def attempt_is_over(self) -> None:
        """Wake the slots that wait for a trial to finish."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_others(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
