"""The state of all processes of a trial in one checkpoint, and each one's own when it is read again.

What is equal in all of them is there once. Values of replicas have names that tell the replica, over
all processes. Of what else another process has otherwise than the first one, its tensors are below
``processes/<index>/``, and its plain values in the state ``processes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.checkpoints.tensors import Array, ArrayLike, as_array, hash_tensor
from sweeper.checkpoints.values import decode_values
from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.encoding import first_replicas_name

COMPONENT = "processes"


@dataclass(frozen=True, eq=False)
class PeerState:
    """What one process sends of its state.

    Attributes:
        state: Its plain values, encoded.
        equal: Names of tensors that have the values of the first process's.
        other: The tensors that have others.
        repeated: See `Snapshot.repeated`.
        digested: See `Snapshot.digest_names`.
    """

    state: bytes
    equal: tuple[str, ...]
    other: Mapping[str, ArrayLike]
    repeated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digested: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its tensors."""
        return (*self.equal, *self.other)


def digests(tensors: Mapping[str, ArrayLike]) -> dict[str, str]:
    """What each tensor is, in few bytes: its type, shape and values."""
    found = {}
    for name, value in tensors.items():
        array = as_array(name, value)
        found[name] = f"{array.dtype.name}{list(array.shape)}{hash_tensor(array)}"
    return found


def compared_with(snapshot: Snapshot, of_first: Mapping[str, str]) -> PeerState:
    """The state of this process, for the first one, whose tensors' `digests` are given."""
    own = digests(snapshot.tensors)
    equal = tuple(n for n in own if of_first.get(first_replicas_name(n) or n) == own[n])
    return PeerState(
        snapshot.state_json,
        equal,
        {n: snapshot.tensors[n] for n in own if n not in frozenset(equal)},
        snapshot.repeated,
        snapshot.digest_names,
    )


def merged(own: Snapshot, peers: Sequence[PeerState]) -> Snapshot:
    """One snapshot of all processes.

    Args:
        own: The first process's.
        peers: The others', in their order.

    Raises:
        UncapturableError: A process has a variable that the first one lacks.
    """
    tensors = dict(own.tensors)
    repeated = dict(own.repeated)
    below: dict[str, list[str]] = {}
    apart: dict[str, Any] = {}
    state = decode_values(own.state_json)
    for index, peer in enumerate(peers, 1):
        for name in peer.names:
            first = first_replicas_name(name)
            if first is None:
                if name in peer.other:
                    tensors[f"{COMPONENT}/{index}/{name}"] = peer.other[name]
                continue
            if first not in own.tensors:
                msg = (
                    f"process {index} of the trial has a variable that process 0 lacks ({first}): "
                    "every process must make the same variables, in the same order"
                )
                raise UncapturableError(msg)
            tensors[name] = peer.other.get(name, own.tensors[first])
            if name in peer.digested:
                below.setdefault(first, []).append(name)
        for first, names in peer.repeated.items():
            repeated[first] = (*repeated.get(first, ()), *names)
        theirs = decode_values(peer.state)
        apart[str(index)] = {
            "state": {n: value for n, value in theirs.items() if state.get(n) != value},
            "lacks": _lacking(own.tensors, peer.names),
        }
    return Snapshot(
        step=own.step,
        epoch=own.epoch,
        tensors=tensors,
        state={**state, COMPONENT: {"count": len(peers) + 1, "apart": apart}},
        metrics=own.metrics,
        digest_names=tuple(n for each in own.digest_names for n in (each, *below.get(each, ()))),
        history=own.history,
        repeated=repeated,
    )


def _lacking(tensors: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which of the first process's tensors another process has none like."""
    covered = {first_replicas_name(name) or name for name in names}
    return [n for n in tensors if first_replicas_name(n) is None and n not in covered]


def state_of(loaded: LoadedCheckpoint, index: int, count: int) -> LoadedCheckpoint:
    """The checkpoint as one of ``count`` processes goes on from it.

    Raises:
        RestoreError: It is of another number of processes.
    """
    saved = loaded.state.get(COMPONENT)
    was = 1 if saved is None else saved["count"]
    if saved is None or was != count:
        msg = (
            f"the checkpoint {loaded.path} is of {was} process{'' if was == 1 else 'es'}, and the trial "
            f"has {count} now; go on with the number that it began with"
        )
        raise RestoreError(msg)
    own = saved["apart"].get(str(index), {"state": {}, "lacks": []})
    below, lacks = f"{COMPONENT}/{index}/", frozenset(own["lacks"])
    state = {name: value for name, value in loaded.state.items() if name != COMPONENT}
    tensors: dict[str, Array] = {}
    for name, value in loaded.tensors.items():
        if name.startswith(below):
            tensors[name.removeprefix(below)] = value
        elif not name.startswith(f"{COMPONENT}/") and name not in lacks:
            tensors.setdefault(name, value)
    return replace(loaded, state={**state, **own["state"]}, tensors=tensors)
