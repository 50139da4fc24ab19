"""Messages between a worker and its trial process, as frozen records that travel as JSON.

A trial process asks for parameters, reports what happened, and is asked to stop; it knows no
database, so a database that is away stops no training, and a test drives a trial with a fake
worker. Messages are frozen dataclasses: nothing that arrives can run.

Checkpoints are taken exactly where the finished trial has kept some, and none is deleted: the
process that compares deletes them when it has seen them. Where they are taken changes no result,
so the study's own interval, which may go by the clock, is not followed.

A replay that is to be killed kills itself, by SIGKILL and at an exact step: a signal from outside
would come a moment sooner or later, and the same seed would not give the same test twice.

A rehearsal is a replay that ends with a report: of what was built and read, or of each step of a short
training. `sweeper check` and the early check of a run order them.

An evaluation runs in the very process that a trial would have, made by the same launcher. It asks
for the trial's stored parameters as a trial does, and knows no database either.

An audited trial pins what an audit needs, and reports where; its worker writes that down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    WrapSerializer,
    with_config,
)

from sweeper.checkpoint.identity import Origin
from sweeper.errors import ParameterError
from sweeper.records.results import EpochRecord
from sweeper.replay.reports import Lengths, RehearsalReport
from sweeper.spec.checkpointing import Keep
from sweeper.spec.searching import At, Direction
from sweeper.spec.space import Categorical, CategoricalChoice, FloatRange, IntRange

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def sendable(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that is read from JSON with exactly its fields."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, slots=True)(cls))


@sendable
class StudySource:
    """Location of a study's definition.

    Attributes:
        how: ``"target"``: import ``target``. ``"pickled"``: ``pickled`` is the definition itself,
            by cloudpickle and base64, made by the process that started this one and sent over a
            pipe; it is never stored.
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``; with ``"pickled"``, where the
            definition's code stands, if that is a file.
        study: The study's name, where the module holds several.
        path: ``sys.path`` of the process that defined it, with ``"pickled"``.
        texts: With ``"pickled"``, the notebook's cells that its functions stand in, by the files
            that their code names.
        defined_code: With ``"pickled"``, the code as `CodeFingerprint.to_json`, read by the process
            that defined it, whose modules are whole: by value a function brings only the variables
            that it names itself, and what these were made of is not to be seen.
        code: What the code must be, as the process that loads it reads it; None for whatever is
            there.
    """

    how: Literal["target", "pickled"]
    target: str
    study: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    defined_code: Mapping[str, Any] | None = None
    code: Mapping[str, Any] | None = None


def _kind_of(distribution: Any) -> str:
    if isinstance(distribution, dict):
        return str(distribution.get("kind"))
    return type(distribution).__name__


def _with_kind(distribution: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return {"kind": type(distribution).__name__, **handler(distribution)}


def _without_kind(distribution: Any) -> Any:
    if isinstance(distribution, dict):
        return {name: value for name, value in distribution.items() if name != "kind"}
    return distribution


_writes, _reads = WrapSerializer(_with_kind), BeforeValidator(_without_kind)
SentDistribution = Annotated[
    Annotated[FloatRange, _writes, _reads, Tag("FloatRange")]
    | Annotated[IntRange, _writes, _reads, Tag("IntRange")]
    | Annotated[Categorical, _writes, _reads, Tag("Categorical")],
    Discriminator(_kind_of),
]


@sendable
class Suggest:
    """Request to the worker for the parameter ``name``; answered by `Suggested`."""

    name: str
    distribution: SentDistribution
    kind: Literal["suggest"] = "suggest"


@sendable
class Suggested:
    """Answer to `Suggest`: the value, or the reason why there is none (``error``)."""

    value: CategoricalChoice
    error: str | None = None
    kind: Literal["suggested"] = "suggested"

    def accepted(self) -> CategoricalChoice:
        """Return the value.

        Raises:
            ParameterError: There is none.
        """
        if self.error is not None:
            raise ParameterError(self.error)
        return self.value


@sendable
class Judge:
    """Question to the worker whether to end here, with the objective of every epoch; answered by `Judged`."""

    values: tuple[tuple[int, float], ...]
    kind: Literal["judge"] = "judge"


@sendable
class Judged:
    """Answer to `Judge`: whether the pruner ends the trial, or the error that it raised (``error``)."""

    prune: bool
    error: str | None = None
    kind: Literal["judged"] = "judged"


@sendable
class AuditOrder:
    """Order to a trial to pin what audits need.

    Attributes:
        directory: Where it pins.
        which: ``"first"``: its first intervals. ``"drawn"``: the first that begins at or after the
            end of ``epoch`` epochs. ``"all"``: every one. ``"none"``: nothing is pinned.
        wanted: How many intervals are still to be pinned; of ``"all"`` there is no such number.
        middle: Whether the first interval begins in the middle of an epoch, with one more
            checkpoint that is for the audit alone.
    """

    directory: str
    which: Literal["first", "drawn", "all", "none"]
    wanted: int = 0
    middle: bool = False
    epoch: int = 0


@sendable
class IntervalPinned:
    """Report that an interval between two checkpoints is pinned and can be audited.

    Attributes:
        from_path: The checkpoint to resume; None where the interval begins with the trial.
        problem: Why it could not be pinned; None where it is.
    """

    from_step: int
    to_step: int
    to_epoch: int
    directory: str
    from_path: str | None
    to_path: str
    problem: str | None = None
    kind: Literal["interval_pinned"] = "interval_pinned"


@sendable
class BranchStart:
    """The checkpoint of another trial that a trial begins from.

    Attributes:
        parent: The number of the trial that the checkpoint is of.
        seeded_as: The number of the trial whose seed this one has.
        step: Of the checkpoint.
        digest: Of the checkpoint's variables.
        directories: Where the checkpoint may lie.
        params: The parent's parameters.
        changed: Those of this trial that are others.
    """

    parent: int
    seeded_as: int
    step: int
    digest: str
    directories: tuple[str, ...]
    params: dict[str, Any]
    changed: dict[str, Any]


@sendable
class HeldOutData:
    """Source of the data on which checkpoints are evaluated.

    Attributes:
        target: ``FILE:NAME`` or ``package.module:NAME``; None where the study's own are taken, or
            ``pickled`` has them.
        pickled: A function ``trial -> Data``, or a `Data`, by cloudpickle in base64.
        path: More of ``sys.path``, for what that refers to.
        shown: What the user calls them; None for the study's own.
    """

    target: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()
    shown: str | None = None


@sendable
class Candidate:
    """Checkpoint to be evaluated: its record in the database, and its present path."""

    path: str
    step: int
    epoch: int
    digest: str


@sendable
class Evaluation:
    """Order to evaluate checkpoints, sent in place of a trial."""

    checkpoints: tuple[Candidate, ...]
    data: HeldOutData


@sendable
class CheckpointEvaluated:
    """Report of a checkpoint's metrics."""

    checkpoint: Candidate
    data: str
    data_digest: str
    metrics: dict[str, float]
    kind: Literal["checkpoint_evaluated"] = "checkpoint_evaluated"


@sendable
class CheckpointPassedOver:
    """Report of a checkpoint that could not be evaluated, with the reason."""

    checkpoint: Candidate
    reason: str
    kind: Literal["checkpoint_passed_over"] = "checkpoint_passed_over"


@sendable
class Evaluated:
    """Last report of an evaluation: every checkpoint was evaluated or passed over, or none of any trial can be.

    Attributes:
        refused: What is wrong with what was asked for; None where nothing is.
        traceback: The user's own, where their file of data raised an error.
    """

    refused: str | None = None
    traceback: str = ""
    kind: Literal["evaluated"] = "evaluated"


@sendable
class ExportOrder:
    """Order to write a model: its format and its path.

    Attributes:
        format: A name of `sweeper.models.formats.SUFFIXES`.
        path: Absolute.
        checkpoint: Where the model's variables are.
        training: The checkpoints that hold the optimizer too, oldest first; the last of them goes
            with ``checkpoint``.
        card: What is known of the model beyond what writing it tells.
        force: Whether an existing file is replaced.
        name: Of TensorFlow's checkpoints.
    """

    format: str
    path: str
    checkpoint: str
    training: tuple[str, ...]
    card: dict[str, Any]
    force: bool = False
    name: str = "ckpt"


@sendable
class ModelExported:
    """Last report of an export: the model is written; with its card."""

    card: dict[str, Any]
    kind: Literal["model_exported"] = "model_exported"


KEEP_ALL = Keep(last=1 << 40)
"""The rules under which a replay deletes nothing."""

_NEVER = 1 << 30


Part = Literal["build", "read", "together", "train"]
"""
- ``"build"``: build one trial, as a process of a run would, and read its validation data.
- ``"read"``: the same; then read its training data, and make the variables that a batch makes.
- ``"together"``: build several trials in this one process, as ``isolation="inline"`` would, after the
  first one's data were read; what they would share is reported, and is no error.
- ``"train"``: build a trial and train some epochs, watched.
"""


@sendable
class Rehearsal:
    """Order to rehearse, sent in place of a trial.

    Attributes:
        part: See `Part`.
        number: The trial to build, for ``"build"`` and ``"read"``.
        like: The trial whose parameters it is built with; None for its own.
    """

    part: Part
    number: int = 0
    like: int | None = None


@sendable
class Replay:
    """Order to run a finished trial again, sent with its assignment.

    Attributes:
        checkpoints: The step and the finished epochs of each checkpoint to take.
        also_after: One more at the first position from this step on.
        die_after: End the process at the first position from this step on, by SIGKILL, as soon as
            what is being written is on disk.
        aside: Whether the trial that is run again may still run itself: then the files of Keras's
            callbacks that lie outside the trial's directory are others.
        lengths: How long its epochs and validations are; None for the study's own.
        rehearsal: What to do and to report in place of the whole training; None to run it.
    """

    checkpoints: tuple[tuple[int, int], ...]
    also_after: int | None = None
    die_after: int | None = None
    aside: bool = False
    lengths: Lengths | None = None
    rehearsal: Rehearsal | None = None


class ReplaySchedule:
    """Schedule of one `Replay`, followed step by step."""

    def __init__(self, replay: Replay) -> None:
        self._wanted = frozenset(replay.checkpoints)
        self._also_after = replay.also_after
        self._die_after = replay.die_after

    def steps_left(self, step: int) -> int:
        """Return how many steps may run before the next action; at least 1."""
        ends = {due for due, _ in self._wanted} | {self._also_after, self._die_after}
        return min((p - step for p in ends if p is not None and p > step), default=_NEVER)

    def is_due(self, step: int, epoch: int) -> bool:
        """Return whether a checkpoint is to be taken here."""
        also = self._also_after is not None and step >= self._also_after
        if also:
            self._also_after = None
        return also or (step, epoch) in self._wanted

    def die_if_due(self, step: int, flush: Callable[[], None]) -> None:
        """Kill this process if the replay orders it at this step, after ``flush`` has waited for the disk."""
        if self._die_after is not None and step >= self._die_after:
            flush()
            os.kill(os.getpid(), signal.SIGKILL)


@sendable
class Rehearsing:
    """Report of the next activity and its trial; parameters that are asked for next are for that trial.

    Attributes:
        sound: Whether it is known by now that the trial would not be refused.
    """

    stage: str
    number: int
    sound: bool = False
    kind: Literal["rehearsing"] = "rehearsing"


@sendable
class Rehearsed:
    """Last report of a rehearsal: everything that was found."""

    report: RehearsalReport
    kind: Literal["rehearsed"] = "rehearsed"


Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number that every database can hold."""


@sendable
class Assignment:
    """First message to a process: the trial to run.

    Attributes:
        seed: The study's seed; with ``number`` it determines all that is random.
        checkpoints: The checkpoint directories of earlier attempts, and of this one last; or the
            prefixes in an object store.
        known: Checkpoints that were announced and may lie where a listing does not show them.
        devices: ``CUDA_VISIBLE_DEVICES`` for this trial; None to leave it as it is.
        memory_limit: Megabytes of each GPU that the trial may use; None for no limit.
        source: The definition, for a process that has not loaded it yet.
        replay: Set where a trial is run again to be compared, or is rehearsed.
        evaluation: Set where a trial's checkpoints are only measured.
        further_objectives: Metrics that the epochs must report beside the objective.
        audit: What is pinned of it to be audited, and whether it waits; None for nothing.
        pruning: Whether to ask, after each epoch but the last, whether the trial ends there.
        warm_start: The digest that the file must have which the study's trials begin from; empty where
            the study names none, or each trial its own.
        origin: Whose its checkpoints are, but for the parameters; None where nobody resumes from
            them.
        at, direction: Which epoch's objective is the value, and which way is better.
        export: Set where nothing is trained, and a trial's model is written for other tools.
        end: Where the model is kept as training leaves it; None where it is not.
        rungs: After how many epochs trials pause, in order; each must report the objective.
        pause_after: The one at which this attempt does; None where it trains to the end.
        branch: The checkpoint of another trial that it begins from; None where it begins from nothing.
    """

    study: str
    number: int
    attempt: int
    seed: int
    epochs: int
    objective: str
    deterministic: bool
    threads: int
    checkpoint_every: Any
    files: str
    log: str
    checkpoints: tuple[str, ...]
    devices: str | None = None
    memory_limit: int | None = None
    source: StudySource | None = None
    replay: Replay | None = None
    evaluation: Evaluation | None = None
    further_objectives: tuple[str, ...] = ()
    pruning: bool = False
    known: tuple[str, ...] = ()
    audit: AuditOrder | None = None
    origin: Origin | None = None
    warm_start: str = ""
    at: At = "last"
    direction: Direction = "minimize"
    end: str | None = None
    export: ExportOrder | None = None
    rungs: tuple[int, ...] = ()
    pause_after: int | None = None
    branch: BranchStart | None = None
    kind: Literal["assignment"] = "assignment"


@sendable
class Stop:
    """Request to finish the step, write a checkpoint, and stop."""

    kind: Literal["stop"] = "stop"


@sendable
class Surroundings:
    """Report, once, of what the trial's bits depend on here, in the form of `Fingerprint.to_json`."""

    fingerprint: dict[str, Any]
    kind: Literal["surroundings"] = "surroundings"


@sendable
class Preparing:
    """Report of the trial's next activity before its first step, such as "building the model"."""

    stage: str
    kind: Literal["preparing"] = "preparing"


@sendable
class Started:
    """Report that everything is built and restored, and that the first step is next.

    ``trained_seconds`` is how long training had taken up to the checkpoint that it goes on from.
    """

    start_step: Count
    start_epoch: Count
    steps_per_epoch: Count
    trained_seconds: float = 0.0
    kind: Literal["started"] = "started"


@sendable
class StepsReached:
    """Report of the training's progress, a few times a second."""

    epoch: Count
    step: Count
    kind: Literal["steps_reached"] = "steps_reached"


@sendable
class EpochsEnded:
    """Report of an epoch that has ended; from a resumed trial, of all epochs in its checkpoint.

    The worker's database may lack epochs that a checkpoint has, when both died in between.
    """

    epochs: tuple[EpochRecord, ...]
    step: Count
    seconds: float | None = None
    kind: Literal["epochs_ended"] = "epochs_ended"


@sendable
class CheckpointCommitted:
    """Report of a checkpoint that is complete on disk.

    Attributes:
        seconds: How long its writing took, beside the training; None where it was there before.
        stalled_seconds: How long training stood still for it.
    """

    step: Count
    epoch: Count
    digest: str
    bytes: Count
    path: str
    seconds: float | None = None
    stalled_seconds: float | None = None
    kind: Literal["checkpoint_committed"] = "checkpoint_committed"


@sendable
class CheckpointDeleted:
    """Report of a checkpoint that retention has removed."""

    path: str
    kind: Literal["checkpoint_deleted"] = "checkpoint_deleted"


@sendable
class Warned:
    """Warning to the user."""

    message: str
    kind: Literal["warned"] = "warned"


@sendable
class Finished:
    """Last report of a trial: training has ended."""

    step: Count
    value: float
    digest: str
    further_values: tuple[float, ...] = ()
    kind: Literal["finished"] = "finished"


@sendable
class PrunedHere:
    """Last report of a pruned trial: it ended after ``epoch`` (from 0), with a checkpoint at ``step``."""

    step: Count
    epoch: Count
    value: float
    digest: str
    kind: Literal["pruned_here"] = "pruned_here"


@sendable
class PausedHere:
    """Last report of a paused trial: it reached a rung after ``epochs``, with a checkpoint at ``step``."""

    step: Count
    epochs: Count
    value: float
    digest: str
    kind: Literal["paused_here"] = "paused_here"


@sendable
class StoppedHere:
    """Last report of a trial that was stopped on request, with a checkpoint at ``step``."""

    step: Count
    kind: Literal["stopped_here"] = "stopped_here"


@sendable
class Failed:
    """Last report of a trial whose code has failed.

    Attributes:
        error: One line: the error's type and message.
        traceback: The user's traceback; empty for an error that explains itself.
        fault: ``"trial"``: its own code or data. ``"memory"``: an allocation failed.
            ``"environment"``: the disk, or a checkpoint that does not fit; the trial is not to
            blame and can be resumed once that is mended. ``"definition"``: the study's code has
            changed, so nothing was run.
        of_study: Whether every other trial would fail with the same error.
    """

    error: str
    traceback: str = ""
    of_study: bool = False
    fault: Literal["trial", "memory", "environment", "definition"] = "trial"
    kind: Literal["failed"] = "failed"


LastMessage = Finished | PrunedHere | PausedHere | StoppedHere | Failed
"""With which a trial's process reports how the trial ended."""

Message = (
    Assignment
    | Suggest
    | Suggested
    | Judge
    | Judged
    | Surroundings
    | Stop
    | Preparing
    | Started
    | StepsReached
    | EpochsEnded
    | CheckpointCommitted
    | CheckpointDeleted
    | Warned
    | Finished
    | PrunedHere
    | PausedHere
    | StoppedHere
    | Failed
    | Rehearsing
    | Rehearsed
    | CheckpointEvaluated
    | CheckpointPassedOver
    | Evaluated
    | ModelExported
    | IntervalPinned
)
