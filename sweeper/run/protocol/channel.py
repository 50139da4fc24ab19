"""Pipe between a trial process and its worker: a socket pair that carries `multiprocessing`'s messages.

The other end may die within a message, and the trial's code may write arbitrary bytes into the pipe.
Meanwhile the worker must still notice requests to stop, time limits and deaths. So a thread of the
channel reads, and receiving waits for that thread, never longer than its timeout.

A closed other end means that the worker is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.errors import ExecutionError, ParameterError
from sweeper.run.protocol import messages


class GarbledError(ExecutionError):
    """Bytes from a pipe that are not a message, so the pipe is unusable."""


class IncompleteError(GarbledError):
    """A pipe that ended within a message, because the other end died or its code wrote into the pipe."""


_MOST_BYTES = 1 << 28
"""Maximum size of a trial's message in bytes."""

_WHAT_TO_DO = (
    "both ends must run the same sweeper, and the trial's code must not read from or write to files "
    "that it did not open"
)
_adapter: TypeAdapter[messages.Message] = TypeAdapter(
    messages.SentMessage, config=ConfigDict(ser_json_inf_nan="constants")
)


class Link(ABC):
    """Trial's side of the conversation."""

    @abstractmethod
    def send(self, message: messages.Message) -> None:
        """Send a message to the worker."""

    @abstractmethod
    def ask(self, question: messages.Question) -> messages.Answered:
        """Send a request to the worker, and wait for the answer."""

    @abstractmethod
    def stop_requested(self) -> bool:
        """Return whether the worker or a signal has requested that the trial stops."""

    def warn(self, message: str) -> None:
        """Send a warning to the user."""
        self.send(messages.Warned(message))

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return a parameter's value from the worker; raise a `ParameterError` if it has none."""
        answer = self.ask(messages.Suggest(name, distribution))
        if answer.error is not None:
            raise ParameterError(answer.error)
        return answer.value


class Channel:
    """One end of the pipe, whose socket `close` closes. Any thread may send; one thread receives.

    ``most`` is the maximum size of a received message in bytes; None for no limit.
    """

    def __init__(self, end: socket.socket, most: int | None = None) -> None:
        self.connection = Connection(os.dup(end.fileno()))
        self._end = end
        self._most = most
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[messages.Message | Exception] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the worker's end, and the socket to hand to the trial's process."""
        worker_end, trial_end = socket.socketpair()
        return cls(worker_end, _MOST_BYTES), trial_end

    @classmethod
    def on(cls, descriptor: int) -> Channel:
        """Return the trial's end, whose file descriptor was handed to this process."""
        return cls(socket.socket(fileno=descriptor))

    def send(self, message: messages.Message) -> None:
        """Send ``message``, and wait until the socket has taken it; raise `OSError` if an end is closed.

        A worker sends only answers and one request to stop, for which the socket always has room.
        """
        # Pydantic's JSON cannot contain text that is not UTF-8, as names of files may be.
        encoded = json.dumps(_adapter.dump_python(message, mode="json")).encode()
        # `Connection` writes the length and the bytes of a long message separately, so two senders would mix.
        with self._sending:
            self.connection.send_bytes(encoded)

    def receive(self, timeout: float | None = None) -> messages.Message | None:
        """Return the next message, or None if none is complete after ``timeout`` seconds.

        Raises:
            EOFError: The other end is gone, and all of its complete messages have been received.
            IncompleteError: The same, and it ended within a message.
            GarbledError: The received bytes are not a message.
        """
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="sweeper-channel", daemon=True)
            self._reader.start()
        try:
            received = self._received.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(received, Exception):
            # Put back, because the reader has ended and a later call has to raise it, too.
            self._received.put(received)
            raise received
        return received

    def end_receiving(self) -> None:
        """Receive only what the pipe contains now, even if another process still holds its other end."""
        # The other end may have closed the connection already.
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end; the other end receives EOF after the messages that were sent."""
        # Before `close`, because a reader thread may be blocked in a read of the descriptor, which would be
        # reused.
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        if self._reader is not None:
            self._reader.join()
        self._end.close()
        self.connection.close()

    def _read(self) -> None:
        while True:
            try:
                self._received.put(self._next())
            except Exception as error:
                self._received.put(error)
                return

    def _next(self) -> messages.Message:
        try:
            received = self.connection.recv_bytes(self._most)
        except ConnectionError as error:
            raise EOFError from error
        except OSError as error:
            # `Connection` raises one for a message that is too long, and for one that is incomplete.
            msg = (
                "the pipe between a worker and its trial carried an incomplete message, or bytes "
                f"that begin none ({error}); {_WHAT_TO_DO}"
            )
            ended = "end of file" in str(error)
            raise (IncompleteError if ended else GarbledError)(msg) from error
        try:
            return _adapter.validate_python(json.loads(received))
        except (ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise GarbledError(
                f"the pipe between a worker and its trial carried {received[:200]!r}, which is "
                f"not a message ({reason}); {_WHAT_TO_DO}"
            ) from error
