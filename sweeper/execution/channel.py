"""What a trial process and its worker say to each other, and the pipe that carries it.

One way up, one way down. A trial process asks for parameters, tells what happened, and is told to
stop; it knows no database, so a database that is away stops no training, and a test drives a trial
with a fake worker. Messages are frozen dataclasses, sent as JSON: nothing that arrives can run.

The pipe is a socket pair. When its other end is closed, the worker is gone.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from sweeper.checkpoints.origin import Origin
from sweeper.execution.audit_orders import AuditOrder, GoOn, Held, IntervalPinned
from sweeper.execution.framing import GarbledError, MessagePipe
from sweeper.execution.questions import Judge, Judged, Suggest, Suggested
from sweeper.execution.rehearsing import Rehearsal, Rehearsed, Rehearsing
from sweeper.execution.replaying import Replay
from sweeper.execution.study_source import StudySource
from sweeper.results import EpochRecord

__all__ = [
    "Assignment",
    "AuditOrder",
    "Channel",
    "CheckpointCommitted",
    "CheckpointDeleted",
    "EpochsEnded",
    "Failed",
    "Finished",
    "GarbledError",
    "GoOn",
    "Held",
    "IntervalPinned",
    "Judge",
    "Judged",
    "Link",
    "Message",
    "PrunedHere",
    "Rehearsed",
    "Rehearsing",
    "Started",
    "StepsReached",
    "Stop",
    "StoppedHere",
    "StudySource",
    "Suggest",
    "Suggested",
    "Surroundings",
    "Warned",
]

_config = ConfigDict(extra="forbid")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number that every database can hold."""

_MOST_SAID = 1 << 28
"""Bytes that one message of a trial has at most."""


@with_config(_config)
@dataclass(frozen=True, slots=True)
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
        replay: Set where a finished trial is run again to be compared.
        rehearsal: Set where a study is only checked.
        further_objectives: Metrics that the epochs must report beside the objective.
        audit: What is pinned of it to be audited, and whether it waits; None for nothing.
        pruning: Whether to ask, after each epoch but the last, whether the trial ends there.
        origin: Whose its checkpoints are, but for the parameters; None where nobody resumes from
            them.
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
    rehearsal: Rehearsal | None = None
    further_objectives: tuple[str, ...] = ()
    pruning: bool = False
    known: tuple[str, ...] = ()
    audit: AuditOrder | None = None
    origin: Origin | None = None
    kind: Literal["assignment"] = "assignment"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Stop:
    """Down: finish the step, checkpoint, stop."""

    kind: Literal["stop"] = "stop"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Surroundings:
    """Up, once: what the trial's bits depend on here, as `Fingerprint.to_json` has it."""

    fingerprint: dict[str, Any]
    kind: Literal["surroundings"] = "surroundings"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Started:
    """Up: everything is built and restored; the first step is about to run.

    ``trained_seconds`` is how long training had taken up to the checkpoint that it goes on from.
    """

    start_step: Count
    start_epoch: Count
    steps_per_epoch: Count
    trained_seconds: float = 0.0
    kind: Literal["started"] = "started"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class StepsReached:
    """Up, a few times a second: how far training is."""

    epoch: Count
    step: Count
    kind: Literal["steps_reached"] = "steps_reached"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class EpochsEnded:
    """Up: an epoch is over; or, from a resumed trial, all that its checkpoint knows of.

    The worker's database may lack epochs that a checkpoint has, when both died in between.
    """

    epochs: tuple[EpochRecord, ...]
    step: Count
    seconds: float | None = None
    kind: Literal["epochs_ended"] = "epochs_ended"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """Up: a checkpoint is on disk, whole."""

    step: Count
    epoch: Count
    digest: str
    bytes: Count
    path: str
    kind: Literal["checkpoint_committed"] = "checkpoint_committed"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class CheckpointDeleted:
    """Up: retention removed a checkpoint."""

    path: str
    kind: Literal["checkpoint_deleted"] = "checkpoint_deleted"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Warned:
    """Up: something the user should know."""

    message: str
    kind: Literal["warned"] = "warned"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Finished:
    """Up, last: training came to its end."""

    step: Count
    value: float
    digest: str
    further_values: tuple[float, ...] = ()
    kind: Literal["finished"] = "finished"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class PrunedHere:
    """Up, last: ended as `Judged` said, after ``epoch`` (from 0), with a checkpoint at ``step``."""

    step: Count
    epoch: Count
    value: float
    digest: str
    kind: Literal["pruned_here"] = "pruned_here"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class StoppedHere:
    """Up, last: stopped on request, with a checkpoint at ``step``."""

    step: Count
    kind: Literal["stopped_here"] = "stopped_here"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Failed:
    """Up, last: the trial's own code failed.

    Attributes:
        error: One line: the error's type and message.
        traceback: The user's traceback; empty for an error that explains itself.
        fault: ``"trial"``: its own code or data. ``"memory"``: an allocation failed.
            ``"environment"``: the disk, or a checkpoint that does not fit; the trial is not to
            blame and can be resumed once that is mended. ``"definition"``: the study's code is
            another one by now, so nothing was run.
    """

    error: str
    traceback: str = ""
    fault: Literal["trial", "memory", "environment", "definition"] = "trial"
    kind: Literal["failed"] = "failed"


Message = (
    Assignment
    | Suggest
    | Suggested
    | Judge
    | Judged
    | Surroundings
    | Stop
    | Started
    | StepsReached
    | EpochsEnded
    | CheckpointCommitted
    | CheckpointDeleted
    | Warned
    | Finished
    | PrunedHere
    | StoppedHere
    | Failed
    | Rehearsing
    | Rehearsed
    | IntervalPinned
    | Held
    | GoOn
)

_WHAT_TO_DO = (
    "both ends must run the same sweeper, and the trial's code must not read from or write to files "
    "that it did not open"
)
_adapter: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="kind")], config=ConfigDict(ser_json_inf_nan="constants")
)


class Link(Protocol):
    """The trial's side of the conversation, whatever carries it."""

    def send(self, message: Message) -> None:
        """Tell the worker."""
        ...

    def ask(self, question: Suggest) -> Suggested:
        """Ask the worker and wait for its answer."""
        ...

    def judge(self, question: Judge) -> Judged:
        """Ask the worker whether to end, and wait for its answer."""
        ...

    def hold(self, step: int) -> None:
        """Tell the worker that this trial waits, and wait until it goes on or is to stop."""
        ...

    def stop_requested(self) -> bool:
        """Whether the worker, or a signal, has asked this trial to stop."""
        ...


@dataclass
class Channel:
    """One end of the pipe. Any thread may send; one thread receives."""

    connection: MessagePipe

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """The worker's end, and the socket to hand to the trial's process."""
        ours, theirs = socket.socketpair()
        return cls(MessagePipe(ours, _MOST_SAID)), theirs

    @classmethod
    def on(cls, descriptor: int) -> Channel:
        """The trial's end, whose file descriptor was handed to this process."""
        return cls(MessagePipe(socket.socket(fileno=descriptor)))

    def send(self, message: Message, *, waits: bool = True) -> None:
        """Send ``message``.

        Args:
            message: What to send.
            waits: Whether to return only when the other end has room for it. A worker does not
                wait: a trial that takes nothing must not keep it from ending that trial.

        Raises:
            OSError: The other end is gone.
        """
        # Pydantic's own JSON has null for NaN and infinity, which are metrics like others here.
        encoded = json.dumps(_adapter.dump_python(message, mode="json")).encode()
        self.connection.send_bytes(encoded, waits=waits)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None when ``timeout`` seconds have passed without a whole one.

        Raises:
            EOFError: The other end is gone, and every whole message it sent has been received.
            GarbledError: What came is no message.
        """
        try:
            received = self.connection.receive_bytes(timeout)
        except GarbledError as error:
            msg = f"the pipe between a worker and its trial carried {error}; {_WHAT_TO_DO}"
            raise GarbledError(msg) from error
        if received is None:
            return None
        try:
            return _adapter.validate_python(json.loads(received))
        except (ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            msg = (
                f"the pipe between a worker and its trial carried {received[:200]!r}, which is no "
                f"message ({reason}); {_WHAT_TO_DO}"
            )
            raise GarbledError(msg) from error

    def check_coming(self, patience: float) -> None:
        """Check that the rest of a message came within ``patience`` seconds of looking for it.

        Raises:
            GarbledError: It did not.
        """
        if self.connection.is_within_message and self.connection.waited_for_rest >= patience:
            msg = f"the pipe carried the beginning of a message and no end of it; {_WHAT_TO_DO}"
            raise GarbledError(msg)

    def close(self) -> None:
        self.connection.close()
