"""Pipe between a trial process and its worker: a socket pair that carries length-prefixed messages.

The other end may die within a message, and the trial's code may write arbitrary bytes into the pipe.
Meanwhile the reader must still notice requests to stop, time limits and deaths. So a message is
returned only when it is complete, and reading never blocks longer than its timeout. For the same
reason, a worker's messages are buffered here until the trial receives them.

The length is four bytes, big-endian, as in `multiprocessing.connection.Connection`. A closed other end
means that the worker is gone.
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
"""Seconds; if two reads are further apart, this process was suspended, and the rest is not counted."""


class GarbledError(ExecutionError):
    """Bytes from a pipe that are not a message, so the pipe is unusable."""


class MessagePipe:
    """One end of the socket pair. Any thread may send; one thread receives.

    Args:
        end: The socket; `close` closes it.
        most: Maximum size of a received message in bytes.

    Attributes:
        waited_for_rest: Seconds of waiting for the rest of a message since the last bytes were received.
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
        """Return whether a part of a message was received."""
        return bool(self._received)

    def send_bytes(self, message: bytes, *, waits: bool = True) -> None:
        """Send one message.

        Args:
            message: The message.
            waits: Whether to wait until the socket has taken the whole message; otherwise the rest is
                sent during the next calls.

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
            EOFError: The other end is gone, and all of its complete messages have been received.
            OSError: This end is closed.
            GarbledError: The received bytes do not begin a message.
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
        """Close this end; the other end receives EOF."""
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
        """Wait until the socket is ready for ``what``; return False after ``timeout`` seconds."""
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

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Ask the worker for a parameter's value and wait for it.

        Raises:
            ParameterError: The worker has none, for the reason that it sent.
        """

    def judge(self, question: Judge) -> Judged:
        """Ask the worker whether to prune, and wait for its answer."""

    def stop_requested(self) -> bool:
        """Return whether the worker or a signal has requested that the trial stops."""


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
            message: The message.
            waits: Whether to wait until the socket has taken all of it. A worker does not wait, so
                that it can end a trial that receives nothing.

        Raises:
            OSError: The other end is gone.
        """
        # Pydantic's JSON cannot contain text that is not UTF-8, as names of files may be.
        encoded = json.dumps(_adapter.dump_python(message, mode="json")).encode()
        self.connection.send_bytes(encoded, waits=waits)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none is complete after ``timeout`` seconds.

        Raises:
            EOFError: The other end is gone, and all of its complete messages have been received.
            GarbledError: The received bytes are not a message.
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
        """Check that the rest of a message has not been missing for ``patience`` seconds.

        Raises:
            GarbledError: It has.
        """
        if self.connection.is_within_message and self.connection.waited_for_rest >= patience:
            msg = (
                "the pipe between a worker and its trial carried an incomplete message; "
                f"{_WHAT_TO_DO}"
            )
            raise GarbledError(msg)

    def close(self) -> None:
        self.connection.close()
