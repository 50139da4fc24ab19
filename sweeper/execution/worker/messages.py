"""What one attempt's trial reports, written down in the order in which it was reported.

Everything goes through the attempt's write queue: while the database is away, the trial trains on
and this waits. Only a question cannot wait, since the trial needs the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeper.declared.populations import check_perturbed, population_of
from sweeper.events import CheckpointKept, EpochFinished, Event, Notice, TrainingStarted
from sweeper.execution.launch.conversation import TrialSupervisor, progress_of
from sweeper.execution.launch.trial_process import Isolation
from sweeper.execution.protocol.audits import IntervalPinned
from sweeper.execution.protocol.framing import GarbledError
from sweeper.execution.protocol.messages import (
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Failed,
    Finished,
    LastMessage,
    Message,
    PausedHere,
    Preparing,
    PrunedHere,
    Started,
    StepsReached,
    StoppedHere,
    Surroundings,
    Warned,
)
from sweeper.execution.protocol.questions import Judge, Judged, Suggest, Suggested
from sweeper.execution.worker.answers import TrialSearch
from sweeper.execution.worker.study import StudyAccess
from sweeper.execution.worker.write_queue import Entry, WriteQueue
from sweeper.results import CheckpointRecord, EpochRecord
from sweeper.storage.repository import Claim, Repository
from sweeper.training.fingerprint import differences

_MOST_EPOCHS = 100
"""So many epochs are written in one transaction, when many wait."""


@dataclass(frozen=True)
class _Epochs(Entry):
    """Finished epochs; those that wait one behind the other are written together."""

    repository: Repository
    token: int
    records: tuple[EpochRecord, ...]
    values: dict[int, float]

    @classmethod
    def of(
        cls,
        repository: Repository,
        token: int,
        records: tuple[EpochRecord, ...],
        values: dict[int, float],
    ) -> _Epochs:
        return cls(
            lambda _again: repository.record_epochs(token, records, values),
            repository,
            token,
            records,
            values,
        )

    def joined(self, later: Entry) -> Entry | None:
        if not isinstance(later, _Epochs) or len(self.records) + len(later.records) > _MOST_EPOCHS:
            return None
        by_number = {record.epoch: record for record in (*self.records, *later.records)}
        return _Epochs.of(
            self.repository,
            self.token,
            tuple(by_number.values()),
            {**self.values, **later.values},
        )


class MessageHandler(TrialSupervisor):
    """The half of an attempt's supervisor that handles its trial's messages.

    Args:
        study: The worker's.
        claim: The attempt.
        queue: What is reported is written there.
        waiting: Called a few times a second while an answer is waited for; what it raises ends
            the waiting.
        tell: Called with events.
        pinned: Writes down an interval that was pinned to be audited, by the attempt's token.

    Attributes:
        step: The last step that the trial reported.
        kept: The step of its newest checkpoint, those of earlier attempts included.
        last: Its last message, once it has sent that.
        trained_seconds: Of training, in the checkpoint that it went on from.
    """

    def __init__(
        self,
        study: StudyAccess,
        claim: Claim,
        queue: WriteQueue,
        waiting: Callable[[], None],
        *,
        tell: Callable[[Event], None],
        pinned: Callable[[int, IntervalPinned], None],
    ) -> None:
        self.step: int | None = None
        self.kept: int | None = None
        self.last: LastMessage | None = None
        self.trained_seconds = 0.0
        self._settings = study.settings
        self._repository = study.impatient
        self._claim = claim
        self._queue = queue
        self._waiting = waiting
        self._tell = tell
        self._pinned = pinned
        self._search = TrialSearch(study, claim, queue, waiting)
        self._unreported: Notice | None = None
        self._process: tuple[int, Isolation] = (study.worker.pid, "inline")

    def started(self, pid: int, isolation: Isolation) -> None:
        """Note which process the trial is."""
        self._process = (pid, isolation)
        self._record_process(None)

    def handle(self, message: Message) -> Suggested | Judged | None:
        """Write down one message of the trial; the answer, where it asked something.

        Raises:
            SupersededError: The attempt is no longer the trial's current one.
            SweeperError: The database has a fault that does not pass.
            GarbledError: No trial sends such a message.
        """
        self._queue.check()
        self.report_findings()
        number, tell = self._claim.number, self._tell
        match message:
            case Suggest() | Judge():
                return self._search.answer(message)
            case Surroundings():
                self._write(lambda _again: self._surroundings(message))
            case Started():
                self._started(message)
            case Preparing() | StepsReached():
                self.step = message.step if isinstance(message, StepsReached) else self.step
                tell(progress_of(message, number))
            case EpochsEnded():
                self._epochs_ended(message)
            case CheckpointCommitted() | CheckpointDeleted() | IntervalPinned():
                self._checkpoints_changed(message)
            case Warned():
                tell(Notice(f"trial {number}: {message.message}"))
            case Finished() | PrunedHere() | PausedHere() | StoppedHere() | Failed():
                self.last = message
            case _:
                msg = f"trial {number} sent {message!r}, which only a worker sends"
                raise GarbledError(msg)
        return None

    def epoch_reported(self) -> None:
        """An epoch was given to the write queue."""

    def _checkpoints_changed(
        self, message: CheckpointCommitted | CheckpointDeleted | IntervalPinned
    ) -> None:
        token, repository = self._claim.token, self._repository
        match message:
            case CheckpointCommitted():
                self.kept = message.step
                record = CheckpointRecord(
                    message.step, message.epoch, message.digest, message.bytes, message.path
                )
                self._write(lambda _again: repository.record_checkpoint(token, record))
                self._tell(
                    CheckpointKept(
                        self._claim.number,
                        message.step,
                        message.bytes,
                        message.seconds,
                        message.stalled_seconds,
                    )
                )
            case CheckpointDeleted():
                self._write(lambda _again: repository.forget_checkpoint(token, message.path))
            case IntervalPinned():
                self._write(lambda _again: self._pinned(token, message))

    def report_findings(self) -> None:
        """Report what the queue's thread found out; a listener's own errors are not for it."""
        found, self._unreported = self._unreported, None
        if found is not None:
            self._tell(found)

    def _write(self, write: Callable[[bool], object]) -> None:
        self._queue.write(Entry(write), self._waiting)

    def _record_process(self, start_step: int | None) -> None:
        token, (pid, isolation) = self._claim.token, self._process
        self._write(
            lambda _again: self._repository.record_process(token, pid, isolation, start_step)
        )

    def _started(self, message: Started) -> None:
        self.step = message.start_step
        self.kept = message.start_step or None
        self.trained_seconds = message.trained_seconds
        self._record_process(message.start_step)
        self._tell(
            TrainingStarted(
                self._claim.number,
                dict(self._search.params),
                self._claim.epochs or self._settings.epochs,
                message.steps_per_epoch,
                message.start_step,
                message.start_epoch,
            )
        )
        population = population_of(self._settings.budget)
        if population is not None:
            check_perturbed(population, self._search.params)
        unused = self._search.not_asked_for()
        if unused is not None:
            self._tell(Notice(unused))

    def _surroundings(self, message: Surroundings) -> None:
        """Keep the attempt's fingerprint, and have it reported what differs from the one before."""
        claim = self._claim
        before = self._repository.record_fingerprint(claim.token, message.fingerprint)
        if before is None:
            return
        changed = differences(before, message.fingerprint)
        if changed:
            self._unreported = Notice(
                f"trial {claim.number} resumes in another environment than it began in: {'; '.join(changed)}; "
                "its result may differ in the last bits from an undisturbed one's"
            )

    def _epochs_ended(self, message: EpochsEnded) -> None:
        settings, values = self._settings, {}
        if not settings.further_objectives:
            # Optuna knows intermediate values of one objective only.
            values = {
                record.epoch: record.metrics[settings.objective]
                for record in message.epochs
                if settings.objective in record.metrics
            }
        entry = _Epochs.of(self._repository, self._claim.token, tuple(message.epochs), values)
        self._queue.write(entry, self._waiting)
        self.step = message.step
        self.epoch_reported()
        if message.seconds is not None and message.epochs:
            last = message.epochs[-1]
            self._tell(
                EpochFinished(
                    self._claim.number, last.epoch, message.step, last.metrics, message.seconds
                )
            )
