"""Replays of trials and intervals, and their comparison, for `check`, audits and `verify`.

A replay runs in an ordinary trial process over the ordinary channel, in a separate directory, with
stored or newly drawn parameters. Its reports are kept for the comparison. It starts from the beginning
or from a checkpoint, and runs to its end or to a given checkpoint. It may be killed once by SIGKILL; the next
process then resumes it as any trial is resumed.

`sweeper verify` compares a finished trial with its replay, an audit one interval between two of its
checkpoints, and `sweeper check` a shortened trial with the same one, killed and resumed. A value that differs
may be a measured time, which differs in every run. So if the first replay differs, there is a second one. Values
in which the two replays differ are excused, by their paths, where they may be. The second replay also shows
whether the trial repeats at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.checkpoint.reading import read_manifest
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, Interrupted
from sweeper.records import events
from sweeper.records.findings import ranked
from sweeper.records.results import EpochRecord, Outcome, Params
from sweeper.replay.comparison import (
    Difference,
    compare_checkpoints,
    compare_digests,
    compare_ends,
    compare_epochs,
    errors,
    judge,
)
from sweeper.replay.reports import Lengths, UserObjects
from sweeper.run.launch.trial_process import (
    ExitStatus,
    Launcher,
    Unattended,
    progress_of,
)
from sweeper.run.protocol import messages
from sweeper.support.paths import Location, RunPaths

_LOG_LINES = 20
"""Number of last lines of a log in an error."""

Position = tuple[int, int]
"""Step and finished epochs."""

Epochs = Mapping[int, Mapping[str, float]]
"""Metrics by epoch."""


class ReplayDiedError(ExecutionError):
    """A process of the replay ended too early.

    Attributes:
        how: How the process ended, such as ``"was killed by SIGSEGV"``, or with which error.
        replayed: Report of the replay up to then.
    """

    def __init__(self, message: str, how: str, replayed: Replayed) -> None:
        super().__init__(message)
        self.how = how
        self.replayed = replayed


Answer = Callable[[str, Distribution], CategoricalChoice]
"""Function that returns the value of a requested parameter; it raises LookupError or ParameterError if there is none."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Stored parameters of a trial, for a replay's requests.

    Attributes:
        asker: Name of the requesting process in messages.
    """

    values: Params
    distributions: Mapping[str, Distribution]
    asker: str = "replay"

    def __call__(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the stored value of ``name``; see `Answer`."""
        asks = f"the {self.asker} asks for parameter {name!r}"
        if name not in self.values:
            raise LookupError(f"{asks}, which the trial does not have")
        recorded = self.distributions[name]
        if type(recorded) is not type(distribution):
            raise LookupError(f"{asks} as {distribution}; in the trial it is {recorded}")
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
        kill: Kill of the first process; None for none. A checkpoint after the kill's is taken by the
            resumed process alone.
        starts_from: The checkpoint to resume; None to start from the beginning.
        ends_at: Position of ``checkpoints`` at which the replay is ended; None to run to its end.
        devices: ``CUDA_VISIBLE_DEVICES`` of its processes; None to leave it unchanged.
        proposals: See `TrialRecord.proposals`.
    """

    settings: StudySettings
    number: int
    answer: Answer
    checkpoints: tuple[Position, ...] | None = ()
    prune_after: int | None = None
    kill: Kill | None = None
    starts_from: Location | None = None
    ends_at: Position | None = None
    devices: str | None = None
    short: bool = False
    when_stopped: str = "the replay was stopped"
    proposals: int = 0


@dataclass
class Replayed:
    """Report of a replay.

    Attributes:
        directory: `Trial.directory` in its processes.
        misfits: One sentence for each requested parameter that has no value.
        end: Its last message; None if it was ended at a checkpoint.
        reached: The checkpoint at which it was ended; None if it did not reach it.
        starts: Steps at which their trainings started.
        started_after: Seconds from the launch of the first one to its first step; None without one.
        bytes: Size of the largest checkpoint.
        steps_per_epoch: Steps per epoch; 0 if unknown before the end of an epoch.
        files: Files that its last process used outside of its own directory, as `uses_to_json`.
        user_objects: The user's factories and callbacks; None if the trial was not built.
        weights: Digest of the weights from the model factory, of a shortened trial.
        lengths: Lengths of a shortened trial; None for the study's own.
        warnings: Warnings until its trial was built, and afterwards.
    """

    directory: str = ""
    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    asked: Params = field(default_factory=dict)
    misfits: list[str] = field(default_factory=list)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    end: messages.Finished | messages.StoppedHere | messages.Failed | None = None
    checkpoints: dict[Position, KeptCheckpoint] = field(default_factory=dict)
    reached: KeptCheckpoint | None = None
    processes: int = 0
    starts: list[int] = field(default_factory=list)
    seconds: float = 0.0
    started_after: float | None = None
    epoch_seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    steps_per_epoch: int = 0
    files: Mapping[str, Any] = field(default_factory=dict)
    user_objects: UserObjects | None = None
    weights: str = ""
    lengths: Lengths | None = None
    warnings: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    @property
    def metrics(self) -> Epochs:
        return {epoch: record.metrics for epoch, record in self.epochs.items()}

    def results(self, objectives: Sequence[str]) -> Mapping[str, Any]:
        """Return what a trial ends with, by its name in messages; empty for a trial that did not end."""
        end = self.end
        if not isinstance(end, messages.Finished):
            return {}
        return results_of(objectives, (end.value, *end.further_values), end.digest, end.step)


def results_of(
    objectives: Sequence[str],
    values: Sequence[float | None],
    digest: str | None,
    step: int | None = None,
) -> Mapping[str, Any]:
    """Return what a trial ended with, by its name in messages; None for the digest or step leaves it out."""
    results: dict[str, Any] = {} if step is None else {"step": step}
    for objective, value in zip(objectives, values, strict=False):
        results[f"value ({objective})"] = value
    return results if digest is None else {**results, "digest": digest}


def run_again(
    order: ReplayOrder,
    launchers: Sequence[Launcher],
    directory: Path,
    listener: events.Listener,
    stopping: threading.Event,
) -> Replayed:
    """Run a replay, and return its report.

    ``launchers`` are used in turn. ``directory`` must be empty. ``listener`` receives progress events. The
    replay ends when ``stopping`` is set.

    Raises:
        Interrupted: ``stopping`` was set.
        ReplayDiedError: A process died unexpectedly, or ran out of memory or disk.
        ExecutionError: A process could not be started.
    """
    paths = RunPaths(directory, order.settings.name)
    replayed = Replayed(str(paths.trial_files(order.number)))
    for index in range(1 if order.kill is None else 2):
        attempt = _Attempt(order, index + 1, paths, replayed, listener)
        attempt.run(launchers[index % len(launchers)], stopping)
        if replayed.end is not None or replayed.reached is not None:
            break
    return replayed


@dataclass
class _Attempt:
    """One process of a replay."""

    order: ReplayOrder
    number: int
    paths: RunPaths
    replayed: Replayed
    listener: events.Listener
    _began: float = field(default_factory=time.monotonic)

    @property
    def _kill(self) -> Kill | None:
        """Return the kill of this process; None if it is not killed."""
        return self.order.kill if self.number == 1 else None

    def run(self, launcher: Launcher, stopping: threading.Event) -> None:
        order = self.order
        replayed = self.replayed
        self.listener(events.AttemptStarted(order.number, self.number))
        self.paths.attempt(order.number, self.number).mkdir(parents=True)
        replayed.processes += 1
        supervisor = Unattended(
            self._answer,
            self._receive,
            stopping,
            order.when_stopped,
            prunes=lambda asked: bool(asked.values) and asked.values[-1][0] == order.prune_after,
            is_enough=lambda: replayed.reached is not None,
        )
        end = supervisor.run(launcher, self._assignment())
        replayed.seconds += time.monotonic() - self._began
        if isinstance(end, messages.Finished) and end.outcome == "paused":
            # The decision of this rung has ended the trial that is replayed.
            end = replace(end, outcome="pruned")
        self._conclude(end)

    def _answer(self, question: messages.Suggest) -> CategoricalChoice:
        replayed = self.replayed
        try:
            value = self.order.answer(question.name, question.distribution)
        except LookupError as error:
            replayed.misfits.append(str(error))
            raise
        replayed.asked = {**replayed.asked, question.name: value}
        return value

    def _receive(self, message: messages.Message) -> None:
        self._note(message)
        order = self.order
        asked = self.replayed.asked
        event = progress_of(message, order.number, asked, order.settings.epochs)
        if event is not None:
            self.listener(event)

    def _note(self, message: messages.Message) -> None:
        replayed = self.replayed
        number = self.order.number
        match message:
            case messages.EnvironmentReport():
                replayed.fingerprint = message.fingerprint
            case messages.FilesUsed():
                replayed.files = message.files
            case messages.ReplayBuilt():
                replayed.user_objects = message.user_objects
                replayed.lengths = message.lengths
                # Those of the first process, which the others can only repeat.
                replayed.weights = replayed.weights or message.weights
            case messages.Started():
                replayed.starts.append(message.start_step)
                replayed.started_after = replayed.started_after or time.monotonic() - self._began
                replayed.steps_per_epoch = message.steps_per_epoch
            case messages.EpochsEnded():
                replayed.epochs.update({record.epoch: record for record in message.epochs})
                if message.seconds is not None:
                    replayed.epoch_seconds.append(message.seconds)
            case messages.CheckpointCommitted():
                self._committed(message)
            case messages.Warned():
                replayed.warnings[replayed.user_objects is not None].append(message.message)
                self.listener(events.Notice(f"replay of trial {number}: {message.message}"))
            case messages.Preparing() | messages.StepsReached():
                pass
            case _:
                raise ExecutionError(
                    f"the replay of trial {number} sent {message!r}, which no trial sends"
                )

    def _committed(self, committed: messages.CheckpointCommitted) -> None:
        self.replayed.bytes = max(self.replayed.bytes, committed.bytes)
        if committed.path == str(self.order.starts_from):
            return
        position = (committed.step, committed.epoch)
        path = Path(committed.path)
        checkpoint = KeptCheckpoint(*position, path, digest=committed.digest, bytes=committed.bytes)
        if self.order.checkpoints is None or position in self.order.checkpoints:
            self.replayed.checkpoints[position] = checkpoint
        if position == self.order.ends_at:
            self.replayed.reached = checkpoint

    def _conclude(self, end: messages.LastMessage | messages.Evaluated | ExitStatus) -> None:
        order = self.order
        number = self.order.number
        reached = self.replayed.reached is not None
        outcome: Outcome = "complete"
        error = None
        ending = ""
        is_fault = False
        match end:
            case messages.StoppedHere():
                raise Interrupted(order.when_stopped)
            case messages.Finished():
                outcome = end.outcome
            case messages.Failed():
                outcome = "failed"
                error = end.error
                ending = f"ended with {end.error}"
                is_fault = end.fault != "trial" and order.ends_at is None
            case ExitStatus() if not reached:
                outcome = "crashed"
                ending = end.describe()
                error = f"the replay's process {ending}"
                is_fault = True
                if end.killed and self._kill is not None:
                    error = f"killed at step {self._kill.after}, as requested"
                    is_fault = False
        if isinstance(end, messages.LastMessage):
            self.replayed.end = end
        value = end.value if isinstance(end, messages.Finished) else None
        self.listener(events.AttemptEnded(number, self.number, outcome, value, error))
        if is_fault and not reached:
            log = self._log()
            raise ReplayDiedError(
                f"trial {number} could not be run again to its end: {error}; fix that and verify "
                f"again{chr(10) + log if log else ''}",
                ending,
                self.replayed,
            )

    def _log(self) -> str:
        path = self.paths.log(self.order.number, self.number)
        if not path.exists():
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def _assignment(self) -> messages.Assignment:
        order = self.order
        kill = self._kill
        settings = order.settings
        pause_after = None
        if order.prune_after is not None and order.settings.budget is not None:
            # With a budget, a rung ended the trial, and not a pruner.
            pause_after = order.prune_after + 1
        assignment = messages.assignment_of(
            settings, self.paths, order.number, self.number, proposals=order.proposals
        )
        return replace(
            assignment,
            known=() if order.starts_from is None else (str(order.starts_from),),
            end=assignment.end if order.ends_at is None else None,
            devices=order.devices,
            pause_after=pause_after,
            order=messages.Replay(
                order.checkpoints
                and tuple(
                    position
                    for position in order.checkpoints
                    if kill is None or position[0] <= kill.checkpoint
                ),
                also_after=None if kill is None else kill.checkpoint,
                die_after=None if kill is None else kill.after,
                aside=order.ends_at is not None,
                short=order.short,
            ),
        )


@dataclass(frozen=True)
class ReplayComparison:
    """Result of a replay, and of a second one if something differed.

    Attributes:
        checkpoints: Differences at each of the first replay's checkpoints, by position.
        epochs: Differences of metrics.
        end: Differences of the results.
        repeats: Whether the second replay equals the first; None without a second.
    """

    replayed: Replayed
    again: Replayed | None = None
    checkpoints: Mapping[Position, Sequence[Difference]] = field(default_factory=dict)
    epochs: Sequence[Difference] = ()
    end: Sequence[Difference] = ()
    repeats: bool | None = None

    @property
    def differences(self) -> list[Difference]:
        """Return all differences, the most severe first."""
        differences: list[Difference] = []
        for of_checkpoint in self.checkpoints.values():
            differences.extend(of_checkpoint)
        return ranked([*differences, *self.epochs, *self.end])


@dataclass(frozen=True)
class Reference:
    """Training with which a replay is compared.

    Attributes:
        checkpoints: Its checkpoints by position. One that is damaged or missing (``good=False``) is compared by
            its digest alone, if that is known.
        files: Its `Trial.directory`, for checkpoints that do not name it.
        epochs: Its metrics; empty if they are not compared.
        results: See `results_of`; empty if they are not compared.
        sides: Names of the training and of its replay in messages.
    """

    checkpoints: Mapping[Position, KeptCheckpoint]
    files: str
    epochs: Epochs = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    sides: tuple[str, str] = ("undisturbed", "resumed")


@dataclass
class ComparedReplay:
    """Replay of a trial or an interval, and its comparison.

    Args:
        prepare: Function that prepares a replay below a directory, and returns its order, without checkpoints.
        directory: An empty directory. The first replay uses ``first`` in it, the second ``second``.
    """

    reference: Reference
    prepare: Callable[[Path], ReplayOrder]
    directory: Path
    launchers: Sequence[Launcher]
    stopping: threading.Event
    listener: events.Listener = lambda _: None
    _objectives: Sequence[str] = ()

    @property
    def first(self) -> Path:
        """Return the directory of the first replay."""
        return self.directory / "first"

    def run(self) -> ReplayComparison:
        """Replay and compare; replay a second time if a difference may be excused.

        Raises the errors of `run_again`, and CheckpointError if a checkpoint cannot be read.
        """
        reference = self.reference
        replayed = self._run(self.first)
        checkpoints = {
            position: self._compare(reference.checkpoints[position], checkpoint, replayed)
            for position, checkpoint in replayed.checkpoints.items()
        }
        epochs: list[Difference] = []
        if reference.epochs:
            epochs = self._compare_epochs(reference.epochs, replayed)
        end: list[Difference] = []
        results = replayed.results(self._objectives)
        if reference.results and results:
            comparable = {name: results.get(name) for name in reference.results}
            end = compare_ends(reference.results, comparable, reference.sides)
        differing = [position for position in checkpoints if errors(checkpoints[position])]
        if not differing and not any(difference.excusable for difference in errors(epochs)):
            return ReplayComparison(replayed, None, checkpoints, epochs, end)
        second = self._run(self.directory / "second")
        baseline = self._compare_epochs(replayed.metrics, second)
        for position in differing:
            if position in second.checkpoints:
                baseline += compare_checkpoints(
                    replayed.checkpoints[position].path,
                    second.checkpoints[position].path,
                    directories=(replayed.directory, second.directory),
                    objectives=self._objectives,
                )

        def judged(differences: Sequence[Difference]) -> list[Difference]:
            return judge(differences, baseline, replayed.user_objects)

        return ReplayComparison(
            replayed,
            second,
            {position: judged(checkpoints[position]) for position in checkpoints},
            judged(epochs),
            end,
            repeats=all(difference.excusable for difference in baseline),
        )

    def _run(self, directory: Path) -> Replayed:
        order = replace(self.prepare(directory), checkpoints=tuple(self.reference.checkpoints))
        self._objectives = [objective.name for objective in order.settings.objectives]
        return run_again(order, self.launchers, directory, self.listener, self.stopping)

    def _compare(
        self, checkpoint: KeptCheckpoint, replay: KeptCheckpoint, replayed: Replayed
    ) -> list[Difference]:
        reference = self.reference
        if not checkpoint.good:
            if not checkpoint.digest:
                return []
            return compare_digests(checkpoint.digest, replay.digest, reference.sides)
        origin = read_manifest(checkpoint.path).origin
        directory = origin.directory if origin is not None else ""
        return compare_checkpoints(
            checkpoint.path,
            replay.path,
            directories=(directory or reference.files, replayed.directory),
            objectives=self._objectives,
            sides=reference.sides,
        )

    def _compare_epochs(self, epochs: Epochs, replayed: Replayed) -> list[Difference]:
        if isinstance(replayed.end, messages.Failed):
            # The failure is the difference; the epochs after it are not reported again.
            epochs = {epoch: epochs[epoch] for epoch in epochs.keys() & replayed.epochs.keys()}
        return compare_epochs(
            epochs, replayed.metrics, objectives=self._objectives, sides=self.reference.sides
        )
