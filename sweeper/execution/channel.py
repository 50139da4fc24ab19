"""What a trial process and its worker say to each other, and the pipe that carries it.

One way up, one way down. A trial process asks for parameters, tells what happened, and is told to
stop; it knows no database, so a database that is away stops no training, and a test drives a trial
with a fake worker. Messages are frozen dataclasses, sent as JSON: nothing that arrives can run.

The pipe is a socket pair. When its other end is closed, the worker is gone.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from sweeper.errors import ExecutionError
from sweeper.execution.rehearsing import Rehearsal, Rehearsed, Rehearsing
from sweeper.execution.replaying import Replay
from sweeper.execution.wire import SentDistribution
from sweeper.results import EpochRecord
from sweeper.space import CategoricalChoice

__all__ = [
    "Assignment",
    "Channel",
    "CheckpointCommitted",
    "CheckpointDeleted",
    "EpochsEnded",
    "Failed",
    "Finished",
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


@with_config(_config)
@dataclass(frozen=True, slots=True)
class StudySource:
    """Where a process finds the study's definition.

    Attributes:
        how: ``"target"``: import ``target``. ``"pickled"``: ``pickled`` is the definition itself,
            by cloudpickle and base64, made by the process that started this one and sent over a
            pipe; it is never stored.
        target: ``FILE[:NAME]`` or ``package.module[:NAME]``; with ``"pickled"``, where the
            definition's code stands, if that is a file.
        study: The study's name, where the module holds several.
        path: ``sys.path`` of the process that defined it, with ``"pickled"``.
    """

    how: Literal["target", "pickled"]
    target: str
    study: str | None = None
    pickled: str | None = None
    path: tuple[str, ...] = ()


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
        pruning: Whether to ask, after each epoch but the last, whether the trial ends there.
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
    kind: Literal["assignment"] = "assignment"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Suggest:
    """Up, awaiting `Suggested`: a value for the parameter ``name``."""

    name: str
    distribution: SentDistribution
    kind: Literal["suggest"] = "suggest"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Suggested:
    """Down: the value, or why there is none (``error``)."""

    value: CategoricalChoice
    error: str | None = None
    kind: Literal["suggested"] = "suggested"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Judge:
    """Up, awaiting `Judged`: whether to end here; with the objective of every epoch so far."""

    values: tuple[tuple[int, float], ...]
    kind: Literal["judge"] = "judge"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class Judged:
    """Down: whether the study's pruner ends the trial, or why it could not say (``error``)."""

    prune: bool
    error: str | None = None
    kind: Literal["judged"] = "judged"


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

    start_step: int
    start_epoch: int
    steps_per_epoch: int
    trained_seconds: float = 0.0
    kind: Literal["started"] = "started"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class StepsReached:
    """Up, a few times a second: how far training is."""

    epoch: int
    step: int
    kind: Literal["steps_reached"] = "steps_reached"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class EpochsEnded:
    """Up: an epoch is over; or, from a resumed trial, all that its checkpoint knows of.

    The worker's database may lack epochs that a checkpoint has, when both died in between.
    """

    epochs: tuple[EpochRecord, ...]
    step: int
    seconds: float | None = None
    kind: Literal["epochs_ended"] = "epochs_ended"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """Up: a checkpoint is on disk, whole."""

    step: int
    epoch: int
    digest: str
    bytes: int
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

    step: int
    value: float
    digest: str
    further_values: tuple[float, ...] = ()
    kind: Literal["finished"] = "finished"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class PrunedHere:
    """Up, last: ended as `Judged` said, after ``epoch`` (from 0), with a checkpoint at ``step``."""

    step: int
    epoch: int
    value: float
    digest: str
    kind: Literal["pruned_here"] = "pruned_here"


@with_config(_config)
@dataclass(frozen=True, slots=True)
class StoppedHere:
    """Up, last: stopped on request, with a checkpoint at ``step``."""

    step: int
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
            blame and can be resumed once that is mended.
    """

    error: str
    traceback: str = ""
    fault: Literal["trial", "memory", "environment"] = "trial"
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

    def stop_requested(self) -> bool:
        """Whether the worker, or a signal, has asked this trial to stop."""
        ...


@dataclass
class Channel:
    """One end of the pipe. Any thread may send; one thread receives."""

    connection: Connection
    _sending: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """This process's end, and the socket to hand to the other process."""
        ours, theirs = socket.socketpair()
        return cls(Connection(ours.detach())), theirs

    @classmethod
    def on(cls, descriptor: int) -> Channel:
        """The end whose file descriptor was handed to this process."""
        return cls(Connection(descriptor))

    def send(self, message: Message) -> None:
        """Send ``message``.

        Raises:
            OSError: The other end is gone.
        """
        # Pydantic's own JSON has null for NaN and infinity, which are metrics like others here.
        encoded = json.dumps(_adapter.dump_python(message, mode="json")).encode()
        with self._sending:
            self.connection.send_bytes(encoded)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None when ``timeout`` seconds have passed.

        Raises:
            EOFError: The other end is gone, and everything it sent has been received.
            ExecutionError: What came is no message.
        """
        try:
            if timeout is not None and not self.connection.poll(timeout):
                return None
            received = self.connection.recv_bytes()
        except ConnectionError as error:
            raise EOFError from error
        try:
            return _adapter.validate_python(json.loads(received))
        except ValueError as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            msg = (
                f"the pipe between a worker and its trial carried {received[:200]!r}, which is no "
                f"message ({reason}); both ends must run the same sweeper, and "
                "the trial's code must not write to files that it did not open"
            )
            raise ExecutionError(msg) from error

    def close(self) -> None:
        self.connection.close()
