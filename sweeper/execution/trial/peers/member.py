"""Another process of a trial, as the first one sees it; known before TensorFlow is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.framing import MessagePipe


@dataclass(frozen=True)
class PeerProcess:
    """Another process of the trial, as the first one sees it.

    Attributes:
        pid: Its id.
        channel: What is said to it, and what it says.
        states: What it hands its state over.
        ended: How it ended, such as ``was killed by SIGKILL``, after waiting for so many seconds.
    """

    pid: int
    channel: Channel
    states: MessagePipe
    ended: Callable[[float], str]
