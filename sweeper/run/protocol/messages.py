"""Messages between a worker and its trial process, as frozen records that travel as JSON.

A trial process requests parameters, reports its progress, and receives requests to stop. It has no
access to the database, so training continues while the database is unreachable, and tests can drive a
trial with a fake worker. Receiving a message never executes code.

A replay ignores the study's own interval of checkpoints, which may depend on the clock, and deletes none:
the process that compares them does. One that is to be killed sends itself SIGKILL at an exact step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args

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
from sweeper.declarations.checkpointing import Keep
from sweeper.declarations.space import Categorical, CategoricalChoice, FloatRange, IntRange
from sweeper.definition.definition import StudySettings
from sweeper.records.findings import Line
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.replay.reports import Lengths, UserObjects
from sweeper.support.paths import RunPaths

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def sendable(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that is validated from JSON with exactly its fields."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, slots=True)(cls))


@sendable
class StudySource:
    """Location of a study's definition; what is ``pickled`` travels through a pipe and is never stored.

    Attributes:
        how: ``"target"``: import ``target``. ``"pickled"``: ``pickled`` is the definition itself,
            by cloudpickle in base64.
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``; with ``"pickled"``, the file that contains
            the definition's code, if there is one.
        study: The study's name, for a module that defines several.
        path: With ``"pickled"``, ``sys.path`` of the process that defined the study.
        texts: With ``"pickled"``, the notebook's cells, by the file names of their code.
        defined_code: With ``"pickled"``, the code as read by the process that defined it. A pickled function
            has only the variables that it names itself, so who loads it cannot see all of the code.
        code: Expected fingerprint of the loaded code; None to accept any.
        state: With ``"pickled"``, what the process that defined the study has set beside it
            (`sweeper.run.launch.process_state`).
    """

    how: Literal["target", "pickled"]
    target: str
    study: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    defined_code: Mapping[str, Any] | None = None
    code: Mapping[str, Any] | None = None
    state: str | None = None


def _kind_of(sent: Any) -> str:
    return str(sent.get("kind")) if isinstance(sent, dict) else type(sent).__name__


def _with_kind(sent: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return {"kind": type(sent).__name__, **handler(sent)}


def _without_kind(sent: Any) -> Any:
    if isinstance(sent, dict):
        return {name: value for name, value in sent.items() if name != "kind"}
    return sent


_writes = WrapSerializer(_with_kind)
_reads = BeforeValidator(_without_kind)
SentDistribution = Annotated[
    Annotated[FloatRange, _writes, _reads, Tag("FloatRange")]
    | Annotated[IntRange, _writes, _reads, Tag("IntRange")]
    | Annotated[Categorical, _writes, _reads, Tag("Categorical")],
    Discriminator(_kind_of),
]


@sendable
class Suggest:
    """Request for the value of the parameter ``name``; answered by `Answered`."""

    name: str
    distribution: SentDistribution


@sendable
class Judge:
    """Request for the pruner's decision, with the objective by epoch; answered by `Answered`."""

    values: tuple[tuple[int, float], ...]


@sendable
class Propose:
    """Request to train a built trial that has no checkpoint; answered by `Answered`, whether it is trained here.

    Attributes:
        reads_number: Whether its factories have read its number, so that no other trial has its result.
    """

    reads_number: bool = False


Question = Suggest | Judge | Propose
"""Request that is answered by `Answered`."""


@sendable
class Answered:
    """Answer to a request: a value, whether the pruner ends the trial, or it is trained; ``error`` if there is none."""

    value: CategoricalChoice
    error: str | None = None


@sendable
class HeldOutData:
    """Source of the data on which checkpoints are evaluated; the study's own without ``target`` and ``pickled``.

    Attributes:
        target: ``FILE:NAME`` or ``package.module:NAME``.
        pickled: A function ``trial -> Data``, or a `Data`, by cloudpickle in base64.
        path: Entries to add to ``sys.path``, for modules that ``pickled`` refers to.
        shown: Name of the data in messages; None for the study's own.
    """

    target: str | None = None
    pickled: str | None = None
    state: str | None = None
    path: tuple[str, ...] = ()
    shown: str | None = None


@sendable
class Evaluation:
    """Order to evaluate checkpoints, with their present paths."""

    checkpoints: tuple[CheckpointRecord, ...]
    data: HeldOutData


@sendable
class CheckpointEvaluated:
    checkpoint: CheckpointRecord
    data: str
    data_digest: str
    metrics: dict[str, float]


@sendable
class CheckpointPassedOver:
    """Report of a checkpoint that could not be evaluated, with the reason."""

    checkpoint: CheckpointRecord
    reason: str


@sendable
class Evaluated:
    """Last report of an evaluation: all checkpoints were evaluated or passed over, or the data are unusable.

    ``refused`` is the reason for which no trial can use the data, with the user's ``traceback`` if importing
    their file raised an error.
    """

    refused: str | None = None
    traceback: str = ""


KEEP_ALL = Keep(last=1 << 40)
"""Retention rules by which nothing is deleted."""


@sendable
class Replay:
    """Order to run a finished trial again, sent with its assignment.

    Attributes:
        checkpoints: Step and number of finished epochs of each checkpoint to take; None for those after
            the first step and at each epoch's end.
        also_after: Step from which on one more checkpoint is taken; None for no other.
        die_after: Step from which on the process kills itself, after writing its checkpoints.
        aside: Whether callbacks of Keras write files outside of the trial's directory to other paths.
        short: Whether long epochs and validations are shortened.
    """

    checkpoints: tuple[tuple[int, int], ...] | None
    also_after: int | None = None
    die_after: int | None = None
    aside: bool = False
    short: bool = False


Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number that fits into an integer column of every database."""


@sendable
class Assignment:
    """First message to a process: a trial to run, or what else to do with it.

    Attributes:
        settings: The study's settings; ``epochs`` is the trial's number of epochs, and ``pruner`` is None if
            it is not pruned.
        files: `Trial.directory`.
        log: File with the process's output, in the attempt's directory.
        checkpoints: Checkpoint directories, or prefixes in an object store, of earlier attempts and,
            last, of this one.
        known: Announced checkpoints that a listing of these may not show.
        end: Directory of the model as it is after training; None not to keep it.
        enqueued: Names of the values that ``enqueue`` gives to the trial, and whether another trial has
            suggested them.
        pause_after: The rung at which this attempt pauses; None to train to the end.
        devices: ``CUDA_VISIBLE_DEVICES`` for this trial; None to leave it unchanged.
        memory_limit: Megabytes of each GPU that the trial may use; None for no limit.
        source: The definition, for a process that has not loaded it yet.
        origin: Origin of its checkpoints without the parameters; None if nobody resumes from them.
        run_id: `Trial.run_id`.
        order: What to do instead of training the trial: replay it or evaluate its checkpoints; None to train.
        proposals: Number of earlier proposals of its parameters; see `Repeating.seed_position`.
    """

    settings: StudySettings
    number: int
    attempt: int
    files: str
    log: str
    checkpoints: tuple[str, ...]
    known: tuple[str, ...] = ()
    end: str | None = None
    enqueued: Mapping[str, bool] = field(default_factory=dict)
    pause_after: int | None = None
    devices: str | None = None
    memory_limit: int | None = None
    source: StudySource | None = None
    origin: Origin | None = None
    run_id: str | None = None
    order: Replay | Evaluation | None = None
    proposals: Count = 0


def assignment_of(
    settings: StudySettings,
    paths: RunPaths,
    number: int,
    attempt: int,
    *,
    ignore_checkpoints_through: int = 0,
    proposals: int = 0,
) -> Assignment:
    """Return the assignment of an attempt; callers set its other fields by `dataclasses.replace`.

    ``ignore_checkpoints_through`` is the number of the last attempt whose checkpoints are not resumed; 0 for none.
    """
    return Assignment(
        proposals=proposals,
        settings=settings,
        number=number,
        attempt=attempt,
        files=str(paths.trial_files(number)),
        log=str(paths.log(number, attempt)),
        end=str(paths.end_model(number)),
        checkpoints=tuple(
            str(paths.checkpoints(number, n))
            for n in range(ignore_checkpoints_through + 1, attempt + 1)
        ),
    )


@sendable
class Stop:
    """Request to finish the step, write a checkpoint, and stop."""


@sendable
class EnvironmentReport:
    """Report of the environment on which the trial's result depends, as `Fingerprint.to_json`; sent once."""

    fingerprint: dict[str, Any]


@sendable
class ReplayBuilt:
    """Report of a replay whose parts are made, and whose training is next.

    ``weights`` is the digest of what the model factory returned; ``lengths`` are None for the study's own.
    """

    user_objects: UserObjects
    weights: str
    lengths: Lengths | None = None


@sendable
class FilesUsed:
    """Report of the files outside of its own directory that the trial has used so far, as `uses_to_json`.

    It is sent once the study is imported, once the trial is built, and with its last message (``ended``).
    """

    files: dict[str, Any]
    ended: bool = False


@sendable
class Preparing:
    """Report of the trial's next activity before its first step, such as "building the model"."""

    stage: str


@sendable
class Started:
    """Report that the training is built and restored, and that its first step is next.

    ``trained_seconds`` is the training time up to the checkpoint from which it resumes.
    """

    start_step: Count
    start_epoch: Count
    steps_per_epoch: Count
    trained_seconds: float = 0.0


@sendable
class StepsReached:
    """Report of the training's progress, a few times a second."""

    epoch: Count
    step: Count


@sendable
class EpochsEnded:
    """Report of an epoch that has ended; a resumed trial first reports all epochs in its checkpoint.

    The database may lack epochs of a checkpoint, if the worker died before it stored them.
    """

    epochs: tuple[EpochRecord, ...]
    step: Count
    seconds: float | None = None


@sendable
class CheckpointCommitted:
    """Report of a checkpoint that is complete on disk.

    ``seconds`` is the duration of writing it in the background, and ``stalled_seconds`` that for which it
    blocked training; None if it existed before.
    """

    step: Count
    epoch: Count
    digest: str
    bytes: Count
    path: str
    seconds: float | None = None
    stalled_seconds: float | None = None


@sendable
class CheckpointDeleted:
    """Report of a checkpoint that retention has removed."""

    path: str


@sendable
class Warned:
    message: str


@sendable
class Finished:
    """Last report of a trial that is complete, or was pruned or paused at a rung after ``epochs``.

    ``digest`` is of its checkpoint at ``step``; ``value_of`` is as in `TrialRecord`.
    """

    step: Count
    value: float
    digest: str
    outcome: Literal["complete", "pruned", "paused"] = "complete"
    epochs: Count = 0
    further_values: tuple[float, ...] = ()
    value_of: str | None = None


@sendable
class StoppedHere:
    """Last report of a trial that was stopped on request, with a checkpoint at ``step``; 0 if it has none."""

    step: Count


@sendable
class Failed:
    """Last report of a trial whose code has failed.

    Attributes:
        error: One line: the error's type and message.
        traceback: The user's traceback; empty for an error that explains itself.
        fault: Its own code or data (``"trial"``); an allocation; the disk, or a checkpoint that does not fit
            (``"environment"``, the trial can be resumed); or the study's code has changed, so nothing was run.
        of_study: Whether every other trial would fail with the same error.
        lasting: Whether another attempt at this trial would fail with the same error.
        shares: Whether the guard refused an object that is older than the trial.
        line: The innermost line of the user's code that raised it; None if there is none.
        error_class: Name of the error's class.
        lacks_package: Whether a package that the code imports is not installed.
    """

    error: str
    traceback: str = ""
    of_study: bool = False
    lasting: bool = False
    shares: bool = False
    fault: Literal["trial", "memory", "environment", "definition"] = "trial"
    line: Line | None = None
    error_class: str = ""
    lacks_package: bool = False


LastMessage = Finished | StoppedHere | Failed
"""Last report of a trial."""

Message = (
    Assignment
    | Suggest
    | Judge
    | Propose
    | Answered
    | EnvironmentReport
    | ReplayBuilt
    | FilesUsed
    | Stop
    | Preparing
    | Started
    | StepsReached
    | EpochsEnded
    | CheckpointCommitted
    | CheckpointDeleted
    | Warned
    | Finished
    | StoppedHere
    | Failed
    | CheckpointEvaluated
    | CheckpointPassedOver
    | Evaluated
)
"""Message from or to one trial."""

_sent = (Annotated[kind, _writes, _reads, Tag(kind.__name__)] for kind in get_args(Message))
SentMessage: Any = Annotated[reduce(or_, _sent), Discriminator(_kind_of)]
"""`Message` as it travels, with the name of its class."""
