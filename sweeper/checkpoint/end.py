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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot, checkpoint_name
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_manifest
from sweeper.checkpoint.remote_store import Store
from sweeper.checkpoint.tensors import ArrayLike, as_array, entry_of
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location

_SAME = "same_as"


def write_end(
    store: Store,
    last: KeptCheckpoint,
    tensors: Mapping[str, ArrayLike],
    state: Mapping[str, Sequence[str]],
) -> KeptCheckpoint:
    """Store the end model of a trial, after its last checkpoint.

    Afterwards, an end model is deleted that an earlier process wrote before it was killed. The ``tensors``
    are the model's variables, named as in the trial's ``last`` checkpoint, and ``state`` has the lists of
    variable paths, by the name of their group.
    """
    if _unchanged(last, tensors):
        stored_tensors: dict[str, ArrayLike] = {}
        identical: dict[str, str] | None = {"name": last.path.name, "digest": last.digest}
    else:
        stored_tensors = dict(tensors)
        identical = None
    committed = store.commit(
        Snapshot(
            step=last.step,
            epoch=last.epoch,
            tensors=stored_tensors,
            state={**{name: list(paths) for name, paths in state.items()}, _SAME: identical},
            metrics=last.metrics,
            digest_names=tuple(stored_tensors),
        )
    )
    for path in store.list():
        if checkpoint_name(path) < checkpoint_name(committed.path):
            store.delete(path)
    return committed


def read_end(
    locations: Iterable[Location], checkpoints: Iterable[Location]
) -> LoadedCheckpoint | None:
    """Return the variables of the end model; None if none of ``locations`` contains it.

    The locations are tried in their order; ``checkpoints`` are the present paths of the trial's.
    """
    end = find_end(locations)
    complete = None if end is None else with_variables(end, checkpoints)
    if end is not None and complete is None:
        same = end.state[_SAME]
        raise CheckpointError(
            f"the model at the end of training equals that of the checkpoint {same['name']} with the "
            f"digest {same['digest']} (according to {end.path}), and that checkpoint is missing"
        )
    return complete


def find_end(locations: Iterable[Location]) -> LoadedCheckpoint | None:
    """Return the stored end model, which may only name a checkpoint (see `with_variables`); None if there is none."""
    for location in locations:
        if checkpoints := list_checkpoints(location):
            return load_checkpoint(checkpoints[-1])
    return None


def with_variables(
    end: LoadedCheckpoint, checkpoints: Iterable[Location]
) -> LoadedCheckpoint | None:
    """Return an end model, or the checkpoint that it names; None if that is not among ``checkpoints``."""
    same = end.state[_SAME]
    if same is None:
        return end
    for path in checkpoints:
        if path.name == same["name"] and read_manifest(path).digest == same["digest"]:
            return replace(load_checkpoint(path), origin=end.origin)
    return None


def _unchanged(last: KeptCheckpoint, tensors: Mapping[str, ArrayLike]) -> bool:
    """Return whether the last checkpoint has exactly these tensors."""
    entries_of_last = frozenset(read_manifest(last.path).tensors)
    entries = (entry_of(name, as_array(name, value)) for name, value in tensors.items())
    return entries_of_last.issuperset(entries)
