"""The pipe between a trial process and its worker, and how a message goes through it: as JSON.

The pipe is a socket pair. When its other end is closed, the worker is gone.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.execution.protocol.framing import GarbledError, MessagePipe
from sweeper.execution.protocol.messages import Message
from sweeper.execution.protocol.questions import Judge, Judged

_MOST_BYTES = 1 << 28
"""That one message of a trial has at most."""

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

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Ask the worker for a parameter's value and wait for it.

        Raises:
            ParameterError: There is none, for a reason that the worker gives.
        """
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

    connection: MessagePipe

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """The worker's end, and the socket to hand to the trial's process."""
        ours, theirs = socket.socketpair()
        return cls(MessagePipe(ours, _MOST_BYTES)), theirs

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
        # Pydantic's own JSON has no text that is not UTF-8, such as a file's name may be.
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
