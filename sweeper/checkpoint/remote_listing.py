"""Listing and deletion of checkpoints in an object store, without a rename and without a lock.

A checkpoint exists if its manifest exists, so a deletion removes that first. A damaged checkpoint is set
aside by renaming its manifest: it is copied to another name and then removed.
"""

from __future__ import annotations

from sweeper.checkpoint.format import MANIFEST_FILE, checkpoint_name
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.remote_objects import advice_on_store, objects_at
from sweeper.errors import CheckpointError
from sweeper.support.paths import RemotePath

_SET_ASIDE = f"{MANIFEST_FILE}.corrupt-"


def listed_objects(directory: RemotePath) -> dict[RemotePath, dict[str, int]]:
    """Return the sizes of the objects of each checkpoint below an attempt's prefix, oldest first.

    One without a manifest is no checkpoint, but what an interrupted commit or deletion left, or a
    damaged one (see `is_set_aside_remote`).
    """
    try:
        listed = objects_at(directory).list(directory)
    except OSError as error:
        msg = f"the checkpoints in {directory} cannot be listed: {error}; {advice_on_store(directory)}"
        raise CheckpointError(msg) from error
    found: dict[CheckpointName, dict[str, int]] = {}
    for names, size in listed.items():
        name = CheckpointName.parse(names[0]) if len(names) == 2 else None
        if name is not None:
            found.setdefault(name, {})[names[1]] = size
    return {directory / str(name): found[name] for name in sorted(found)}


def list_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Return an attempt's checkpoints, oldest first; see `listed_objects`."""
    listed = listed_objects(directory)
    return tuple(path for path, sizes in listed.items() if MANIFEST_FILE in sizes)


def is_set_aside_remote(sizes: dict[str, int]) -> bool:
    """Return whether these objects are a damaged checkpoint that a reader has set aside."""
    return any(name.startswith(_SET_ASIDE) for name in sizes)


def set_aside_remote(path: RemotePath) -> str:
    """Rename the damaged checkpoint's manifest, and return a sentence with its new name."""
    objects, aside = objects_at(path), path / f"{_SET_ASIDE}1"
    try:
        objects.copy(path / MANIFEST_FILE, aside)
        objects.remove(path / MANIFEST_FILE)
    except OSError as error:
        return f"It could not be renamed ({error})"
    return f"Its manifest was renamed to {aside}"


def delete_remote(path: RemotePath) -> None:
    """Remove a checkpoint's manifest, with which it ceases to exist, and then its files.

    Raises:
        CheckpointError: ``path`` does not have the name of a checkpoint, or cannot be removed.
    """
    checkpoint_name(path)
    objects = objects_at(path)
    try:
        objects.remove(path / MANIFEST_FILE)
        for names in objects.list(path):
            objects.remove(RemotePath(path.protocol, (*path.parts, *names)))
    except OSError as error:
        msg = f"the checkpoint {path} cannot be deleted: {error}; {advice_on_store(path)}"
        raise CheckpointError(msg) from error


def sweep_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Remove what an attempt that has ended left without a manifest; return the removed prefixes.

    Each manifest is queried by name before, in case a listing does not show it.
    """
    objects, removed = objects_at(directory), []
    for path, sizes in listed_objects(directory).items():
        if MANIFEST_FILE in sizes or is_set_aside_remote(sizes):
            continue
        try:
            found = objects.size(path / MANIFEST_FILE)
        except OSError as error:
            msg = f"{path / MANIFEST_FILE} cannot be looked up: {error}; {advice_on_store(path)}"
            raise CheckpointError(msg) from error
        if found is None:
            delete_remote(path)
            removed.append(path)
    return tuple(removed)
