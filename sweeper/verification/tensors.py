"""A replay's checkpoint against the kept one at its step, tensor by tensor.

The manifests name each tensor's digest, so equal ones are never read; of those that differ, the
first is, to say by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.checkpoints.format import STATE_FILE
from sweeper.checkpoints.reading import load_checkpoint, read_manifest
from sweeper.checkpoints.values import decode_values
from sweeper.execution.audit.differences import (
    how_tensors_differ,
    random_states,
    tensor_entries,
    variable_name,
    variable_names,
)
from sweeper.execution.protocol.messages import CheckpointCommitted
from sweeper.verification.kept import KeptCheckpoint

_OWN_STATE = ("callbacks/", "data/")
"""Tensors that may hold what differs in every run, such as a callback's measured times."""


@dataclass(frozen=True)
class SeenCheckpoint:
    """A checkpoint of the replay, compared with the kept one while both were on disk.

    Attributes:
        digest: The replay's.
        tensors: How many tensors were compared.
        differing: Those that differ, by the names that the user knows, the model's first.
        own_state: Those that differ and are a callback's or the data's own.
        first: How the first of ``differing`` differs.
        random: The random generators whose state differs beside their tensors.
    """

    kept: KeptCheckpoint
    digest: str
    tensors: int = 0
    differing: tuple[str, ...] = ()
    own_state: tuple[str, ...] = ()
    first: str = ""
    random: tuple[str, ...] = ()


def see(kept: KeptCheckpoint, committed: CheckpointCommitted) -> SeenCheckpoint:
    """Compare a checkpoint of the replay, still on disk, with the kept one.

    Raises:
        CheckpointError: The replay's cannot be read.
    """
    if kept.manifest is None:
        return SeenCheckpoint(kept, committed.digest)
    path = Path(committed.path)
    state = decode_values((path / STATE_FILE).read_bytes())
    names = variable_names(state)
    ours, theirs = tensor_entries(kept.manifest), tensor_entries(read_manifest(path))
    order = [*ours, *(name for name in theirs if name not in ours)]
    parted = [name for name in order if ours.get(name) != theirs.get(name)]
    differing = [name for name in parted if not name.startswith(_OWN_STATE)]
    again = random_states(state)
    return SeenCheckpoint(
        kept=kept,
        digest=committed.digest,
        tensors=len(order),
        differing=tuple(variable_name(name, names) or name for name in differing),
        own_state=tuple(name for name in parted if name.startswith(_OWN_STATE)),
        first=_how(differing[0], kept, path) if differing else "",
        random=tuple(name for name, was in kept.random.items() if again.get(name) != was),
    )


def _how(name: str, kept: KeptCheckpoint, replay: Path) -> str:
    """How the tensor ``name`` of a kept checkpoint differs from the replay's."""
    if kept.damage is not None or kept.path is None:
        return "by its digest; the kept file is damaged"
    ours = load_checkpoint(kept.path).tensors.get(name)
    theirs = load_checkpoint(replay).tensors.get(name)
    return how_tensors_differ(ours, theirs, ("kept checkpoint", "replay"))
