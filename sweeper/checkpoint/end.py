"""End model of a trial: the model as ``fit`` would have left it after training.

Keras changes the model after the last step: `EarlyStopping` restores the best epoch's weights, an
optimizer with averages writes them to the weights, and any callback's ``on_train_end`` may change
variables. No checkpoint contains these changes. So each completed trial stores its end model, in the
form of a checkpoint at a fixed path below the trial's directory: the model's variables, or, if they
equal those of the trial's last checkpoint, that checkpoint's name and digest. It is written before the
trial is announced as finished. Retention and ``gc`` ignore it.

The end model is written even if nothing has changed, because a lost one would otherwise be mistaken
for an unchanged model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.checkpoint.format import Committed, LoadedCheckpoint, Snapshot
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_manifest
from sweeper.checkpoint.tensors import ArrayLike, as_array, hash_tensor
from sweeper.checkpoint.writer import Store
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location

_SAME = "same_as"


def write_end(
    store: Store,
    last: Committed,
    tensors: Mapping[str, ArrayLike],
    state: Mapping[str, Sequence[str]],
) -> Committed:
    """Store the end model of a trial, after its last checkpoint.

    Afterwards, an end model is deleted that an earlier process wrote before it was killed.

    Args:
        store: Store at the fixed path.
        last: The trial's last checkpoint.
        tensors: The model's variables, named as in ``last``.
        state: Lists of variable paths, by the name of their group.

    Raises:
        CheckpointError: It cannot be written, or the last checkpoint's manifest cannot be read.
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
    """Return the variables of the end model; None if none of ``locations`` contains it.

    Args:
        locations: Possible locations of the end model, in the order in which they are tried.
        checkpoints: Present paths of the trial's checkpoints.

    Raises:
        CorruptCheckpointError: The end model, or the checkpoint that it names, does not verify.
        CheckpointError: It cannot be read, or the checkpoint that it names is missing.
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
    """Return ``name`` and ``digest`` of the checkpoint with the variables; None if ``end`` contains them."""
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
