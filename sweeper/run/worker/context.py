"""State that the slots of one worker share: study, leases, listener and requests to stop."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar

from sweeper.db.repository import Repository, StopRequest, WorkerIdentity
from sweeper.definition.definition import StudySettings
from sweeper.errors import DatabaseUnavailableError, ExecutionError, SweeperError
from sweeper.records.events import Event, Listener, Notice, RunStopping
from sweeper.records.results import TrialRecord
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.protocol.messages import Assignment
from sweeper.run.worker.checkpoints import CheckpointPaths
from sweeper.run.worker.database_health import LONGEST_ABSENCE, DatabaseHealth
from sweeper.run.worker.gpus import SlotDevice
from sweeper.run.worker.leases import CALL_PATIENCE, LeaseKeeper, WorkerRow
from sweeper.search.sampling import ReplayedAttributes
from sweeper.search.spec import SamplerSpec
from sweeper.support.paths import RunPaths


@dataclass(frozen=True)
class StudyAccess:
    """Study of one worker, and its access to the database.

    ``fingerprint`` is of the definition with which trials run, and ``changes`` the number of its changes that
    this worker knows; None for what is stored.
    """

    repository: Repository
    settings: StudySettings
    search: SamplerSpec
    paths: RunPaths
    worker: WorkerIdentity = field(default_factory=WorkerIdentity.here)
    fingerprint: str | None = None
    changes: int | None = None
    replayed_attributes: ReplayedAttributes = field(default_factory=ReplayedAttributes)

    @cached_property
    def repository_with_short_timeout(self) -> Repository:
        """Return the repository whose calls give up after a second, for callers that retry."""
        return self.repository.with_patience(CALL_PATIENCE)


T = TypeVar("T")


@dataclass
class SlotContext:
    """State that the slots of one worker share.

    Attributes:
        runner: Launcher of trial processes, or a function that runs a trial in this process and passes its
            messages to the attempt's supervisor (`sweeper.run.worker.inline`).
        listener: Receives every event, one at a time. An error that it raises ends the run after every
            trial has written a checkpoint; the listener is then not called again.
        devices: The device of each slot that starts; at least as many as slots.
        stopping: Set when the slots should stop their trials at a checkpoint.
        killing: Set when the slots should kill their trials.
        error: The first error that ends the run and does not concern one trial only.
        attempt_ended: Notified when an attempt has ended, for slots that wait for a trial.
        reported_files: Levels and paths of the findings about files that were reported.
        suggested: Names of the parameters that trials have suggested here.
        starting: Numbers of trials that run and have not reached their first step.
        trained: Whether a trial has reached a step here.
        failed_early: Whether a trial failed before its first step.
    """

    study: StudyAccess
    runner: Launcher | Callable[[Assignment, Any], None]
    listener: Listener
    worker_row: WorkerRow = field(default_factory=WorkerRow)
    devices: Iterator[SlotDevice] = field(default_factory=lambda: repeat(SlotDevice()))
    fail_fast: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    killing: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    reported_files: set[tuple[str, str]] = field(default_factory=set)
    suggested: set[str] = field(default_factory=set)
    starting: set[int] = field(default_factory=set)
    trained: bool = False
    failed_early: bool = False
    _listening: bool = True
    _reported: set[int] = field(default_factory=set)
    _reporting: threading.Lock = field(default_factory=threading.Lock)
    attempt_ended: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.health = DatabaseHealth(self.report, LONGEST_ABSENCE)
        self.leases = LeaseKeeper(
            repository=self.study.repository_with_short_timeout,
            study=self.study.settings.name,
            worker=self.study.worker,
            row=self.worker_row,
            health=self.health,
            on_stop=self.stop,
            on_error=self.give_up,
        )

    @property
    def awaits_first_step(self) -> bool:
        """Return whether trials that are starting will show if every trial fails before its first step."""
        return self.failed_early and not self.trained and bool(self.starting)

    def report(self, event: Event) -> None:
        """Call the listener; its error ends the run instead of being raised here."""
        # Threads of slots, leases and counts report, and a listener need not be thread-safe.
        with self._reporting:
            if not self._listening:
                return
            try:
                self.listener(event)
            except BaseException as error:
                self._listening = False
                # A closed terminal is no error if the run stops anyway.
                if not (isinstance(error, OSError) and self.stopping.is_set()):
                    self.abort(error)

    def report_checkpoints(self, trial: TrialRecord, located: CheckpointPaths) -> None:
        """Report, once for each trial, that its checkpoints were moved or are missing."""
        notice = located.notice(trial, self.study.paths.trial_files(trial.number))
        if notice is not None and trial.number not in self._reported:
            self._reported.add(trial.number)
            self.report(Notice(notice))

    def ask(self, call: Callable[[], T]) -> T:
        """Call the database until it answers, is unreachable for too long, or until a stop is requested."""
        try:
            return self.health.retrying(
                call, lambda: self.stopping.is_set() or self.health.given_up
            )
        except DatabaseUnavailableError as error:
            if error.passing and self.health.given_up:
                raise self.health.error() from error
            raise

    def abort(self, error: BaseException) -> None:
        """Stop every slot because of an error that does not concern one trial only."""
        self.error = self.error or error
        if isinstance(self.error, Exception):
            self.leases.error = self.error
        self.stopping.set()

    def request_stop(self, how: StopRequest) -> None:
        """Stop the slots of this process, not those of other workers."""
        self.stopping.set()
        if how == "kill":
            self.killing.set()

    def stop(self, how: StopRequest) -> None:
        """Stop every slot because a stop of the study was requested."""
        self.request_stop(how)
        self.report(
            RunStopping(
                "the study was asked to stop at once: killing the trials"
                if how == "kill"
                else "the study was asked to stop: every trial finishes its step and checkpoints",
                at_once=how == "kill",
            )
        )

    def give_up(self, error: Exception) -> None:
        """Stop every slot because leases cannot be renewed any more."""
        if not isinstance(error, SweeperError):
            error = ExecutionError(f"the worker's leases could not be renewed: {error!r}")
        self.abort(error)
