"""A trial's model as training left it: what ``fit`` would have left in the model it was given.

Once training is over, Keras changes the model a last time: `EarlyStopping` puts the best epoch's
weights back, an optimizer with averages writes them over the weights, and any callback's
``on_train_end`` may do the like. No checkpoint has that. So each trial that comes to its end keeps
one thing more, in the form of a checkpoint at one fixed path below the trial's directory: the
model's variables, or, where they are those of the trial's last checkpoint, that checkpoint's name
and digest. It is there before the trial is announced as finished, no retention rule and no ``gc``
looks there, and it goes with the trial's directory.

It always says which of the two holds. Were nothing written where nothing differs, a directory that
was lost would be taken for a model that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sweeper.checkpoint.format import Committed, LoadedCheckpoint, Snapshot
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_manifest
from sweeper.checkpoint.tensors import ArrayLike, as_array, hash_tensor
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location

_SAME = "same_as"


class EndStore(Protocol):
    """The part of a checkpoint store that this module uses."""

    def commit(self, snapshot: Snapshot) -> Committed:
        """Make it durable."""
        ...

    def list(self) -> tuple[Location, ...]:
        """Return what is there."""
        ...

    def delete(self, path: Location) -> bool:
        """Delete one of them."""
        ...


def write_end(
    store: EndStore,
    last: Committed,
    tensors: Mapping[str, ArrayLike],
    state: Mapping[str, Sequence[str]],
) -> Committed:
    """Keep the model as it is now, after the trial's last checkpoint.

    What an earlier process of the trial left, which was killed before it could say that the trial
    is finished, is deleted once this stands.

    Args:
        store: At the fixed path.
        last: The trial's last checkpoint.
        tensors: The model's variables, named as in ``last``.
        state: Their paths.

    Raises:
        CheckpointError: It cannot be written, or the last checkpoint's manifest not be read.
    """
    if _unchanged(last, tensors):
        kept: dict[str, ArrayLike] = {}
        same: dict[str, str] | None = {"name": last.path.name, "digest": last.digest}
    else:
        kept, same = dict(tensors), None
    done = store.commit(
        Snapshot(
            step=last.step,
            epoch=last.epoch,
            tensors=kept,
            state={**{name: list(paths) for name, paths in state.items()}, _SAME: same},
            metrics=last.metrics,
            digest_names=tuple(kept),
        )
    )
    own = CheckpointName.parse(done.path.name)
    for path in store.list():
        name = CheckpointName.parse(path.name)
        if name is not None and own is not None and name < own:
            store.delete(path)
    return done


def read_end(
    locations: Iterable[Location], checkpoints: Iterable[Location]
) -> LoadedCheckpoint | None:
    """Return the model's variables as training left them; None if none of ``locations`` has them.

    Args:
        locations: Where it may be kept, the likeliest first.
        checkpoints: The trial's, where they are now.

    Raises:
        CorruptCheckpointError: It, or the checkpoint that it names, does not verify.
        CheckpointError: It cannot be read, or the checkpoint that it names is gone.
    """
    end = find_end(locations)
    if end is None:
        return None
    same = same_as(end)
    return end if same is None else _named(end, same, checkpoints)


def find_end(locations: Iterable[Location]) -> LoadedCheckpoint | None:
    """Return the stored end model, which may only name a checkpoint (see `same_as`); None if there is none.

    Raises:
        CorruptCheckpointError: It does not verify.
        CheckpointError: It cannot be read.
    """
    for location in locations:
        try:
            found = list_checkpoints(location)
        except OSError as error:
            msg = f"the stored end model in {location} cannot be listed: {error}"
            raise CheckpointError(msg) from error
        if found:
            return load_checkpoint(found[-1])
    return None


def same_as(end: LoadedCheckpoint) -> Mapping[str, str] | None:
    """``name`` and ``digest`` of the checkpoint that has the model's variables; None if ``end`` does."""
    same: Mapping[str, str] | None = end.state[_SAME]
    return same


def _named(
    end: LoadedCheckpoint, same: Mapping[str, str], checkpoints: Iterable[Location]
) -> LoadedCheckpoint:
    for path in checkpoints:
        if path.name == same["name"] and read_manifest(path).digest == same["digest"]:
            return replace(load_checkpoint(path), origin=end.origin)
    msg = (
        f"the model at the end of training equals that of the checkpoint {same['name']} with the "
        f"digest {same['digest']} (according to {end.path}), and that checkpoint is missing"
    )
    raise CheckpointError(msg)


def _unchanged(last: Committed, tensors: Mapping[str, ArrayLike]) -> bool:
    """Return whether the last checkpoint has exactly these tensors."""
    try:
        entries = {entry.name: entry for entry in read_manifest(last.path).tensors}
    except OSError as error:
        msg = f"the manifest of {last.path} cannot be read: {error}"
        raise CheckpointError(msg) from error
    for name, value in tensors.items():
        array, entry = as_array(name, value), entries.get(name)
        if entry is None or entry.dtype != array.dtype.name or entry.shape != array.shape:
            return False
        if entry.digest != hash_tensor(array):
            return False
    return True
