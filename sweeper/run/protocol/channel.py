"""Pipe between a trial process and its worker, with messages after their lengths.

The pipe is a socket pair. When its other end is closed, the worker is gone.

The other end may be cut off within a message, or the trial's own code may write what is none. Then
whoever reads must still see a request to stop, a time limit and a death: so a message is handed
over when all of it is there, and until then reading gives nothing. What a worker sends is kept
here until the trial takes it, for the same reason.

The length is four bytes, big-endian, as in `multiprocessing.connection.Connection`.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from sweeper.errors import ExecutionError
from sweeper.run.protocol.messages import Judge, Judged, Message
from sweeper.spec.space import CategoricalChoice, Distribution

_LENGTH = struct.Struct("!I")
_PIECE = 1 << 18
_MOST = (1 << 31) - 1
_LONGEST_LOOK = 1.0
"""Seconds between two checks above which this process itself was suspended."""


class GarbledError(ExecutionError):
    """Bytes from a pipe that are not a message, so the pipe is unusable."""


class MessagePipe:
    """One end of a socket pair. Any thread may send; one thread receives.

    Args:
        end: The socket; it is closed with this.
        most: Bytes that one received message has at most.

    Attributes:
        waited_for_rest: Seconds for which the rest of a message was looked for, and nothing came.
    """

    def __init__(self, end: socket.socket, most: int = _MOST) -> None:
        end.setblocking(False)
        self._end = end
        self._most = most
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._sending = threading.Lock()
        self._looked = time.monotonic()
        self.waited_for_rest = 0.0

    @property
    def is_within_message(self) -> bool:
        """Return whether a message was received partly."""
        return bool(self._received)

    def send_bytes(self, message: bytes, *, waits: bool = True) -> None:
        """Send one message.

        Args:
            message: What to send.
            waits: Whether to return only when the other end has room for all of it; otherwise what
                it has no room for goes out with what is sent or received next.

        Raises:
            OSError: The other end is gone, or this one is closed.
        """
        with self._sending:
            self._unsent.append(memoryview(_LENGTH.pack(len(message)) + message))
            self._flush()
            while waits and self._unsent:
                self._wait(select.POLLOUT, None)
                self._flush()

    def receive_bytes(self, timeout: float | None) -> bytes | None:
        """Return the next message, or None if none is complete after ``timeout`` seconds.

        Raises:
            EOFError: The other end is gone, and every whole message of it has been received.
            OSError: This end is closed.
            GarbledError: What came begins no message.
        """
        until = None if timeout is None else time.monotonic() + timeout
        looked = False
        while True:
            message = self._take()
            if message is not None:
                return message
            left = None if until is None else max(0.0, until - time.monotonic())
            if (left == 0 and looked) or not self._wait(select.POLLIN, left):
                self._note_wait()
                return None
            looked = True
            self._read()

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end, which the other end notices."""
        self._end.close()

    def _take(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > self._most:
            msg = f"{bytes(self._received[:200])!r}, which is not the beginning of a message"
            raise GarbledError(msg)
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def _read(self) -> None:
        try:
            came = self._end.recv(_PIECE)
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise EOFError from error
        if not came:
            raise EOFError
        self.waited_for_rest = 0.0
        self._received += came

    def _note_wait(self) -> None:
        now = time.monotonic()
        if self._received:
            self.waited_for_rest += min(now - self._looked, _LONGEST_LOOK)
        self._looked = now

    def _wait(self, what: int, timeout: float | None) -> bool:
        """Wait until the other end has sent data, or can receive; return whether it has."""
        if self._end.fileno() < 0:
            msg = "the pipe is closed"
            raise OSError(msg)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            poll = select.poll()
            unsent = what == select.POLLIN and bool(self._unsent)
            poll.register(self._end, what | (select.POLLOUT if unsent else 0))
            left = None if until is None else max(0.0, until - time.monotonic())
            found = poll.poll(None if left is None else left * 1000)
            if not found:
                return False
            if found[0][1] & ~select.POLLOUT or what == select.POLLOUT:
                return True
            self._send_more()

    def _send_more(self) -> None:
        """Send buffered data; a closed pipe is noticed when reading."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._flush()
            finally:
                self._sending.release()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._end.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
            raise


_MOST_BYTES = 1 << 28
"""Maximum size of a trial's message in bytes."""

_WHAT_TO_DO = (
    "both ends must run the same sweeper, and the trial's code must not read from or write to files "
    "that it did not open"
)
_adapter: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="kind")], config=ConfigDict(ser_json_inf_nan="constants")
)


class Link(Protocol):
    """Interface of the trial's side of the conversation."""

    def send(self, message: Message) -> None:
        """Send a message to the worker."""
        ...

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Ask the worker for a parameter's value and wait for it.

        Raises:
            ParameterError: There is none, for a reason that the worker gives.
        """
        ...

    def judge(self, question: Judge) -> Judged:
        """Ask the worker whether to prune, and wait for its answer."""
        ...

    def stop_requested(self) -> bool:
        """Return whether the worker, or a signal, has asked this trial to stop."""
        ...


@dataclass
class Channel:
    """One end of the pipe. Any thread may send; one thread receives."""

    connection: MessagePipe

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the worker's end, and the socket to hand to the trial's process."""
        ours, theirs = socket.socketpair()
        return cls(MessagePipe(ours, _MOST_BYTES)), theirs

    @classmethod
    def on(cls, descriptor: int) -> Channel:
        """Return the trial's end, whose file descriptor was handed to this process."""
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
        """Return the next message, or None if none is complete after ``timeout`` seconds.

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
                f"the pipe between a worker and its trial carried {received[:200]!r}, which is "
                f"not a message ({reason}); {_WHAT_TO_DO}"
            )
            raise GarbledError(msg) from error

    def check_coming(self, patience: float) -> None:
        """Check that the rest of a message was received within ``patience`` seconds.

        Raises:
            GarbledError: It did not.
        """
        if self.connection.is_within_message and self.connection.waited_for_rest >= patience:
            msg = (
                "the pipe between a worker and its trial carried an incomplete message; "
                f"{_WHAT_TO_DO}"
            )
            raise GarbledError(msg)

    def close(self) -> None:
        self.connection.close()
