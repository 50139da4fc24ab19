"""A worker slot: claims a trial, supervises its process, writes down what it says, claims the next.

The supervisor of an attempt is the only one that knows both sides: the trial process, which asks
and tells, and the repository, which refuses the writes of an attempt that is no longer current.
How an attempt ended is decided here, from the trial's last message or, where there was none, from
how its process died.
"""

from __future__ import annotations

from sweeper.errors import (
    CheckpointError,
    ExecutionError,
    ParameterError,
    SupersededError,
    SweeperError,
)
from sweeper.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Notice,
    StepsDone,
    TrainingStarted,
)
from sweeper.execution.channel import (
    Assignment,
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Failed,
    Finished,
    Message,
    Started,
    StepsReached,
    Stop,
    StoppedHere,
    Suggest,
    Suggested,
    Surroundings,
    Warned,
)
from sweeper.execution.isolation import ExitStatus, Isolation, Launcher, TrialProcess
from sweeper.execution.memory import out_of_memory_kills
from sweeper.execution.slots import SlotContext
from sweeper.results import CheckpointRecord, Outcome
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import Observation
from sweeper.space import CategoricalChoice
from sweeper.storage.repository import Claim, Waiting
from sweeper.training.fingerprint import differences
from sweeper.training.randomness import TrialSeeds

__all__ = ["AttemptSupervisor", "serve_slot"]

MOST_CRASHES = 3
"""A trial whose process has died so often fails; each time before, it goes on."""

_LOOK_AROUND = 0.1
"""Seconds between two looks at whether to stop, while a trial says nothing."""

_LAST_WORDS = 10.0
"""Seconds a trial process has, after its last message, to be gone by itself."""


def serve_slot(context: SlotContext) -> None:
    """Run trials one after another until none is left, or a stop is requested."""
    waited_for = ""
    while not context.stopping.is_set():
        try:
            for lost in context.repository.release_lost(context.settings.name):
                context.tell(AttemptEnded(lost.trial, lost.attempt, "lost"))
            claim = context.repository.claim(
                context.settings.name,
                context.worker,
                lambda number: TrialSeeds(context.settings.seed, number).root,
            )
            if claim is None:
                return
            if isinstance(claim, Waiting):
                if claim.reason != waited_for:
                    waited_for = claim.reason
                    context.tell(Notice(f"a worker waits: {claim.reason}"))
                context.wait_for_others(0.5)
                continue
            AttemptSupervisor(context, claim).run()
        except SweeperError as error:
            context.abort(error)
        except BaseException:
            context.stopping.set()
            raise
        finally:
            context.attempt_is_over()


class AttemptSupervisor:
    """One attempt, from its claim to its end in the database."""

    def __init__(self, context: SlotContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._search: SearchSession | None = None
        self._params: dict[str, CategoricalChoice] = dict(claim.params)
        self._step: int | None = None
        self._last: Finished | StoppedHere | Failed | None = None
        self._isolation: Isolation = "inline"
        self._pid = context.worker.pid
        self._told_to_stop = False

    def run(self) -> None:
        """Run the attempt and close it.

        Raises:
            BaseException: Something other than the trial failed: the database, the disk, the
                listener. The attempt is closed as interrupted where that is still possible.
        """
        context, claim = self._context, self._claim
        kills_before = out_of_memory_kills()
        assignment = self._assignment()
        runner = context.runner
        try:
            context.tell(AttemptStarted(claim.number, claim.attempt))
            self._make_directory()
            if callable(runner):
                context.repository.record_process(claim.token, self._pid, "inline", None)
                runner(assignment, self)
                status = ExitStatus(0)
            else:
                status = self._supervise(runner, assignment)
        except SupersededError as error:
            context.tell(Notice(f"trial {claim.number}: {error}"))
            return
        except BaseException as error:
            # Left open, the attempt would count as running for as long as this process lives.
            self._close("interrupted", error=f"{type(error).__name__}: {error}")
            raise
        self._conclude(status, ran_out=status.killed and out_of_memory_kills() > kills_before)

    def stop_requested(self) -> bool:
        """Whether the trial should stop at its next step; for a trial that runs inline."""
        return self._context.stopping.is_set()

    def hear(self, message: Message) -> Suggested | None:
        """Write down one message of the trial; the answer, where it asked something."""
        repository, token = self._context.repository, self._claim.token
        number = self._claim.number
        match message:
            case Suggest():
                return self._suggest(message)
            case Surroundings():
                self._surroundings(message)
            case Started():
                self._step = message.start_step
                repository.record_process(token, self._pid, self._isolation, message.start_step)
                self._context.tell(
                    TrainingStarted(
                        number,
                        dict(self._params),
                        self._context.settings.epochs,
                        message.steps_per_epoch,
                        message.start_step,
                        message.start_epoch,
                    )
                )
            case StepsReached():
                self._step = message.step
                self._context.tell(StepsDone(number, message.epoch, message.step))
            case EpochsEnded():
                self._epochs_ended(message)
            case CheckpointCommitted():
                record = CheckpointRecord(
                    message.step, message.epoch, message.digest, message.bytes, message.path
                )
                repository.record_checkpoint(token, record)
                self._context.tell(CheckpointKept(number, message.step, message.bytes))
            case CheckpointDeleted():
                repository.forget_checkpoint(token, message.path)
            case Warned():
                self._context.tell(Notice(f"trial {number}: {message.message}"))
            case Finished() | StoppedHere() | Failed():
                self._last = message
            case _:
                msg = f"trial {number} sent {message!r}, which only a worker sends"
                raise ExecutionError(msg)
        return None

    def _supervise(self, launcher: Launcher, assignment: Assignment) -> ExitStatus:
        self._isolation = launcher.isolation
        process = launcher.launch(assignment)
        try:
            self._pid = process.pid
            self._context.repository.record_process(
                self._claim.token, process.pid, launcher.isolation, None
            )
            self._listen(process)
            status = process.wait(_LAST_WORDS)
            if status is None:
                process.kill()
                status = process.wait(_LAST_WORDS)
            return status or ExitStatus(None)
        finally:
            process.kill()
            process.wait(_LAST_WORDS)
            process.channel.close()

    def _listen(self, process: TrialProcess) -> None:
        """Hear the trial out: to its last message, or to the end of the pipe."""
        while True:
            if self._context.killing.is_set():
                process.kill()
            elif self._context.stopping.is_set() and not self._told_to_stop:
                self._told_to_stop = True
                self._send(process, Stop())
            try:
                gone = process.wait(0) is not None
                message = process.channel.receive(0 if gone else _LOOK_AROUND)
            except (EOFError, OSError):
                return
            if message is None:
                if gone:
                    # Something that it started lives on and holds the pipe open.
                    return
                continue
            answer = self.hear(message)
            if answer is not None:
                self._send(process, answer)
            if self._last is not None:
                return

    def _send(self, process: TrialProcess, message: Message) -> None:
        """Send, unless the trial is gone: the end of its pipe will tell."""
        try:
            process.channel.send(message)
        except OSError:
            return

    def _suggest(self, question: Suggest) -> Suggested:
        repository, claim, spec = self._context.repository, self._claim, self._context.search
        try:
            if self._search is None:
                seen: tuple[Observation, ...] = ()
                if spec.window is not None:
                    seen = repository.finished_before(
                        claim.study, max(0, claim.number - spec.window + 1)
                    )
                self._search = open_search(spec, claim.number, seen)
            drawn = self._search.suggest(question.name, question.distribution)
            value = repository.record_parameter(
                claim.token, question.name, question.distribution, drawn
            )
        except ParameterError as error:
            return Suggested(None, error=str(error))
        self._params[question.name] = value
        return Suggested(value)

    def _surroundings(self, message: Surroundings) -> None:
        """Keep the attempt's fingerprint, and say what differs from the one before it."""
        claim = self._claim
        before = self._context.repository.record_fingerprint(claim.token, message.fingerprint)
        if before is None:
            return
        changed = differences(before, message.fingerprint)
        if changed:
            self._context.tell(
                Notice(
                    f"trial {claim.number} goes on elsewhere than it began: {'; '.join(changed)}; "
                    "its result may differ in the last bits from an undisturbed one's"
                )
            )

    def _epochs_ended(self, message: EpochsEnded) -> None:
        objective = self._context.settings.objective
        values = {
            record.epoch: record.metrics[objective]
            for record in message.epochs
            if objective in record.metrics
        }
        self._context.repository.record_epochs(self._claim.token, message.epochs, values)
        self._step = message.step
        if message.seconds is not None:
            last = message.epochs[-1]
            self._context.tell(
                EpochFinished(
                    self._claim.number, last.epoch, message.step, last.metrics, message.seconds
                )
            )

    def _conclude(self, status: ExitStatus, *, ran_out: bool) -> None:
        last = self._last
        if isinstance(last, Finished):
            self._close("complete", step=last.step, value=last.value, digest=last.digest)
        elif isinstance(last, StoppedHere):
            self._close("interrupted", step=last.step)
        elif isinstance(last, Failed):
            self._conclude_failure(last)
        elif self._context.killing.is_set():
            self._close("interrupted", error="killed on request")
        else:
            how = status.describe()
            if ran_out:
                how = "was killed by the kernel because memory ran out"
            elif status.killed:
                how += " (by someone with the right to; the kernel reports no lack of memory)"
            self._crashed(f"the trial's process {how}")

    def _conclude_failure(self, failed: Failed) -> None:
        error = f"{failed.traceback}\n{failed.error}" if failed.traceback else failed.error
        if failed.fault == "environment":
            self._close("interrupted", error=error)
            msg = f"trial {self._claim.number} had to stop, and can be resumed: {failed.error}"
            raise CheckpointError(msg)
        if failed.fault == "memory":
            self._crashed(f"the trial ran out of memory: {failed.error}", failed.traceback)
        else:
            self._close("failed", error=error)

    def _crashed(self, how: str, traceback: str = "") -> None:
        crashes = self._claim.crashes + 1
        final = crashes >= MOST_CRASHES
        log = self._context.paths.log(self._claim.number, self._claim.attempt)
        told = f"{how}; its output is in {log}"
        self._close("crashed", error=f"{traceback}\n{told}" if traceback else told, final=final)
        if not final:
            left = MOST_CRASHES - crashes
            again = f"it goes on from its newest checkpoint ({left} of {MOST_CRASHES} tries left)"
            self._context.tell(Notice(f"trial {self._claim.number}: {told}; {again}"))

    def _close(
        self,
        outcome: Outcome,
        *,
        step: int | None = None,
        value: float | None = None,
        digest: str | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> None:
        claim = self._claim
        self._context.repository.finish(
            claim.token,
            outcome,
            end_step=self._step if step is None else step,
            value=value,
            digest=digest,
            error=error,
            final=final,
        )
        line = None if error is None else error.strip().splitlines()[-1]
        self._context.tell(AttemptEnded(claim.number, claim.attempt, outcome, value, line))

    def _make_directory(self) -> None:
        """Make the attempt's directory, so that a disk that refuses it is no trial's fault."""
        directory = self._context.paths.attempt(self._claim.number, self._claim.attempt)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = (
                f"the directory {directory} cannot be made: {error}; make its parent writable, or "
                "give another place with --runs-dir"
            )
            raise ExecutionError(msg) from error

    def _assignment(self) -> Assignment:
        context, claim = self._context, self._claim
        settings, paths = context.settings, context.paths
        return Assignment(
            study=settings.name,
            number=claim.number,
            attempt=claim.attempt,
            seed=settings.seed,
            epochs=settings.epochs,
            objective=settings.objective,
            deterministic=settings.deterministic,
            threads=settings.threads,
            checkpoint_every=settings.checkpoint_every,
            files=str(paths.trial_files(claim.number)),
            log=str(paths.log(claim.number, claim.attempt)),
            checkpoints=tuple(
                str(paths.checkpoints(claim.number, attempt))
                for attempt in range(1, claim.attempt + 1)
            ),
        )
