"""Replay engine for trials and intervals, used by `check`, audits and `verify`.

The trial's process is a real one over the real channel, and knows no difference. Its parameters are
stored ones or drawn ones, its directories are below one of its own, and what it reports is kept for
the comparison. It begins from nothing or is resumed from a checkpoint, and goes on to its end or to
where it is to be compared. A replay that is to be killed dies by SIGKILL, once or more often, and is
resumed by the next process, as any trial is. A replay may end with a report instead of a trained
trial: then it is a rehearsal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.store import CheckpointStore
from sweeper.definition.definition import StudySettings
from sweeper.errors import CheckpointError, ExecutionError, Interrupted
from sweeper.records.ancestry import ParentRecord
from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    EpochFinished,
    Event,
    Notice,
    TrainingStarted,
)
from sweeper.records.results import EpochRecord, Outcome, Params
from sweeper.replay.reports import Lengths, RehearsalReport
from sweeper.run.launch.trial_process import (
    ExitStatus,
    Launcher,
    Stopping,
    WithoutDatabase,
    converse,
    progress_of,
)
from sweeper.run.protocol.messages import (
    Assignment,
    CheckpointCommitted,
    EpochsEnded,
    Failed,
    Finished,
    Judge,
    Message,
    PausedHere,
    Preparing,
    PrunedHere,
    Rehearsal,
    Rehearsed,
    Rehearsing,
    Replay,
    Started,
    StepsReached,
    StoppedHere,
    Suggest,
    Surroundings,
    Warned,
)
from sweeper.run.worker.assignment import assignment_of
from sweeper.search.spaces import to_text
from sweeper.spec.checkpointing import Every, describe_every
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.paths import RunPaths

_LOG_LINES = 20
_AT_NO_STEP = describe_every(Every(steps=1 << 40))
"""A replay's checkpoints are where `Replay` says, and at the end."""


class ReplayDiedError(ExecutionError):
    """A process of the replay ended too early.

    Attributes:
        how: What became of it, such as ``"was killed by SIGSEGV"``.
        replayed: What the replay had reported.
    """

    def __init__(self, message: str, how: str, replayed: Replayed) -> None:
        super().__init__(message)
        self.how = how
        self.replayed = replayed


class Answering(Protocol):
    """Interface of parameters for the requests of a trial's process."""

    @property
    def values(self) -> Params: ...

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the value of ``name``.

        Raises:
            LookupError, ParameterError: There is none.
        """


@dataclass(frozen=True, slots=True)
class Answers:
    """A trial's stored parameters, for the requests of a replay's process.

    Attributes:
        asker: What that process is, for messages.
    """

    values: Params
    distributions: Mapping[str, Distribution]
    asker: str = "replay"

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the stored value of ``name``.

        Raises:
            LookupError: The trial never asked for it, or asked for it with another distribution.
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
        checkpoint: The step of the checkpoint that the next process goes on from.
        after: The step after which the process is killed.
    """

    checkpoint: int
    after: int


@dataclass(frozen=True)
class ReplayOrder:
    """Order to run a trial, or an interval of it, again.

    Attributes:
        checkpoints: Step and finished epochs of the checkpoints to take.
        prune_after: The epoch after which the trial was pruned; None where it was not.
        kills: Where it is killed and resumed, in order.
        seen: Called with each checkpoint that was taken, while it is on disk.
        starts_from: The directory that holds the checkpoint to resume; None to begin anew.
        ends_at: Of ``checkpoints``: the one at which it has come far enough, and is ended.
        keep_all: Whether all of its checkpoints stay on disk, and not the newest alone.
        devices: ``CUDA_VISIBLE_DEVICES`` of its processes; None to leave it as it is.
        parent: What it begins from, which lies below the replay's directory; None for a trial that
            begins from nothing.
        lengths: How long its epochs and validations are; None for the study's own.
        when_stopped: What is said where it is stopped on request.
        rehearsal: What to report in place of training to the end; None for a trial that is trained.
        announced: Called with what a rehearsal is about to do.
        patience: Seconds after which a process is ended; None for as long as it takes.
    """

    settings: StudySettings
    number: int
    answers: Answering
    checkpoints: tuple[tuple[int, int], ...] = ()
    prune_after: int | None = None
    kills: tuple[Kill, ...] = ()
    seen: Callable[[CheckpointCommitted], None] = lambda _: None
    starts_from: Path | None = None
    ends_at: tuple[int, int] | None = None
    keep_all: bool = False
    devices: str | None = None
    parent: ParentRecord | None = None
    lengths: Lengths | None = None
    when_stopped: str = "the replay was stopped"
    rehearsal: Rehearsal | None = None
    announced: Callable[[Rehearsing], None] = lambda _: None
    patience: float | None = None


@dataclass
class ReplayProcess:
    """One process of a replay.

    Attributes:
        start: The step that it began at; None where it never came to that.
        started_after: Seconds from its launch to its first step; None likewise.
        seconds: From its launch to its end.
        bytes: Size of its largest checkpoint.
    """

    start: int | None = None
    started_after: float | None = None
    seconds: float = 0.0
    bytes: int = 0


@dataclass
class Replayed:
    """Report of a replay.

    Attributes:
        misfits: Parameters that it asked for and could not be given, a sentence each.
        end: Its last message; None where it was ended at a checkpoint.
        reached: The checkpoint at which it was to be ended; None where it never came there.
        steps_per_epoch: As it said; 0 where only an epoch's end tells.
        log: The last lines of its output, where it failed.
        report: A rehearsal's; None where it never came to that.
        stage: What a rehearsal was doing last.
        status: How the last process ended.
    """

    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    processes: list[ReplayProcess] = field(default_factory=list)
    end: Finished | PrunedHere | StoppedHere | Failed | None = None
    reached: CheckpointCommitted | None = None
    steps_per_epoch: int = 0
    log: str = ""
    report: RehearsalReport | None = None
    stage: str = "starting"
    status: ExitStatus | None = None

    @property
    def starts(self) -> list[int]:
        """Return the step that each process began at."""
        return [each.start for each in self.processes if each.start is not None]

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return sum(each.seconds for each in self.processes)


def run_again(
    order: ReplayOrder,
    launchers: Sequence[Launcher],
    directory: Path,
    tell: Callable[[Event], None],
    stopping: Stopping,
) -> Replayed:
    """Run the trial again below ``directory``, to its end.

    Args:
        order: What to run.
        launchers: Start its processes, in turn.
        directory: An empty one, for this replay alone.
        tell: Called with events of the progress.
        stopping: Ends the replay when it is set.

    Raises:
        Interrupted: ``stopping`` was set.
        ReplayDiedError: A process died that was not to die, or ran out of memory or disk.
        ExecutionError: A process could not be started.
    """
    replayed = Replayed()
    for index in range(len(order.kills) + 1):
        _Attempt(stopping, order.when_stopped, order, index + 1, directory, replayed, tell).run(
            launchers[index % len(launchers)]
        )
        if order.rehearsal or replayed.end is not None or replayed.reached is not None:
            break
    return replayed


def _as_it_ended(
    last: Finished | PrunedHere | PausedHere | StoppedHere | Failed,
) -> Finished | PrunedHere | StoppedHere | Failed:
    """Return the replay of a paused trial with the end that its rung's decision gives."""
    if not isinstance(last, PausedHere):
        return last
    return PrunedHere(last.step, last.epochs - 1, last.value, last.digest)


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
        """Return the kill of this process; None if it continues."""
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
        self.replayed.status = status
        if self.order.rehearsal is None:
            self._conclude(status)

    def is_enough(self) -> bool:
        patience = self.order.patience
        late = patience is not None and time.monotonic() - self._began > patience
        return late or self.replayed.reached is not None

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
        replayed, number = self.replayed, self.order.number
        match message:
            case Surroundings():
                replayed.fingerprint = message.fingerprint
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
                    last = message.epochs[-1]
                    self.tell(
                        EpochFinished(
                            number, last.epoch, message.step, last.metrics, message.seconds
                        )
                    )
            case CheckpointCommitted():
                self._committed(message)
            case Warned():
                self.tell(Notice(f"replay of trial {number}: {message.message}"))
            case Rehearsing() | Rehearsed():
                self._rehearsed(message)
            case Finished() | PrunedHere() | PausedHere() | StoppedHere() | Failed():
                replayed.end = _as_it_ended(message)
            case _:
                msg = f"the replay of trial {number} sent {message!r}, which no trial sends"
                raise ExecutionError(msg)

    def _rehearsed(self, message: Rehearsing | Rehearsed) -> None:
        if isinstance(message, Rehearsed):
            self.replayed.report = message.report
            return
        self.replayed.stage = message.stage
        self.order.announced(message)

    def _committed(self, committed: CheckpointCommitted) -> None:
        """Pass a checkpoint to the comparison, and delete the one before it, which no resume needs."""
        path = Path(committed.path)
        self.process.bytes = max(self.process.bytes, committed.bytes)
        if self.order.starts_from is not None and path.is_relative_to(self.order.starts_from):
            return
        position = (committed.step, committed.epoch)
        if position in self.order.checkpoints:
            self.order.seen(committed)
        if position == self.order.ends_at:
            self.replayed.reached = committed
        if self.order.keep_all:
            return
        if self.newest not in (None, path) and self.newest is not None:
            # A copy that cannot be deleted goes with the temporary directory.
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
        elif isinstance(end, PrunedHere):
            outcome = "pruned"
        value = end.value if isinstance(end, Finished | PrunedHere) else None
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

    def _pauses_after(self) -> int | None:
        """Return the end of a trial that no pruner ended."""
        order = self.order
        if order.prune_after is None or order.settings.budget is None:
            return None
        return order.prune_after + 1

    def _assignment(self) -> Assignment:
        order, kill = self.order, self._kill
        assignment = assignment_of(
            order.settings, self._paths, order.number, self.number, parent=order.parent
        )
        start = () if order.starts_from is None else (str(order.starts_from),)
        return replace(
            assignment,
            checkpoints=(*start, *assignment.checkpoints),
            end=assignment.end if order.ends_at is None else None,
            pruning=assignment.pruning and order.rehearsal is None,
            checkpoint_every=_AT_NO_STEP,
            devices=order.devices,
            pause_after=self._pauses_after(),
            replay=Replay(
                tuple(at for at in order.checkpoints if kill is None or at[0] < kill.after),
                also_after=None if kill is None else kill.checkpoint,
                die_after=None if kill is None else kill.after,
                aside=order.ends_at is not None,
                lengths=order.lengths,
                rehearsal=order.rehearsal,
            ),
        )
