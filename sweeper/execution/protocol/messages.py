"""What a trial process and its worker say to each other.

A trial process asks for parameters, reports what happened, and is asked to stop; it knows no
database, so a database that is away stops no training, and a test drives a trial with a fake
worker. Messages are frozen dataclasses: nothing that arrives can run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sweeper.checkpoints.origin import Origin
from sweeper.declared.searching import At, Direction
from sweeper.execution.protocol.audits import AuditOrder, IntervalPinned
from sweeper.execution.protocol.branches import BranchStart
from sweeper.execution.protocol.evaluations import (
    CheckpointEvaluated,
    CheckpointPassedOver,
    Evaluated,
    Evaluation,
)
from sweeper.execution.protocol.exports import ExportOrder, ModelExported
from sweeper.execution.protocol.questions import Judge, Judged, Suggest, Suggested
from sweeper.execution.protocol.replays import Rehearsed, Rehearsing, Replay
from sweeper.execution.protocol.sendable import sendable
from sweeper.execution.protocol.study_source import StudySource
from sweeper.results import EpochRecord

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number that every database can hold."""


@sendable
class Assignment:
    """Down, first: the trial to run.

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
    """Down: finish the step, checkpoint, stop."""

    kind: Literal["stop"] = "stop"


@sendable
class Surroundings:
    """Up, once: what the trial's bits depend on here, as `Fingerprint.to_json` has it."""

    fingerprint: dict[str, Any]
    kind: Literal["surroundings"] = "surroundings"


@sendable
class Preparing:
    """Up: what the trial does next, before its first step, such as "building the model"."""

    stage: str
    kind: Literal["preparing"] = "preparing"


@sendable
class Started:
    """Up: everything is built and restored; the first step is about to run.

    ``trained_seconds`` is how long training had taken up to the checkpoint that it goes on from.
    """

    start_step: Count
    start_epoch: Count
    steps_per_epoch: Count
    trained_seconds: float = 0.0
    kind: Literal["started"] = "started"


@sendable
class StepsReached:
    """Up, a few times a second: how far training is."""

    epoch: Count
    step: Count
    kind: Literal["steps_reached"] = "steps_reached"


@sendable
class EpochsEnded:
    """Up: an epoch is over; or, from a resumed trial, all that its checkpoint knows of.

    The worker's database may lack epochs that a checkpoint has, when both died in between.
    """

    epochs: tuple[EpochRecord, ...]
    step: Count
    seconds: float | None = None
    kind: Literal["epochs_ended"] = "epochs_ended"


@sendable
class CheckpointCommitted:
    """Up: a checkpoint is on disk, whole.

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
    """Up: retention removed a checkpoint."""

    path: str
    kind: Literal["checkpoint_deleted"] = "checkpoint_deleted"


@sendable
class Warned:
    """Up: something the user should know."""

    message: str
    kind: Literal["warned"] = "warned"


@sendable
class Finished:
    """Up, last: training came to its end."""

    step: Count
    value: float
    digest: str
    further_values: tuple[float, ...] = ()
    kind: Literal["finished"] = "finished"


@sendable
class PrunedHere:
    """Up, last: ended as `Judged` said, after ``epoch`` (from 0), with a checkpoint at ``step``."""

    step: Count
    epoch: Count
    value: float
    digest: str
    kind: Literal["pruned_here"] = "pruned_here"


@sendable
class PausedHere:
    """Up, last: came to a rung after so many ``epochs``, with a checkpoint at ``step``."""

    step: Count
    epochs: Count
    value: float
    digest: str
    kind: Literal["paused_here"] = "paused_here"


@sendable
class StoppedHere:
    """Up, last: stopped on request, with a checkpoint at ``step``."""

    step: Count
    kind: Literal["stopped_here"] = "stopped_here"


@sendable
class Failed:
    """Up, last: the trial's own code failed.

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
