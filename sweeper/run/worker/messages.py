"""Handling of the messages of one attempt: answers to its requests, and records of its reports in order.

All reports go through the attempt's write queue, so the trial continues to train while the database is
unreachable. Requests must wait for the database, because the trial needs the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sweeper.db.repository import Claim
from sweeper.errors import DefinitionError, ParameterError
from sweeper.files.rules import FileFinding, TrialUses, in_a_run
from sweeper.files.uses import uses_from_json
from sweeper.records.events import CheckpointKept, Notice
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.run.launch.trial_process import Isolation, progress_of
from sweeper.run.protocol.channel import GarbledError
from sweeper.run.protocol.messages import (
    Answered,
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Failed,
    FilesUsed,
    Finished,
    Judge,
    LastMessage,
    Message,
    Preparing,
    Started,
    StepsReached,
    StoppedHere,
    Suggest,
    Surroundings,
    Warned,
)
from sweeper.run.worker.context import SlotContext, StudyAccess
from sweeper.run.worker.database_health import WriteQueue
from sweeper.search.repeats import of_configurations
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import Observation
from sweeper.spec.space import CategoricalChoice
from sweeper.train.fingerprint import differences


class TrialSearch:
    """Search of one attempt, which answers its requests.

    ``waiting`` is called a few times a second while waiting for an answer; its error ends the wait. ``params``
    are the trial's parameters so far, including those of earlier attempts.
    """

    def __init__(
        self,
        study: StudyAccess,
        claim: Claim,
        queue: WriteQueue,
        waiting: Callable[[], None],
    ) -> None:
        self.params: dict[str, CategoricalChoice] = dict(claim.params)
        self._study = study
        self._claim = claim
        self._repeating = study.settings.repeating
        self._configuration = self._repeating.index_of(claim.number)
        self._queue = queue
        self._waiting = waiting
        self._opened: SearchSession | None = None

    def answer(self, question: Suggest | Judge) -> Answered:
        """Return the answer to a request."""
        try:
            if isinstance(question, Suggest):
                return self._suggest(question)
            return self._judge(question)
        except ParameterError as error:
            return Answered(None, error=str(error))

    def not_asked_for(self) -> str | None:
        """Return a warning about enqueued values that the built trial has not requested, or None."""
        number, enqueue = self._configuration, self._study.search.enqueue
        given = enqueue[number] if number < len(enqueue) else {}
        unused = [repr(name) for name in given if name not in self.params]
        if not unused:
            return None
        return (
            f"enqueue[{number}] gives {', '.join(unused)}, which trial {self._claim.number} did not suggest; "
            f"it suggested {', '.join(map(repr, self.params)) or 'nothing'}"
        )

    def _suggest(self, question: Suggest) -> Answered:
        """Draw and store a parameter, or return the value that an earlier attempt stored."""
        drawn = self._session().suggest(question.name, question.distribution)
        answer = self._queue.ask(lambda: self._stored(question, drawn), self._waiting)
        if answer.error is None:
            self.params[question.name] = answer.value
        return answer

    def _judge(self, question: Judge) -> Answered:
        """Return whether the study's pruner ends the trial; the pruner's error fails the trial.

        The pruner decides only before the study's number of epochs, because it compares the trial
        with others up to there.
        """
        if question.values[-1][0] + 1 >= self._study.settings.epochs:
            return Answered(False)
        session = self._session()
        try:
            return Answered(session.judge(question.values))
        except DefinitionError as error:
            return Answered(None, error=str(error))
        except Exception as error:
            epoch, value = question.values[-1]
            msg = (
                f"the pruner raised {type(error).__name__}: {error}, when it was asked about "
                f"epoch {epoch + 1} with the objective {value}; check the arguments with which it "
                "was made"
            )
            return Answered(None, error=msg)

    def _session(self) -> SearchSession:
        """Return the session, which is kept, because a pruner is asked after each epoch."""
        if self._opened is None:
            study = self._study
            self._opened = open_search(
                study.search, self._configuration, self._seen(), study.replayed_attributes
            )
        return self._opened

    def _seen(self) -> tuple[Observation, ...]:
        """Return the finished trials, or configurations, on which the search depends."""
        claim, window = self._claim, self._study.search.window
        if window is None:
            return ()
        below = max(0, self._configuration - window + 1)
        before = self._repeating.number(below, 0)
        repository = self._study.impatient
        found = self._queue.ask(
            lambda: repository.finished_before(claim.study, before), self._waiting
        )
        return of_configurations(found, self._repeating)

    def _stored(self, question: Suggest, drawn: CategoricalChoice) -> Answered:
        record, token = self._study.impatient.record_parameter, self._claim.token
        try:
            return Answered(record(token, question.name, question.distribution, drawn))
        except ParameterError as error:
            return Answered(None, error=str(error))


_MOST_EPOCHS = 100
"""Maximum number of epochs in one transaction."""


class AttemptRecorder:
    """Recorder of one attempt's messages; ``waiting`` is as in `TrialSearch`.

    Attributes:
        step: The last step that the trial reported.
        kept: The step of its newest checkpoint, including those of earlier attempts.
        last: Its last message; None before that.
        trained_seconds: Seconds of training in the checkpoint from which it resumed.
    """

    def __init__(
        self, context: SlotContext, claim: Claim, queue: WriteQueue, waiting: Callable[[], None]
    ) -> None:
        study = context.study
        self.step: int | None = None
        self.kept: int | None = None
        self.last: LastMessage | None = None
        self.trained_seconds = 0.0
        self._settings = study.settings
        self._repository = study.impatient
        self._claim = claim
        self._queue = queue
        self._waiting = waiting
        self._tell = context.tell
        self._search = TrialSearch(study, claim, queue, waiting)
        self._unwritten: list[EpochRecord] = []
        self._unreported: Notice | None = None
        self._files: Mapping[str, Any] = {}
        self._file_findings: list[FileFinding] = []
        self._reported_files = context.reported_files
        self._process: tuple[int, Isolation] = (study.worker.pid, "inline")

    def record_process(self, pid: int, isolation: Isolation) -> None:
        """Record the trial's process."""
        self._process = (pid, isolation)
        self._record_start(None)

    def record(self, message: Message) -> Answered | None:
        """Record one message of the trial; return the answer if it is a request."""
        self._queue.check()
        self.report_findings()
        if isinstance(message, Suggest | Judge):
            return self._search.answer(message)
        self._note(message)
        claim, epochs = self._claim, self._claim.epochs or self._settings.epochs
        event = progress_of(message, claim.number, self._search.params, epochs)
        if event is not None:
            self._tell(event)
        if isinstance(message, Warned):
            self._tell(Notice(f"trial {claim.number}: {message.message}"))
        return None

    def _note(self, message: Message) -> None:
        match message:
            case Surroundings(fingerprint=fingerprint):
                self._write(lambda: self._surroundings(fingerprint))
            case Started():
                self._started(message)
            case StepsReached():
                self.step = message.step
            case EpochsEnded():
                self._unwritten.extend(message.epochs)
                self._write(self._write_epochs)
                self.step = message.step
            case CheckpointCommitted():
                self._checkpoint_committed(message)
            case CheckpointDeleted(path=path):
                self._write(lambda: self._repository.forget_checkpoint(self._claim.token, path))
            case FilesUsed():
                self._files_used(message)
            case Finished() | StoppedHere() | Failed():
                self.last = message
            case _ if not isinstance(message, Preparing | Warned):
                msg = f"trial {self._claim.number} sent {message!r}, which only a worker sends"
                raise GarbledError(msg)

    def _compare_validation(self, surroundings: Mapping[str, Any]) -> None:
        """Warn once if the first two trials are validated on different samples."""
        ours = surroundings.get("validation")
        if ours is None:
            return
        claim = self._claim
        other = self._repository.fingerprint_of(claim.study, 1 - claim.number)
        theirs = None if other is None else other.get("validation")
        if theirs is None or theirs["rows"] == ours["rows"]:
            return
        self._unreported = Notice(
            f"{ours['at']}trials are validated on different samples, so their values cannot be "
            f"compared: {ours['factory']} returned different validation data for trials 0 and 1, "
            "without a parameter that asks for it; draw the split from a seed that does not depend "
            "on the trial, such as random_state=0"
        )

    def _files_used(self, message: FilesUsed) -> None:
        self._files = message.files
        if not message.ended:  # otherwise `dependence` judges them, before the attempt is closed
            self._write(self._judge_files)

    def _checkpoint_committed(self, made: CheckpointCommitted) -> None:
        self.kept = made.step
        record = CheckpointRecord(made.step, made.epoch, made.digest, made.bytes, made.path)
        self._write(lambda: self._repository.record_checkpoint(self._claim.token, record))
        times = (made.seconds, made.stalled_seconds)
        self._tell(CheckpointKept(self._claim.number, made.step, made.bytes, *times))

    def report_findings(self) -> None:
        """Report the notice of the queue's thread; the listener may raise, so that thread does not call it."""
        found, self._unreported = self._unreported, None
        if found is not None:
            self._tell(found)
        findings, self._file_findings = self._file_findings, []
        for finding in findings:
            about = (finding.level, finding.path)
            if finding.level != "error" and about not in self._reported_files:
                self._reported_files.add(about)
                self._tell(Notice(finding.message))

    def _judge_files(self) -> list[FileFinding]:
        """Store the files that the trial used, and compare them with those of other trials."""
        claim, files = self._claim, self._files
        others = [
            TrialUses(
                f"trial {number}" if study == claim.study else f"trial {number} of {study!r}",
                uses_from_json(theirs),
                same=(study, number) == (claim.study, claim.number),
            )
            for study, number, theirs in self._repository.record_files(claim.token, files)
        ]
        trial = TrialUses(f"trial {claim.number}", uses_from_json(files))
        found = self._file_findings = list(in_a_run(trial, others))
        if found:
            noticed = {**files, "notices": [finding.message for finding in found]}
            self._repository.record_files(claim.token, noticed)
        return found

    def dependence(self, waiting: Callable[[], None]) -> str | None:
        """Return how the ended trial depends on another one by a file; None if that is not known."""
        if not self._files or self._queue.broken:
            return None
        found = self._queue.ask(self._judge_files, waiting)
        self.report_findings()
        return next((each.message for each in found if each.level == "error"), None)

    def _write(self, write: Callable[[], object]) -> None:
        self._queue.write(write, self._waiting)

    def _record_start(self, start_step: int | None) -> None:
        token, (pid, isolation) = self._claim.token, self._process
        self._write(lambda: self._repository.record_process(token, pid, isolation, start_step))

    def _started(self, message: Started) -> None:
        self.step = message.start_step
        self.kept = message.start_step or None
        self.trained_seconds = message.trained_seconds
        self._record_start(message.start_step)
        unused = self._search.not_asked_for()
        if unused is not None:
            self._tell(Notice(unused))

    def _surroundings(self, fingerprint: Mapping[str, Any]) -> None:
        """Store the attempt's fingerprint, and note its differences from the previous attempt's."""
        before = self._repository.record_fingerprint(self._claim.token, fingerprint)
        self._compare_validation(fingerprint)
        changed = () if before is None else differences(before, fingerprint)
        if changed:
            self._unreported = Notice(
                f"trial {self._claim.number} resumes in a different environment: {'; '.join(changed)}; "
                "its result may differ in the last bits from that of an uninterrupted trial"
            )

    def _write_epochs(self) -> None:
        """Write the epochs that were reported until now, so that many that waited take one transaction."""
        settings = self._settings
        while self._unwritten:
            taken = self._unwritten[:_MOST_EPOCHS]
            found = {record.epoch: record for record in taken}
            values = {}
            if not settings.further_objectives:
                # Optuna supports intermediate values of one objective only.
                values = {
                    epoch: record.metrics[settings.objective]
                    for epoch, record in found.items()
                    if settings.objective in record.metrics
                }
            self._repository.record_epochs(self._claim.token, tuple(found.values()), values)
            del self._unwritten[: len(taken)]
