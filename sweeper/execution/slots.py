"""What the slots of one worker share: the study, the database, its leases, and when to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sweeper.definition import StudySettings
from sweeper.errors import ExecutionError, SweeperError
from sweeper.events import Event, Notice
from sweeper.execution.auditing import Auditor
from sweeper.execution.channel import Assignment
from sweeper.execution.contact import LONGEST_ABSENCE, DatabaseContact
from sweeper.execution.gpus import SlotDevices
from sweeper.execution.isolation import Launcher
from sweeper.execution.lease import CALL_PATIENCE, LeaseKeeper, Stay
from sweeper.execution.locating import Located
from sweeper.paths import RunPaths
from sweeper.results import TrialRecord
from sweeper.search.marks import Marks
from sweeper.search.spec import SamplerSpec
from sweeper.storage.repository import Repository, StopRequest, WorkerIdentity

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
        listener: Told of every event, one at a time. What it raises ends the run, once every trial
            is checkpointed, and it is told nothing more.
        runner: Starts trial processes; or runs trials in this one.
        search: How parameters are drawn and trials are pruned.
        marks: What the search has worked out of finished trials.
        stay: The worker's place in the study's list of workers, and how long its leases are.
        longest_absence: Seconds for which trials go on without the database.
        devices: What each slot sees of the machine's GPUs.
        fail_fast: Whether the first failed trial stops the others.
        contact: Whether the database answers.
        impatient: The repository for callers that try again by themselves.
        fingerprint: Of the definition that the trials run under; None for the stored one.
        auditor: Replays intervals of trials, and compares them.
        leases: Entered by every slot; renews, and learns of requests to stop.
        error: What ends the run, and is no trial's own; the first there was.
    """

    repository: Repository
    settings: StudySettings
    search: SamplerSpec
    paths: RunPaths
    worker: WorkerIdentity
    runner: Launcher | InlineRunner
    listener: Callable[[Event], None]
    stay: Stay = field(default_factory=Stay)
    longest_absence: float = LONGEST_ABSENCE
    devices: SlotDevices = field(default_factory=SlotDevices)
    fail_fast: bool = False
    fingerprint: str | None = None
    marks: Marks = field(default_factory=Marks)
    stopping: threading.Event = field(default_factory=threading.Event)
    killing: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    _is_told: bool = True
    _told_of: set[int] = field(default_factory=set)
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.contact = DatabaseContact(self.tell, self.longest_absence)
        self.impatient = self.repository.with_patience(CALL_PATIENCE)
        self.auditor = Auditor(self)
        self.leases = LeaseKeeper(
            self.repository,
            self.settings.name,
            self.worker,
            self.stay,
            self.contact,
            on_stop=self.stop,
            on_error=self._give_up,
        )

    def tell(self, event: Event) -> None:
        """Tell the listener. It never raises: a trial is not to blame if nobody listens."""
        with self._telling:
            if not self._is_told:
                return
            try:
                self.listener(event)
            except BaseException as error:
                self._is_told = False
                # Of a run that stops anyway, a terminal that is closed is no error.
                if not (isinstance(error, OSError) and self.stopping.is_set()):
                    self.abort(error)

    def tell_of_checkpoints(self, trial: TrialRecord, located: Located) -> None:
        """Say, once a trial, that its checkpoints are not where they were, or are nowhere."""
        told = located.notice(len(trial.checkpoints), self.paths.trial_files(trial.number))
        if told is not None and trial.number not in self._told_of:
            self._told_of.add(trial.number)
            self.tell(Notice(told))

    def abort(self, error: BaseException) -> None:
        """Stop every slot because of ``error``, which is not one trial's own."""
        self.error = self.error or error
        if isinstance(self.error, Exception):
            self.leases.error = self.error
        self.stopping.set()

    def stop(self, how: StopRequest) -> None:
        """Stop every slot because somebody asked the study to: after a checkpoint, or at once."""
        if how == "kill":
            self.killing.set()
        self.stopping.set()
        self.tell(
            Notice(
                "the study was asked to stop at once: killing the trials"
                if how == "kill"
                else "the study was asked to stop: every trial finishes its step and checkpoints"
            )
        )

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, SweeperError):
            self.abort(error)
            return
        self.abort(ExecutionError(f"the worker's leases could not be renewed: {error!r}"))

    def is_done_waiting(self) -> bool:
        """Whether nobody waits any more for a database that is away."""
        return self.stopping.is_set() or self.contact.given_up

    def attempt_is_over(self) -> None:
        """Wake the slots that wait for a trial to finish."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_others(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
