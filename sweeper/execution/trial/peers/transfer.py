"""How a process of a trial hands its state to the first one: what is equal there is not sent.

Over a socket of its own, each message after its length: from the first process the digests of its
tensors; back a header as JSON, and the bytes of each tensor that has other values, in pieces.
"""

from __future__ import annotations

import json

import numpy as np

from sweeper.checkpoints.format import Snapshot
from sweeper.checkpoints.tensors import Array, as_array, named_dtype
from sweeper.execution.protocol.framing import MessagePipe
from sweeper.execution.trial.peers.states import PeerState, compared_with, digests

_PIECE = 1 << 26


def ask(pipes: list[MessagePipe], snapshot: Snapshot) -> list[PeerState]:
    """The states of the other processes, which each `answer`.

    Raises:
        EOFError, OSError: One of them is gone.
    """
    asked = json.dumps(digests(snapshot.tensors)).encode()
    for pipe in pipes:
        pipe.send_bytes(asked)
    return [_received(pipe) for pipe in pipes]


def answer(pipe: MessagePipe, snapshot: Snapshot) -> None:
    """Give the first process this one's state.

    Raises:
        EOFError, OSError: It is gone.
    """
    peer = compared_with(snapshot, json.loads(_next(pipe)))
    arrays = {name: as_array(name, value) for name, value in peer.other.items()}
    header = {
        "state": peer.state.decode(),
        "equal": peer.equal,
        "other": [[name, a.dtype.name, a.shape] for name, a in arrays.items()],
        "repeated": peer.repeated,
        "digested": peer.digested,
    }
    pipe.send_bytes(json.dumps(header).encode())
    for array in arrays.values():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for at in range(0, content.size, _PIECE):
            pipe.send_bytes(content[at : at + _PIECE].tobytes())


def _received(pipe: MessagePipe) -> PeerState:
    header = json.loads(_next(pipe))
    return PeerState(
        header["state"].encode(),
        tuple(header["equal"]),
        {name: _array(pipe, dtype, tuple(shape)) for name, dtype, shape in header["other"]},
        {first: tuple(names) for first, names in header["repeated"].items()},
        tuple(header["digested"]),
    )


def _array(pipe: MessagePipe, dtype: str, shape: tuple[int, ...]) -> Array:
    array: Array = np.empty(shape, named_dtype(dtype))
    content = array.reshape(-1).view(np.uint8)
    at = 0
    while at < content.size:
        piece = np.frombuffer(_next(pipe), np.uint8)
        content[at : at + piece.size] = piece
        at += piece.size
    return array


def _next(pipe: MessagePipe) -> bytes:
    received = pipe.receive_bytes(None)
    if received is None:
        raise EOFError
    return received
