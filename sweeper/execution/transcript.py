"""What one attempt's trial says, written down in the order in which it was said.

Everything goes through the attempt's journal: while the database is away, the trial trains on and
this waits. Only a question cannot wait, since the trial needs the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeper.events import CheckpointKept, EpochFinished, Notice, StepsDone, TrainingStarted
from sweeper.execution.asking import TrialSearch
from sweeper.execution.channel import (
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Failed,
    Finished,
    GarbledError,
    IntervalPinned,
    Judge,
    Judged,
    Message,
    PrunedHere,
    Started,
    StepsReached,
    StoppedHere,
    Suggest,
    Suggested,
    Surroundings,
    Warned,
)
from sweeper.execution.endings import LastMessage
from sweeper.execution.isolation import Isolation
from sweeper.execution.journal import Entry, Journal
from sweeper.execution.slots import SlotContext
from sweeper.results import CheckpointRecord, EpochRecord
from sweeper.storage.repository import Claim, Repository
from sweeper.training.fingerprint import differences

__all__ = ["Transcript"]

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


class Transcript:
    """Hears one attempt's trial out.

    Args:
        context: What the worker's slots share.
        claim: The attempt.
        journal: What is heard is written there.
        waiting: Called a few times a second while an answer is waited for; what it raises ends
            the waiting.

    Attributes:
        step: The last step that the trial told of.
        last: Its last message, once it has sent that.
        trained_seconds: Of training, in the checkpoint that it went on from.
    """

    def __init__(
        self,
        context: SlotContext,
        claim: Claim,
        journal: Journal,
        waiting: Callable[[], None],
    ) -> None:
        self.step: int | None = None
        self.last: LastMessage | None = None
        self.trained_seconds = 0.0
        self._context = context
        self._claim = claim
        self._journal = journal
        self._waiting = waiting
        self._repository = context.impatient
        self._search = TrialSearch(context, claim, journal, waiting)
        self._untold: Notice | None = None
        self._process: tuple[int, Isolation] = (context.worker.pid, "inline")

    def started(self, pid: int, isolation: Isolation) -> None:
        """Note which process the trial is."""
        self._process = (pid, isolation)
        self._record_process(None)

    def hear(self, message: Message) -> Suggested | Judged | None:
        """Write down one message of the trial; the answer, where it asked something.

        Raises:
            SupersededError: The attempt is no longer the trial's current one.
            SweeperError: The database has a fault that does not pass.
            GarbledError: No trial sends such a message.
        """
        self._journal.check()
        self.tell_what_was_found()
        number, tell = self._claim.number, self._context.tell
        match message:
            case Suggest() | Judge():
                return self._search.answer(message)
            case Surroundings():
                self._write(lambda _again: self._surroundings(message))
            case Started():
                self._started(message)
            case StepsReached():
                self.step = message.step
                tell(StepsDone(number, message.epoch, message.step))
            case EpochsEnded():
                self._epochs_ended(message)
            case CheckpointCommitted() | CheckpointDeleted() | IntervalPinned():
                self._checkpoints_changed(message)
            case Warned():
                tell(Notice(f"trial {number}: {message.message}"))
            case Finished() | PrunedHere() | StoppedHere() | Failed():
                self.last = message
            case _:
                msg = f"trial {number} sent {message!r}, which only a worker sends"
                raise GarbledError(msg)
        return None

    def _checkpoints_changed(
        self, message: CheckpointCommitted | CheckpointDeleted | IntervalPinned
    ) -> None:
        token, repository = self._claim.token, self._repository
        match message:
            case CheckpointCommitted():
                record = CheckpointRecord(
                    message.step, message.epoch, message.digest, message.bytes, message.path
                )
                self._write(lambda _again: repository.record_checkpoint(token, record))
                self._context.tell(CheckpointKept(self._claim.number, message.step, message.bytes))
            case CheckpointDeleted():
                self._write(lambda _again: repository.forget_checkpoint(token, message.path))
            case IntervalPinned():
                self._write(lambda _again: self._context.auditor.pinned(token, message))

    def tell_what_was_found(self) -> None:
        """Tell what the journal's thread found out; a listener's own errors are not for it."""
        told, self._untold = self._untold, None
        if told is not None:
            self._context.tell(told)

    def _write(self, write: Callable[[bool], object]) -> None:
        self._journal.write(Entry(write), self._waiting)

    def _record_process(self, start_step: int | None) -> None:
        token, (pid, isolation) = self._claim.token, self._process
        self._write(
            lambda _again: self._repository.record_process(token, pid, isolation, start_step)
        )

    def _started(self, message: Started) -> None:
        self.step = message.start_step
        self.trained_seconds = message.trained_seconds
        self._record_process(message.start_step)
        self._context.tell(
            TrainingStarted(
                self._claim.number,
                dict(self._search.params),
                self._context.settings.epochs,
                message.steps_per_epoch,
                message.start_step,
                message.start_epoch,
            )
        )
        unused = self._search.not_asked_for()
        if unused is not None:
            self._context.tell(Notice(unused))

    def _surroundings(self, message: Surroundings) -> None:
        """Keep the attempt's fingerprint, and have it told what differs from the one before."""
        claim = self._claim
        before = self._repository.record_fingerprint(claim.token, message.fingerprint)
        if before is None:
            return
        changed = differences(before, message.fingerprint)
        if changed:
            self._untold = Notice(
                f"trial {claim.number} goes on elsewhere than it began: {'; '.join(changed)}; "
                "its result may differ in the last bits from an undisturbed one's"
            )

    def _epochs_ended(self, message: EpochsEnded) -> None:
        settings, values = self._context.settings, {}
        if not settings.further_objectives:
            # Optuna knows intermediate values of one objective only.
            values = {
                record.epoch: record.metrics[settings.objective]
                for record in message.epochs
                if settings.objective in record.metrics
            }
        entry = _Epochs.of(self._repository, self._claim.token, tuple(message.epochs), values)
        self._journal.write(entry, self._waiting)
        self.step = message.step
        if message.seconds is not None and message.epochs:
            last = message.epochs[-1]
            self._context.tell(
                EpochFinished(
                    self._claim.number, last.epoch, message.step, last.metrics, message.seconds
                )
            )
