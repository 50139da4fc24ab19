"""Replay engine for trials and intervals, used by `check`, audits and `verify`.

A replay runs in an ordinary trial process over the ordinary channel, in a directory of its own, with
stored or newly drawn parameters. Its reports are kept for the comparison. It starts from the beginning
or from a checkpoint, and runs to its end or to a given checkpoint. It may be killed by SIGKILL, once or
several times; the next process then resumes it as any trial is resumed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.store import CheckpointStore
from sweeper.definition.definition import StudySettings
from sweeper.errors import CheckpointError, ExecutionError, Interrupted
from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    EpochFinished,
    Event,
    Notice,
    TrainingStarted,
)
from sweeper.records.results import EpochRecord, Outcome, Params
from sweeper.replay.reports import Lengths, StudyAuthors
from sweeper.run.launch.trial_process import (
    ExitStatus,
    Launcher,
    WithoutDatabase,
    converse,
    progress_of,
)
from sweeper.run.protocol.messages import (
    Assignment,
    CheckpointCommitted,
    EpochsEnded,
    Failed,
    FilesUsed,
    Finished,
    Judge,
    Message,
    Preparing,
    Replay,
    ReplayBuilt,
    Started,
    StepsReached,
    StoppedHere,
    Suggest,
    Surroundings,
    Warned,
    assignment_of,
)
from sweeper.search.spaces import to_text
from sweeper.spec.checkpointing import Every, describe_every
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.paths import Location, RunPaths

_LOG_LINES = 20
_AT_NO_STEP = describe_every(Every(steps=1 << 40))
"""Checkpoint interval of replays: only those of `Replay`, and the one at the end, are taken."""


class ReplayDiedError(ExecutionError):
    """A process of the replay ended too early.

    Attributes:
        how: How the process ended, such as ``"was killed by SIGSEGV"``.
        replayed: Report of the replay up to then.
    """

    def __init__(self, message: str, how: str, replayed: Replayed) -> None:
        super().__init__(message)
        self.how = how
        self.replayed = replayed


class Answering(Protocol):
    """Interface of the source of parameters for a replay's requests."""

    @property
    def values(self) -> Params: ...

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the value of ``name``.

        Raises:
            LookupError, ParameterError: There is none.
        """


@dataclass(frozen=True, slots=True)
class Answers:
    """Stored parameters of a trial, for a replay's requests.

    Attributes:
        asker: Name of the requesting process in messages.
    """

    values: Params
    distributions: Mapping[str, Distribution]
    asker: str = "replay"

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the stored value of ``name``.

        Raises:
            LookupError: The trial does not have it, or has it with another distribution.
        """
        asks = f"the {self.asker} asks for parameter {name!r}"
        if name not in self.values:
            msg = f"{asks}, which the trial does not have"
            raise LookupError(msg)
        stored = self.distributions[name]
        if to_text(stored) != to_text(distribution):
            msg = f"{asks} as {distribution}; in the trial it is {stored}"
            raise LookupError(msg)
        return self.values[name]


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of a replay.

    Attributes:
        checkpoint: The step of the checkpoint from which the next process resumes.
        after: The step after which the process is killed.
    """

    checkpoint: int
    after: int


@dataclass(frozen=True)
class ReplayOrder:
    """Order to run a trial, or an interval of it, again.

    Attributes:
        checkpoints: Step and number of finished epochs of each checkpoint to take; None for those after
            the first step and at each epoch's end.
        prune_after: The epoch after which the trial was pruned; None if it was not.
        kills: Kills of the replay's processes, in order. A checkpoint after a kill's is taken by the
            resumed process alone.
        seen: Receives each checkpoint of ``checkpoints`` before it is deleted.
        starts_from: The checkpoint to resume; None to start from the beginning.
        ends_at: Position of ``checkpoints`` at which the replay is ended; None to run to its end.
        devices: ``CUDA_VISIBLE_DEVICES`` of its processes; None to leave it unchanged.
        short: Whether long epochs and validations are shortened.
        when_stopped: Message of the error if the replay is stopped on request.
    """

    settings: StudySettings
    number: int
    answers: Answering
    checkpoints: tuple[tuple[int, int], ...] | None = ()
    prune_after: int | None = None
    kills: tuple[Kill, ...] = ()
    seen: Callable[[CheckpointCommitted], None] = lambda _: None
    starts_from: Location | None = None
    ends_at: tuple[int, int] | None = None
    devices: str | None = None
    short: bool = False
    when_stopped: str = "the replay was stopped"


@dataclass
class ReplayProcess:
    """One process of a replay.

    Attributes:
        start: Step at which training started; None if it did not start.
        started_after: Seconds from the launch to the first step; None if training did not start.
        seconds: Seconds from the launch to the end.
        bytes: Size of its largest checkpoint in bytes.
        epoch_seconds: Seconds of each epoch that it ended.
        built: Whether its trial was built.
    """

    start: int | None = None
    started_after: float | None = None
    seconds: float = 0.0
    bytes: int = 0
    epoch_seconds: list[float] = field(default_factory=list)
    built: bool = False


@dataclass
class Replayed:
    """Report of a replay.

    Attributes:
        epochs: Records of its epochs, by epoch.
        asked: Names of the requested parameters, in order.
        misfits: One sentence for each requested parameter that has no value.
        fingerprint: The environment of its processes.
        end: Its last message; None if it was ended at a checkpoint.
        reached: The checkpoint at which it was ended; None if it did not reach it.
        steps_per_epoch: Steps per epoch; 0 if unknown before the end of an epoch.
        log: The last lines of its log if it failed.
        files: Files that its last process used outside of its own directory, as `uses_to_json`.
        authors: The user's code; None if the trial was not built.
        weights: Digest of the weights from the model factory, of a shortened trial.
        lengths: Lengths of a shortened trial; None for the study's own.
        warnings: Warnings of its processes until their trial was built, and afterwards.
    """

    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    processes: list[ReplayProcess] = field(default_factory=list)
    end: Finished | StoppedHere | Failed | None = None
    reached: CheckpointCommitted | None = None
    steps_per_epoch: int = 0
    log: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    authors: StudyAuthors | None = None
    weights: str = ""
    lengths: Lengths | None = None
    warnings: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    @property
    def starts(self) -> list[int]:
        """Return the first step of each process."""
        return [each.start for each in self.processes if each.start is not None]

    @property
    def seconds(self) -> float:
        """Return the total duration in seconds."""
        return sum(each.seconds for each in self.processes)


def run_again(
    order: ReplayOrder,
    launchers: Sequence[Launcher],
    directory: Path,
    tell: Callable[[Event], None],
    stopping: threading.Event,
) -> Replayed:
    """Run a replay, and return its report.

    ``launchers`` are used in turn. ``directory`` must be empty. ``tell`` receives progress events. The
    replay ends when ``stopping`` is set.

    Raises:
        Interrupted: ``stopping`` was set.
        ReplayDiedError: A process died unexpectedly, or ran out of memory or disk.
        ExecutionError: A process could not be started.
    """
    replayed = Replayed()
    for index in range(len(order.kills) + 1):
        _Attempt(stopping, order.when_stopped, order, index + 1, directory, replayed, tell).run(
            launchers[index % len(launchers)]
        )
        if replayed.end is not None or replayed.reached is not None:
            break
    return replayed


@dataclass
class _Attempt(WithoutDatabase):
    """One process of a replay."""

    order: ReplayOrder
    number: int
    directory: Path
    replayed: Replayed
    tell: Callable[[Event], None]
    newest: Path | None = None
    process: ReplayProcess = field(default_factory=ReplayProcess)
    _began: float = field(default_factory=time.monotonic)

    @property
    def _kill(self) -> Kill | None:
        """Return the kill of this process; None if it is not killed."""
        kills = self.order.kills
        return kills[self.number - 1] if self.number <= len(kills) else None

    @property
    def _paths(self) -> RunPaths:
        return RunPaths(self.directory, self.order.settings.name)

    def run(self, launcher: Launcher) -> None:
        number = self.order.number
        self.tell(AttemptStarted(number, self.number))
        self._paths.attempt(number, self.number).mkdir(parents=True)
        self.replayed.processes.append(self.process)
        status = converse(launcher, self._assignment(), self)
        self.process.seconds = time.monotonic() - self._began
        self._conclude(status)

    def is_enough(self) -> bool:
        return self.replayed.reached is not None

    def is_pruned(self, question: Judge) -> bool:
        return bool(question.values) and question.values[-1][0] == self.order.prune_after

    def value_of(self, question: Suggest) -> CategoricalChoice:
        replayed = self.replayed
        if question.name not in replayed.asked:
            replayed.asked.append(question.name)
        try:
            return self.order.answers.to(question.name, question.distribution)
        except LookupError as error:
            replayed.misfits.append(str(error))
            raise

    def receive(self, message: Message) -> None:
        replayed = self.replayed
        match message:
            case Surroundings():
                replayed.fingerprint = message.fingerprint
            case FilesUsed():
                replayed.files = message.files
            case ReplayBuilt():
                replayed.authors, replayed.lengths = message.authors, message.lengths
                # Those of the first process, which the others can only repeat.
                replayed.weights = replayed.weights or message.weights
                self.process.built = True
            case Finished(outcome="paused"):
                # The decision of this rung has ended the trial that is replayed.
                replayed.end = replace(message, outcome="pruned")
            case Finished() | StoppedHere() | Failed():
                replayed.end = message
            case _:
                self._receive_progress(message)

    def _receive_progress(self, message: Message) -> None:
        replayed, number = self.replayed, self.order.number
        match message:
            case Started():
                self.process.start = message.start_step
                self.process.started_after = time.monotonic() - self._began
                replayed.steps_per_epoch = message.steps_per_epoch
                self.tell(
                    TrainingStarted(
                        number,
                        dict(self.order.answers.values),
                        self.order.settings.epochs,
                        message.steps_per_epoch,
                        message.start_step,
                        message.start_epoch,
                    )
                )
            case Preparing() | StepsReached():
                self.tell(progress_of(message, number))
            case EpochsEnded():
                replayed.epochs.update({record.epoch: record for record in message.epochs})
                if message.seconds is not None:
                    self.process.epoch_seconds.append(message.seconds)
                    last = message.epochs[-1]
                    self.tell(
                        EpochFinished(
                            number, last.epoch, message.step, last.metrics, message.seconds
                        )
                    )
            case CheckpointCommitted():
                self._committed(message)
            case Warned():
                replayed.warnings[self.process.built].append(message.message)
                self.tell(Notice(f"replay of trial {number}: {message.message}"))
            case _:
                msg = f"the replay of trial {number} sent {message!r}, which no trial sends"
                raise ExecutionError(msg)

    def _committed(self, committed: CheckpointCommitted) -> None:
        """Pass a checkpoint to the comparison, and delete the previous one, which no resume needs."""
        path = Path(committed.path)
        self.process.bytes = max(self.process.bytes, committed.bytes)
        if committed.path == str(self.order.starts_from):
            return
        position = (committed.step, committed.epoch)
        if self.order.checkpoints is None or position in self.order.checkpoints:
            self.order.seen(committed)
        if position == self.order.ends_at:
            self.replayed.reached = committed
        if self.newest is not None and self.newest != path:
            # A checkpoint that cannot be deleted is removed with the temporary directory.
            with contextlib.suppress(CheckpointError):
                CheckpointStore(self.newest.parent).delete(self.newest)
        if CheckpointName.parse(path.name) is not None:
            self.newest = path

    def _conclude(self, status: ExitStatus) -> None:
        order, number, end = self.order, self.order.number, self.replayed.end
        if isinstance(end, StoppedHere):
            raise Interrupted(self.when_stopped)
        kill = self._kill if status.killed else None
        outcome: Outcome = "complete"
        error = None
        if self.replayed.reached is not None:
            outcome = "interrupted"
        elif end is None:
            outcome, error = "crashed", f"the replay's process {status.describe()}"
            if kill is not None:
                error = f"killed at step {kill.after}, as requested"
        elif isinstance(end, Failed):
            outcome, error = "failed", end.error
            self.replayed.log = self._log()
        elif isinstance(end, Finished):
            outcome = end.outcome
        value = end.value if isinstance(end, Finished) else None
        self.tell(AttemptEnded(number, self.number, outcome, value, error))
        if self.replayed.reached is not None or (isinstance(end, Failed) and order.ends_at):
            return
        if (end is None and kill is None) or (isinstance(end, Failed) and end.fault != "trial"):
            log = self._log()
            msg = (
                f"trial {number} could not be run again to its end: {error}; fix that and verify "
                f"again{chr(10) + log if log else ''}"
            )
            raise ReplayDiedError(msg, status.describe(), self.replayed)

    def _log(self) -> str:
        path = self._paths.log(self.order.number, self.number)
        if not path.exists():
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def _assignment(self) -> Assignment:
        order, kill = self.order, self._kill
        settings, pause_after = replace(order.settings, checkpoint_every=_AT_NO_STEP), None
        if order.prune_after is not None and order.settings.budget is not None:
            # With a budget, a rung ended the trial, and not a pruner.
            pause_after = order.prune_after + 1
        assignment = assignment_of(settings, self._paths, order.number, self.number)
        return replace(
            assignment,
            known=() if order.starts_from is None else (str(order.starts_from),),
            end=assignment.end if order.ends_at is None else None,
            devices=order.devices,
            pause_after=pause_after,
            order=Replay(
                order.checkpoints
                and tuple(
                    at for at in order.checkpoints if kill is None or at[0] <= kill.checkpoint
                ),
                also_after=None if kill is None else kill.checkpoint,
                die_after=None if kill is None else kill.after,
                aside=order.ends_at is not None,
                short=order.short,
            ),
        )
