"""Worker slot: claims a trial, supervises its process, closes its attempt, audits it, and claims the next.

Only the supervisor of an attempt communicates with both sides: the trial process, which makes requests
and reports, and the repository, which refuses the writes of an attempt that is no longer current.

All reports go through the attempt's write queue, so the trial continues to train while the database is
unreachable. Requests must wait for the database, because the trial needs the answers.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sweeper.db.repository import Claim, DecidedRung, Proposal, Waiting
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.space import CategoricalChoice
from sweeper.errors import (
    DatabaseUnavailableError,
    DefinitionError,
    ExecutionError,
    IndependenceError,
    ParameterError,
    SupersededError,
    SweeperError,
    TrialError,
)
from sweeper.files.uses import TrialUses, in_a_run, uses_from_json
from sweeper.records.events import AttemptEnded, AttemptStarted, CheckpointKept, Notice, Remark
from sweeper.records.findings import Finding
from sweeper.records.results import CheckpointRecord, EpochRecord, ErrorKind
from sweeper.run.launch import trial_process
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import GarbledError
from sweeper.run.worker import outcomes
from sweeper.run.worker.checkpoints import bring_files, locate, newest_local_step, origin_of
from sweeper.run.worker.context import SlotContext, StudyAccess
from sweeper.run.worker.database_health import WriteQueue
from sweeper.run.worker.gpus import SlotDevice
from sweeper.run.worker.left_files import left_behind, without_own_output
from sweeper.search.sampling import SearchSession, of_configurations, open_search
from sweeper.search.spaces import Observation
from sweeper.support.shown import shown_error
from sweeper.train.fingerprint import differences
from sweeper.train.randomness.seeds import TrialSeeds

_CLOSE_TIMEOUT = 10.0
"""Seconds for which an attempt's end waits for an unreachable database after a request to stop."""
_CLOSE_TIMEOUT_AT_KILL = 5.0  # the same after a request to kill; longer than a slow answer takes
_SILENT_WAIT = 5.0
"""Seconds for which a slot waits for other trials without a notice: the end of every sweep is such a wait."""
_PROPOSAL_INTERVAL = 0.2
"""Seconds between two queries whether lower trials have requested their parameters."""
_KILLED = "killed on request"
_LONGEST_NAME = 40
"""Characters of a study's name in `Trial.run_id`; trackers allow 64 or more in all."""
_FAILING_EARLY = 2
"""Trials that fail alike before their first step, after which the run ends: they show that the cause is not the
parameters of one, and a third shows no more."""


Audit = Callable[[SlotContext, Claim, SlotDevice], None]
"""Audits a trial that has just ended in a slot, if its turn has come."""


def serve_slot(context: SlotContext, audit: Audit | None = None) -> None:
    """Run trials one after another until none is left, or a stop is requested.

    An error in one slot stops the other slots, too, each at a checkpoint of its trial.
    """
    try:
        _serve(context, audit)
    except BaseException as error:
        context.abort(error)
        raise


def _serve(context: SlotContext, audit: Audit | None) -> None:
    device = next(context.devices)
    with context.leases:
        reported = ""
        began_to_wait = None
        while not context.stopping.is_set():
            if context.awaits_first_step:
                with context.attempt_ended:
                    context.attempt_ended.wait(0.1)
                continue
            # All tries use one key, so that a claim whose answer was lost is found again.
            claim_next = partial(_next, context, device, uuid.uuid4().hex)
            try:
                claim = context.ask(claim_next)
                if claim is None:
                    return
                if isinstance(claim, Waiting):
                    began_to_wait = began_to_wait or time.monotonic()
                    # Trials of other workers notify nobody here, so the wait is short.
                    with context.attempt_ended:
                        context.attempt_ended.wait(0.5)
                    if time.monotonic() - began_to_wait > _SILENT_WAIT and claim.reason != reported:
                        reported = claim.reason
                        context.report(Remark(f"a worker waits: {claim.reason}"))
                    continue
                began_to_wait = None
                supervisor = AttemptSupervisor(context, claim, device)
                try:
                    supervisor.run()
                finally:
                    with context.attempt_ended:
                        context.attempt_ended.notify_all()
                last = supervisor.last
                if audit and isinstance(last, messages.Finished) and last.outcome != "paused":
                    audit(context, claim, device)
            except SweeperError as error:
                context.abort(error)


def _next(context: SlotContext, device: SlotDevice, key: str) -> Claim | Waiting | None:
    for lost in context.leases.release_lost():
        context.report(AttemptEnded(lost.trial, lost.attempt, "lost"))
    study = context.study
    return study.repository_with_short_timeout.claim(
        study.settings.name,
        study.worker,
        lambda position: TrialSeeds(study.settings.seed, position).root,
        worker_key=context.worker_row.key,
        devices=device.visible,
        lease_seconds=context.worker_row.lease_seconds,
        key=key,
        fingerprint=study.fingerprint,
        changes=study.changes,
    )


class _CutShortError(Exception):
    """The trial's process is to be killed, for the reason in the message."""


class AttemptSupervisor(trial_process.TrialSupervisor):
    """Supervisor of one attempt, from its claim to its end in the database.

    ``last`` is the trial's last message as it was judged at the end; None before that.
    """

    def __init__(self, context: SlotContext, claim: Claim, device: SlotDevice) -> None:
        self._context = context
        self._study = context.study
        self._repository = context.study.repository_with_short_timeout
        self._claim = claim
        self._device = device
        self._lease_lost = context.leases.hold(claim.token)
        self._queue = WriteQueue(f"sweeper-trial-{claim.number}", context.health)
        self._recorder = AttemptRecorder(context, claim, self._queue, self._check_waiting)
        self.last: messages.LastMessage | None = None
        self._stop_sent = False
        self._clock = outcomes.TrialClock(context.study.settings.time_limit)
        self._overran: float | None = None

    def run(self) -> None:
        """Run the attempt and close it, as interrupted if something other than the trial failed."""
        try:
            self._run()
        except SupersededError as error:
            number = self._claim.number
            report = self._context.report
            report(AttemptEnded(number, self._claim.attempt, "lost"))
            seconds = self._context.worker_row.lease_seconds
            report(
                Notice(
                    f"another worker has taken trial {number}, because this one did not renew its "
                    f"lease for {seconds:g} s; its process is stopped ({error})"
                )
            )
        finally:
            self._context.starting.discard(self._claim.number)
            self._queue.close()
            self._context.leases.release(self._claim.token)

    def started(self, pid: int, isolation: trial_process.Isolation) -> None:
        self._recorder.record_process(pid, isolation)

    def handle(self, message: messages.Message) -> messages.Answered | None:
        return self._recorder.record(message)

    def stop_requested(self, *, inside: bool = False) -> bool:
        """Return whether the trial should stop; with ``inside``, raise an error where it should be killed."""
        if inside and self._context.killing.is_set():
            raise _CutShortError(_KILLED)
        return (
            self._context.stopping.is_set()
            or self._lease_lost.is_set()
            or self._context.health.given_up
        )

    def poll(self, process: trial_process.TrialProcess) -> float:
        """Stop or kill the trial if its lease, the time limit or a request to stop requires it."""
        self._check_lease()
        self._queue.check()
        self._overran = self._overran or self._clock.overran(self._recorder.trained_seconds)
        if self._context.killing.is_set() or self._overran is not None:
            process.kill()
        elif self.stop_requested() and not self._stop_sent:
            self._stop_sent = True
            trial_process.send(process, messages.Stop())
        return trial_process.POLL_INTERVAL

    def _run(self) -> None:
        context = self._context
        claim = self._claim
        if context.stopping.is_set():
            # The request came while the trial was claimed.
            self._close(outcomes.AttemptEnd("interrupted", error="stopped before it began"))
            return
        kills_before = outcomes.out_of_memory_kills()
        try:
            context.starting.add(claim.number)
            context.report(AttemptStarted(claim.number, claim.attempt))
            self._make_directory()
            status = self._run_process()
            while self._recorder.decision == "again":
                self._restart()
                status = self._run_process()
        except GarbledError as error:
            self._recorder.last = messages.Failed(f"{type(error).__name__}: {error}")
            status = trial_process.ExitStatus(None)
        except SupersededError:
            raise
        except _CutShortError as reason:
            self._close(outcomes.AttemptEnd("interrupted", error=str(reason)))
            return
        except BaseException as error:
            # An open attempt would count as running until this process ends.
            kind: ErrorKind | None = "other" if isinstance(error, Exception) else None
            self._close(
                outcomes.AttemptEnd("interrupted", error=shown_error(error), error_kind=kind)
            )
            raise
        # A process that died may not have told of its newest checkpoint.
        self._recorder.saw(
            newest_local_step(self._study.paths.checkpoints(claim.number, claim.attempt))
        )
        self._conclude(
            outcomes.Death(
                status,
                requested=context.killing.is_set(),
                ran_out=status.killed and outcomes.out_of_memory_kills() > kills_before,
                overran=self._overran,
                trained=bool(self._recorder.step),
                kept=self._recorder.kept,
            )
        )

    def _run_process(self) -> trial_process.ExitStatus:
        """Run the trial's process, or the trial in this one, to its last message."""
        assignment = self._assignment()
        runner = self._context.runner
        if callable(runner):
            self.started(self._study.worker.pid, "inline")
            runner(assignment, self)
            return trial_process.ExitStatus(0)
        status = trial_process.supervise_messages(runner, assignment, self)
        if self._recorder.last is None:
            self._queue.check()
        return status

    def _restart(self) -> None:
        """Run the factories in a new process, with other draws or seeds: nothing has trained yet."""
        proposal = self._recorder.proposal
        self._claim = replace(
            self._claim,
            params=self._claim.params if proposal.proposals else {},
            redraws=proposal.redraws,
            proposals=proposal.proposals,
        )
        self._recorder = AttemptRecorder(
            self._context, self._claim, self._queue, self._check_waiting
        )

    def _check_waiting(self) -> None:
        """Raise an error if the trial should no longer wait for the database."""
        context = self._context
        self._check_lease()
        if context.killing.is_set():
            raise _CutShortError(_KILLED)
        if context.health.given_up or (context.stopping.is_set() and context.health.away_for):
            raise _CutShortError("stopped while it waited for the unreachable database")

    def _check_lease(self) -> None:
        if self._lease_lost.is_set():
            raise SupersededError("its lease expired without renewal")

    def _conclude(self, death: outcomes.Death) -> None:
        context = self._context
        claim = self._claim
        # Checks come before `end_of`, because each may turn a finished trial into a failed one. Notices and
        # errors follow `_close`, because the end has to be stored before the run may stop.
        log = self._study.paths.log(claim.number, claim.attempt)
        self.last = self._recorder.last
        if isinstance(self.last, messages.Failed) and self.last.of_study and self._has_succeeded():
            self.last = replace(self.last, of_study=False)
        self._check_dependence()
        completed = isinstance(self.last, messages.Finished) and self.last.outcome == "complete"
        if completed and not self._study.settings.repeating.is_single:
            differs = self._queue.ask(
                lambda: self._repository.other_parameters(claim.study, claim.number),
                self._check_closing,
            )
            if differs is not None:
                self.last = messages.Failed(f"ParameterError: {differs}")
        end = outcomes.end_of(claim, self._study.settings, self.last, death, log)
        if self._recorder.decision == "reuse" and isinstance(self.last, messages.StoppedHere):
            end = outcomes.AttemptEnd("reused", reuses=self._recorder.proposal.of)
        self._close(end)
        if end.notice is not None:
            context.report(Notice(end.notice))
        if end.stops is not None:
            raise end.stops
        if end.result == "failed" and context.fail_fast:
            line = (end.error or "").strip().splitlines()[-1]
            raise TrialError(
                f"trial {claim.number} failed, and the others were stopped because of "
                f"--fail-fast: {line}. `sweeper resume {claim.study}` resumes them, and `sweeper "
                f"retry {claim.study} {claim.number}` gives it another attempt"
            )
        if end.result == "failed":
            self._check_alike(early=not death.trained)

    def _check_alike(self, *, early: bool) -> None:
        """Raise an error if all trials so far failed alike; two are enough before any has trained a step."""
        context = self._context
        study = self._claim.study
        context.failed_early = context.failed_early or early
        least = self._study.settings.failing_alike
        early = early and not context.trained
        if least:
            needed = min(_FAILING_EARLY, least) if early else least
            failure = context.ask(lambda: self._repository.failing_alike(study, needed))
            if failure is not None:
                raise outcomes.all_fail_alike(study, *failure, early=early)

    def _check_dependence(self) -> None:
        """Close the attempt and raise an error if the trial depends on another one by a file."""
        if (dependence := self._recorder.dependence(self._check_closing)) is not None:
            text = f"IndependenceError: {dependence}"
            self._close(outcomes.AttemptEnd("interrupted", error=text, error_kind="mistake"))
            raise IndependenceError(dependence)

    def _has_succeeded(self) -> bool:
        """Return whether a trial of the study has a value, so that the definition is not the cause."""
        status = self._context.ask(lambda: self._repository.status(self._claim.study, each=False))
        return bool(status.complete or status.pruned or status.paused)

    def _close(self, end: outcomes.AttemptEnd) -> None:
        """Write all queued entries and the attempt's end, and wait until they are written.

        If the database is unreachable for too long, the attempt stays open until its lease ends.
        """
        claim = self._claim
        if end.end_step is None:
            end = replace(end, end_step=self._recorder.step)

        tried = False

        def finish() -> tuple[DecidedRung, ...]:
            # The answer to an earlier try may have been lost after it was committed.
            nonlocal tried
            is_repeated = tried
            tried = True
            return self._repository.finish(claim.token, end, again=is_repeated)

        # A queue that has failed writes nothing more, so the end is written without it.
        broken = self._queue.broken
        decided = finish() if broken else self._queue.ask(finish, self._check_closing)
        self._recorder.report_findings()
        line = None
        if end.error is not None and end.stops is None:  # otherwise the run reports it
            line = end.error.strip().splitlines()[-1]
        self._context.report(
            AttemptEnded(
                claim.number,
                claim.attempt,
                end.outcome,
                end.value,
                line,
                end.reuses,
                over=end.result is not None,
            )
        )
        for rung in decided:
            self._context.report(outcomes.rung_event(rung))

    def _check_closing(self) -> None:
        """Raise an error if the attempt's end should no longer wait for the database."""
        context = self._context
        longest = context.health.limit
        if context.stopping.is_set():
            timeout = _CLOSE_TIMEOUT
            if context.killing.is_set():
                timeout = _CLOSE_TIMEOUT_AT_KILL
            longest = min(longest, timeout)
        if context.health.away_for > longest:
            raise DatabaseUnavailableError(
                f"{context.health.error()}; the end of the attempt at trial {self._claim.number} "
                "could not be stored, so it counts as running until its lease expires or this "
                "process ends"
            )

    def _make_directory(self) -> None:
        """Create the attempt's directory; an error of the disk stops the worker, not the trial alone."""
        directory = self._study.paths.attempt(self._claim.number, self._claim.attempt)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExecutionError(
                f"the directory {directory} cannot be made: {error}; make its parent writable, or "
                "give another place with --runs-dir"
            ) from error

    def _assignment(self) -> messages.Assignment:
        claim = self._claim
        settings = self._study.settings
        if claim.epochs is not None:
            settings = replace(settings, epochs=claim.epochs)
        if claim.extended:
            settings = replace(settings, pruner=None)
        origin = origin_of(claim, settings.seed)
        # A trial that starts again under another definition is another run.
        suffix = f"-{claim.ignore_checkpoints_through}" if claim.ignore_checkpoints_through else ""
        return replace(
            messages.assignment_of(
                settings,
                self._study.paths,
                claim.number,
                claim.attempt,
                ignore_checkpoints_through=claim.ignore_checkpoints_through,
                proposals=claim.proposals,
            ),
            known=self._known_checkpoints(),
            enqueued=self._enqueued(),
            pause_after=claim.pause_after,
            devices=self._device.visible,
            memory_limit=self._device.memory,
            origin=origin,
            run_id=f"{claim.study[:_LONGEST_NAME]}-{origin.identity[:8]}-{claim.number}{suffix}",
        )

    def _enqueued(self) -> dict[str, bool]:
        """Return the names of the trial's enqueued values, and whether another trial has suggested them."""
        enqueued = self._recorder.search.given
        if not enqueued:
            return {}
        trials = self._context.ask(lambda: self._repository.status(self._claim.study)).trials
        suggested: set[str] = set()
        for trial in trials:
            if trial.number != self._claim.number:
                suggested.update(trial.params)
        return {name: name in suggested for name in enqueued}

    def _known_checkpoints(self) -> tuple[str, ...]:
        """Return the present paths of the trial's stored checkpoints; none if it starts or restarts."""
        context = self._context
        study = self._study
        claim = self._claim
        if claim.attempt == claim.ignore_checkpoints_through + 1:
            return ()
        record = context.ask(lambda: self._repository.trial(study.settings.name, claim.number))
        located = locate(record, study.paths)
        context.report_checkpoints(record, located)
        if located.newest is not None:
            bring_files(located.newest, study.paths.trial_files(claim.number))
        if located.moved or located.gone:
            self._queue.write(
                lambda: self._repository.move_checkpoints(claim.token, located.moved, located.gone),
                self._check_waiting,
            )
        return located.known


@dataclass
class TrialSearch:
    """Search of one attempt, which answers its requests.

    ``waiting`` is called a few times a second while waiting for an answer; its error ends the wait. ``params``
    are the trial's parameters so far, including those of earlier attempts.
    """

    study: StudyAccess
    claim: Claim
    queue: WriteQueue
    waiting: Callable[[], None]
    _opened: SearchSession | None = None

    def __post_init__(self) -> None:
        self._repository = self.study.repository_with_short_timeout
        self.params: dict[str, CategoricalChoice] = dict(self.claim.params)
        self._configuration = self.study.settings.repeating.index_of(self.claim.number)

    def answer(self, question: messages.Suggest | messages.Judge) -> messages.Answered:
        try:
            if isinstance(question, messages.Suggest):
                return self._suggest(question)
            return self._judge(question)
        except ParameterError as error:
            return messages.Answered(None, error=str(error))

    @property
    def given(self) -> Mapping[str, CategoricalChoice]:
        """Return the values that ``enqueue`` gives to the trial."""
        number = self._configuration
        enqueue = self.study.search.enqueue
        return enqueue[number] if number < len(enqueue) else {}

    def not_asked_for(self) -> str | None:
        """Return a warning about enqueued values that the built trial does not use, or None."""
        drawn = [repr(n) for n, v in self.given.items() if self.params.get(n, v) != v]
        if drawn:
            return (
                f"trial {self.claim.number} keeps {', '.join(drawn)} of an earlier attempt, and not of "
                f"enqueue[{self._configuration}]; run the study anew for that (--fresh)"
            )
        unused = [repr(name) for name in self.given if name not in self.params]
        if not unused:
            return None
        return (
            f"enqueue[{self._configuration}] gives {', '.join(unused)}, which trial {self.claim.number} did not suggest; "
            f"it suggested {', '.join(map(repr, self.params)) or 'nothing'}"
        )

    def _suggest(self, question: messages.Suggest) -> messages.Answered:
        """Draw and store a parameter, or return the value that an earlier attempt stored."""
        params = self.claim.params
        try:
            drawn = self._session().suggest(question.name, question.distribution)
        except ParameterError:
            if question.name not in params:
                raise
            # The range may have changed since, and the stored value counts.
            drawn = params[question.name]
        answer = self.queue.ask(lambda: self._stored(question, drawn), self.waiting)
        if answer.error is None:
            self.params[question.name] = answer.value
        return answer

    def _judge(self, question: messages.Judge) -> messages.Answered:
        """Return whether the study's pruner ends the trial; the pruner's error fails the trial.

        The pruner decides only before the study's number of epochs, because it compares the trial
        with others up to there.
        """
        if question.values[-1][0] + 1 >= self.study.settings.epochs:
            return messages.Answered(False)
        session = self._session()
        try:
            return messages.Answered(session.judge(question.values))
        except DefinitionError as error:
            return messages.Answered(None, error=str(error))
        except Exception as error:
            epoch, value = question.values[-1]
            msg = (
                f"the pruner raised {shown_error(error)}, when it was asked about "
                f"epoch {epoch + 1} with the objective {value}; check the arguments with which it "
                "was made"
            )
            return messages.Answered(None, error=msg)

    def _session(self) -> SearchSession:
        """Return the session, which is kept, because a pruner decides after each epoch."""
        if self._opened is None:
            study = self.study
            foreign: tuple[ForeignObservation, ...] = ()
            if study.search.window is not None:
                foreign = self.queue.ask(
                    lambda: self._repository.foreign_observations(self.claim.study), self.waiting
                )
            self._opened = open_search(
                study.search,
                self._configuration,
                self._seen(),
                study.replayed_attributes,
                redraws=self.claim.redraws,
                foreign=foreign,
            )
        return self._opened

    def _seen(self) -> tuple[Observation, ...]:
        """Return the finished trials, or configurations, on which the search depends."""
        claim = self.claim
        window = self.study.search.window
        if window is None:
            return ()
        below = max(0, self._configuration - window + 1)
        limit = self.study.settings.repeating.number(below, 0)
        trials = self.queue.ask(
            lambda: self._repository.finished_before(claim.study, limit), self.waiting
        )
        return of_configurations(trials, self.study.settings.repeating)

    def _stored(self, question: messages.Suggest, drawn: CategoricalChoice) -> messages.Answered:
        record = self._repository.record_parameter
        token = self.claim.token
        try:
            return messages.Answered(record(token, question.name, question.distribution, drawn))
        except ParameterError as error:
            return messages.Answered(None, error=str(error))


_TRAIN = Proposal("train")

_MOST_EPOCHS = 100
"""Maximum number of epochs in one transaction."""


@dataclass
class AttemptRecorder:
    """Recorder of one attempt's messages; ``waiting`` is as in `TrialSearch`.

    Attributes:
        step: The last step that the trial reported.
        kept: The step of its newest checkpoint, including those of earlier attempts.
        last: Its last message; None before that.
        trained_seconds: Seconds of training in the checkpoint from which it resumed.
        proposal: The decision on its parameters; to train if it resumes.
    """

    context: SlotContext
    claim: Claim
    queue: WriteQueue
    waiting: Callable[[], None]
    step: int | None = None
    kept: int | None = None
    last: messages.LastMessage | None = None
    trained_seconds: float = 0.0
    proposal: Proposal = _TRAIN
    _unwritten: list[EpochRecord] = field(default_factory=list)
    _unreported: Notice | None = None
    _files: Mapping[str, Any] = field(default_factory=dict)
    _file_findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        study = self.context.study
        self._settings = study.settings
        self._repository = study.repository_with_short_timeout
        self._report = self.context.report
        self.search = TrialSearch(study, self.claim, self.queue, self.waiting)
        self._process: tuple[int, trial_process.Isolation] = (study.worker.pid, "inline")

    @property
    def decision(self) -> str:
        return self.proposal.decision

    def record_process(self, pid: int, isolation: trial_process.Isolation) -> None:
        self._process = (pid, isolation)
        self._record_start(None)

    def record(self, message: messages.Message) -> messages.Answered | None:
        """Record one message of the trial; return the answer if it is a request."""
        self.queue.check()
        self.report_findings()
        if isinstance(message, messages.Suggest | messages.Judge):
            return self.search.answer(message)
        if isinstance(message, messages.Propose):
            self.proposal = self._proposed(alone=message.reads_number)
            self._report_space()
            return messages.Answered(self.decision == "train")
        self._note(message)
        claim = self.claim
        epochs = self.claim.epochs or self._settings.epochs
        if self.step:
            self.context.trained = True
            self.context.starting.discard(claim.number)
        event = trial_process.progress_of(message, claim.number, self.search.params, epochs)
        if event is not None:
            self._report(event)
        if isinstance(message, messages.Warned):
            self._report(Notice(f"trial {claim.number}: {message.message}"))
        return None

    def _note(self, message: messages.Message) -> None:
        match message:
            case messages.EnvironmentReport(fingerprint=fingerprint):
                self._write(lambda: self._record_environment(fingerprint))
            case messages.Started():
                self._started(message)
            case messages.StepsReached():
                self.step = message.step
            case messages.EpochsEnded():
                self._unwritten.extend(message.epochs)
                self._write(self._write_epochs)
                self.step = message.step
            case messages.CheckpointCommitted():
                self._checkpoint_committed(message)
            case messages.CheckpointDeleted(path=path):
                self._write(lambda: self._repository.forget_checkpoint(self.claim.token, path))
            case messages.FilesUsed():
                self._files_used(message)
            case messages.Finished() | messages.StoppedHere() | messages.Failed():
                self.last = message
            case _ if not isinstance(message, messages.Preparing | messages.Warned):
                raise GarbledError(
                    f"trial {self.claim.number} sent {message!r}, which only a worker sends"
                )

    def saw(self, step: int) -> None:
        """Record that the attempt has a checkpoint of ``step`` on disk."""
        if step > (self.kept or 0):
            self.kept = step
            self.step = max(self.step or 0, step)

    def _proposed(self, *, alone: bool) -> Proposal:
        """Return the decision on the trial's parameters, as soon as those of lower trials are known.

        ``alone`` is of a trial whose result depends on its number.
        """
        while True:
            proposal = self.queue.ask(
                lambda: self._repository.propose(self.claim.token, alone=alone), self.waiting
            )
            if proposal.decision != "wait":
                return proposal
            self.waiting()
            if self.context.stopping.wait(_PROPOSAL_INTERVAL):
                return replace(proposal, decision="leave")

    def _report_space(self) -> None:
        """Report a range that has changed since earlier runs, once: a range may depend on other parameters."""
        suggested = self.context.suggested
        names = self.search.params.keys() - suggested
        if not names:
            return
        first = not suggested
        suggested |= names
        claim = self.claim
        notices = self.queue.ask(
            lambda: self._repository.space_notices(claim.study, claim.number, names, first=first),
            self.waiting,
        )
        for notice in notices:
            self._report(Notice(notice))

    def _compare_first(self, environment: Mapping[str, Any]) -> None:
        """Warn once if the first two trials are validated on different samples, or two repeats begin with equal weights."""
        validation = environment.get("validation")
        initial = environment.get("initial")
        if validation is None and initial is None:
            return
        claim = self.claim
        repeating = self._settings.repeating
        other = 1 - claim.number
        if initial is not None:
            other = repeating.number(
                repeating.configuration_of(claim.number), 1 - repeating.repeat_of(claim.number)
            )
        attempts = self._repository.fingerprints(claim.study).get(other)
        others = attempts[-1][1] if attempts else {}
        other_rows = others.get("validation", {}).get("rows")
        if validation is not None and other_rows not in (None, validation["rows"]):
            self._unreported = Notice(
                f"{validation['at']}trials are validated on different samples, so their values cannot be "
                f"compared: {validation['factory']} returned different validation data for trials 0 and 1, "
                "without a parameter that asks for it; draw the split from a seed that does not depend "
                "on the trial, such as random_state=0"
            )
        if initial is not None and others.get("initial", {}).get("weights") == initial["weights"]:
            self._unreported = Notice(
                f"{initial['at']}repeats begin with the same weights, although each has its own seed: "
                f"{initial['factory']} sets a seed, or loads the weights. So their spread does not contain that "
                "of initial weights, and a difference between configurations looks more certain than it is; "
                "leave out keras.utils.set_random_seed(…) and the seeds of initializers"
            )

    def _files_used(self, message: messages.FilesUsed) -> None:
        self._files = without_own_output(message.files, self._repository.database.file)
        if not message.ended:  # otherwise `dependence` judges them, before the attempt is closed
            self._write(self._judge_files)

    def _checkpoint_committed(self, committed: messages.CheckpointCommitted) -> None:
        self.kept = committed.step
        record = CheckpointRecord(
            committed.step, committed.epoch, committed.digest, committed.bytes, committed.path
        )
        self._write(lambda: self._repository.record_checkpoint(self.claim.token, record))
        self._report(
            CheckpointKept(
                self.claim.number,
                committed.step,
                committed.bytes,
                committed.seconds,
                committed.stalled_seconds,
            )
        )

    def report_findings(self) -> None:
        """Report the notice of the queue's thread; the listener may raise, so that thread does not call it."""
        notice = self._unreported
        self._unreported = None
        if notice is not None:
            self._report(notice)
        findings = self._file_findings
        self._file_findings = []
        for finding in findings:
            about = (finding.level, finding.subject)
            if finding.level != "error" and about not in self.context.reported_files:
                self.context.reported_files.add(about)
                self._report(Notice(finding.message))

    def _judge_files(self, *, ended: bool = False) -> list[Finding]:
        """Store the files that the trial used, and compare them with those of other trials."""
        claim = self.claim
        files = self._files
        stored_uses = self._repository.record_files(claim.token, files)
        others = [
            TrialUses(
                f"trial {number}" if study == claim.study else f"trial {number} of {study!r}",
                uses_from_json(uses),
            )
            for study, number, uses in stored_uses
        ]
        trial = TrialUses(f"trial {claim.number}", uses_from_json(files))
        findings = list(in_a_run(trial, others))
        reported = any(study == claim.study and "told" in uses for study, _, uses in stored_uses)
        if ended and not reported:
            leftovers = [*left_behind(trial, cut="cut" in files)]
            findings += leftovers
            reported = not leftovers
        self._file_findings = findings
        if findings:
            noticed = {**files, "notices": [finding.message for finding in findings]}
            self._repository.record_files(
                claim.token, noticed if reported else {**noticed, "told": 1}
            )
        return findings

    def dependence(self, waiting: Callable[[], None]) -> str | None:
        """Return how the ended trial depends on another one by a file; None if that is not known."""
        if not self._files or self.queue.broken:
            return None
        findings = self.queue.ask(lambda: self._judge_files(ended=True), waiting)
        self.report_findings()
        return next((finding.message for finding in findings if finding.level == "error"), None)

    def _write(self, write: Callable[[], object]) -> None:
        self.queue.write(write, self.waiting)

    def _record_start(self, start_step: int | None) -> None:
        token = self.claim.token
        pid, isolation = self._process
        self._write(lambda: self._repository.record_process(token, pid, isolation, start_step))

    def _started(self, message: messages.Started) -> None:
        self.step = message.start_step
        self.kept = message.start_step or None
        self.trained_seconds = message.trained_seconds
        self._record_start(message.start_step)
        unused = self.search.not_asked_for()
        if unused is not None:
            self._report(Notice(unused))

    def _record_environment(self, fingerprint: Mapping[str, Any]) -> None:
        """Store the attempt's fingerprint, and note its differences from the previous attempt's."""
        previous = self._repository.record_fingerprint(self.claim.token, fingerprint)
        self._compare_first(fingerprint)
        changed = () if previous is None else differences(previous, fingerprint)
        if changed:
            self._unreported = Notice(
                f"trial {self.claim.number} resumes in a different environment: {'; '.join(changed)}; "
                "its result may differ in the last bits from that of an uninterrupted trial"
            )

    def _write_epochs(self) -> None:
        """Write the epochs that were reported until now, so that many that waited take one transaction."""
        settings = self._settings
        while self._unwritten:
            taken = self._unwritten[:_MOST_EPOCHS]
            records = {record.epoch: record for record in taken}
            values = {}
            if not settings.further_objectives:
                # Optuna supports intermediate values of one objective only.
                values = {
                    epoch: record.metrics[settings.objective]
                    for epoch, record in records.items()
                    if settings.objective in record.metrics
                }
            self._repository.record_epochs(self.claim.token, tuple(records.values()), values)
            # After the write, so that a repeated write contains the same epochs.
            del self._unwritten[: len(taken)]
