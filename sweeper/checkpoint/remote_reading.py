"""Reading and deletion of checkpoints in an object store, without a rename and without a lock.

A damaged checkpoint is set aside by renaming its manifest: it is copied to another name and then
removed. A reader whose checkpoint is deleted meanwhile treats it as missing, not as damaged, and tries
another one.

A store that cannot be reached must not be treated as empty, because the trial would then start from
the beginning. So only objects that certainly do not exist are skipped; all other faults are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    LoadedCheckpoint,
    Manifest,
    check_manifest_size,
    read_verified,
)
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.operations import open_regular
from sweeper.checkpoint.remote_objects import ObjectStore, objects_at
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.support.paths import RemotePath, scratch_directory

_FILES = (TENSORS_FILE, STATE_FILE, MANIFEST_FILE)
_SET_ASIDE = f"{MANIFEST_FILE}.corrupt-"

_Wanted = Callable[[dict[str, int]], bool]


@dataclass(frozen=True)
class RemoteListing:
    """Listing below one attempt's prefix; it may be out of date.

    Attributes:
        directory: The prefix.
        sizes: Sizes of objects in bytes, by checkpoint and name.
    """

    directory: RemotePath
    sizes: dict[CheckpointName, dict[str, int]]

    @classmethod
    def of(cls, directory: RemotePath, objects: ObjectStore | None = None) -> RemoteListing:
        """Return the listing below ``directory``.

        Raises:
            CheckpointError: The store does not answer, or refuses.
        """
        objects = objects or objects_at(directory)
        try:
            listed = objects.list(directory)
        except OSError as error:
            msg = f"the checkpoints in {directory} cannot be listed: {error}; {advice_on_store(directory)}"
            raise CheckpointError(msg) from error
        sizes: dict[CheckpointName, dict[str, int]] = {}
        for names, size in listed.items():
            name = CheckpointName.parse(names[0]) if len(names) == 2 else None
            if name is not None:
                sizes.setdefault(name, {})[names[1]] = size
        return cls(directory, sizes)

    def whole(self) -> tuple[RemotePath, ...]:
        """Return the checkpoints that have a manifest, oldest first."""
        return self._paths_where(lambda names: MANIFEST_FILE in names)

    def unfinished(self) -> tuple[RemotePath, ...]:
        """Return the prefixes without a manifest, which an interrupted commit or deletion left."""
        return self._paths_where(lambda names: MANIFEST_FILE not in names and not _aside(names))

    def set_aside(self) -> tuple[RemotePath, ...]:
        """Return the damaged checkpoints that were set aside."""
        return self._paths_where(lambda names: MANIFEST_FILE not in names and _aside(names))

    def bytes(self, path: RemotePath) -> int:
        """Return the total size in bytes of the objects below ``path``; 0 if it is not listed."""
        name = CheckpointName.parse(path.name)
        return 0 if name is None else sum(self.sizes.get(name, {}).values())

    def _paths_where(self, wanted: _Wanted) -> tuple[RemotePath, ...]:
        return tuple(self.directory / str(n) for n in sorted(self.sizes) if wanted(self.sizes[n]))


def list_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Return an attempt's checkpoints, oldest first; see `RemoteListing.of` for errors."""
    return RemoteListing.of(directory).whole()


def load_remote(path: RemotePath, objects: ObjectStore | None = None) -> LoadedCheckpoint:
    """Read and verify one checkpoint from its store.

    A checkpoint that does not verify is read a second time before it counts as damaged.

    Raises:
        CorruptCheckpointError: Its manifest does not verify, or another file is missing or differs
            from the manifest.
        CheckpointError: It has no manifest, so there is no such checkpoint (``__cause__`` is then
            a `FileNotFoundError`); or the store cannot be read; or it has a later format.
    """
    objects = objects or objects_at(path)
    try:
        try:
            return _downloaded(path, objects)
        except CorruptCheckpointError:
            return _downloaded(path, objects)
    except FileNotFoundError as error:
        missing = [name for name in _FILES if not _exists(objects, path / name)]
        if MANIFEST_FILE in missing or not missing:
            msg = f"the checkpoint {path} is missing"
            raise CheckpointError(msg) from error
        msg = f"{path / missing[0]} is missing; the manifest beside it names it"
        raise CorruptCheckpointError(msg) from error
    except OSError as error:
        msg = f"the checkpoint {path} cannot be read: {error}; {advice_on_store(path)}"
        raise CheckpointError(msg) from error


def read_remote_manifest(path: RemotePath) -> Manifest:
    """Return the manifest of the checkpoint at ``path``.

    Raises:
        OSError: It cannot be read; a `FileNotFoundError` if there is no such checkpoint.
        CheckpointError: It does not verify, or has a later format.
    """
    return Manifest.parse(_manifest(path, objects_at(path)), path / MANIFEST_FILE)


def _manifest(path: RemotePath, objects: ObjectStore) -> bytes:
    check_manifest_size(path, objects.size(path / MANIFEST_FILE))
    return objects.read(path / MANIFEST_FILE)


def _downloaded(path: RemotePath, objects: ObjectStore) -> LoadedCheckpoint:
    """Download the checkpoint to a temporary directory, then read and verify it there."""
    with scratch_directory("download") as local, ExitStack() as stack:
        (local / MANIFEST_FILE).write_bytes(_manifest(path, objects))
        for name in (TENSORS_FILE, STATE_FILE):
            objects.download(path / name, local / name)
        opened = {name: stack.enter_context(open_regular(local / name)) for name in _FILES}
        return read_verified(path, opened)


def set_aside_remote(path: RemotePath) -> str:
    """Rename the damaged checkpoint's manifest, and return a sentence with its new name."""
    objects = objects_at(path)
    manifest = path / MANIFEST_FILE
    try:
        for attempt in count(1):
            aside = path / f"{_SET_ASIDE}{attempt}"
            if not objects.exists(aside):
                break
        objects.put(aside, objects.read(manifest))
        objects.remove(manifest)
    except OSError as error:
        return f"It could not be renamed ({error})"
    return f"Its manifest was renamed to {aside}"


def remove_remote(path: RemotePath, objects: ObjectStore | None = None) -> None:
    """Remove the checkpoint's manifest, with which the checkpoint ceases to exist, and then its files.

    Raises:
        OSError: An object cannot be removed.
    """
    objects = objects or objects_at(path)
    objects.remove(path / MANIFEST_FILE)
    others = [names[0] for names in objects.list(path) if len(names) == 1]
    for name in dict.fromkeys([TENSORS_FILE, STATE_FILE, *others]):
        if name != MANIFEST_FILE:
            objects.remove(path / name)


def delete_remote(path: RemotePath, objects: ObjectStore | None = None) -> CheckpointName:
    """Delete a checkpoint, and return its name.

    Raises:
        CheckpointError: ``path`` does not have the name of a checkpoint, or cannot be removed.
    """
    name = CheckpointName.parse(path.name)
    if name is None:
        msg = f"{path} does not have the name of a checkpoint, so it is not deleted"
        raise CheckpointError(msg)
    try:
        remove_remote(path, objects)
    except OSError as error:
        msg = f"the checkpoint {path} cannot be deleted: {error}; {advice_on_store(path)}"
        raise CheckpointError(msg) from error
    return name


def sweep_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Remove the prefixes without a manifest of an attempt that has ended; return the removed ones.

    A listing that is out of date may not show an existing manifest, so each is first queried by name.

    Raises:
        CheckpointError: The store cannot be listed, or an object cannot be removed.
    """
    objects = objects_at(directory)
    removed = []
    for path in RemoteListing.of(directory).unfinished():
        try:
            if not objects.exists(path / MANIFEST_FILE):
                remove_remote(path, objects)
                removed.append(path)
        except OSError as error:
            msg = f"the unfinished checkpoint {path} cannot be removed: {error}; remove it by hand"
            raise CheckpointError(msg) from error
    return tuple(removed)


def advice_on_store(path: RemotePath) -> str:
    """Return advice for an error of a remote store."""
    return (
        f"check that {path.protocol}://{path.parts[0]} exists, that this machine can reach it, "
        "and that its credentials allow reading, writing, listing and deleting there "
        "(--checkpoints names the place)"
    )


def _aside(names: dict[str, int]) -> bool:
    return any(name.startswith(_SET_ASIDE) for name in names)


def _exists(objects: ObjectStore, path: RemotePath) -> bool:
    try:
        return objects.exists(path)
    except OSError as error:
        msg = f"{path} cannot be read: {error}; {advice_on_store(path)}"
        raise CheckpointError(msg) from error
