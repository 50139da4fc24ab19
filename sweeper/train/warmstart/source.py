"""File of a warm start: location, format and digest.

A format is recognized by a file's first bytes, not by its name. This module needs no TensorFlow: the
digest is also part of a study's definition, so a changed file is reported like changed code.
"""

import glob
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from sweeper.checkpoint.format import MANIFEST_FILE
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import read_file, read_kept
from sweeper.checkpoint.remote_objects import objects_at
from sweeper.declarations.warm_start import WarmStart
from sweeper.errors import CheckpointError, DefinitionError, WarmStartError
from sweeper.records.printing import counted
from sweeper.support.paths import END_MODEL, Location, RemotePath


def variables_of(model: Any) -> list[Any]:
    """Return the model's variables, each once, without the states of random generators."""
    unique = {id(v): v for v in model.variables if not is_random_state(v.path)}
    return list(unique.values())


def is_random_state(name: str) -> bool:
    """Return whether a variable of this name is the state of a random generator."""
    return name.rpartition("/")[2] in ("seed_generator_state", "_state_var")


Format = Literal["hdf5", "keras", "sweeper", "tf-checkpoint"]

EXPECTED = (
    "expected a .weights.h5 or .keras file, a TensorFlow checkpoint (its prefix, such as ckpt-3), a "
    "checkpoint of sweeper's, or a trial's directory"
)

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_DATA = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5})")
_LATEST = re.compile(r'^model_checkpoint_path: (".*")$', re.MULTILINE)
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """File that a warm start reads, prefix of a TensorFlow checkpoint, or place of sweeper's checkpoint.

    The content of ``files`` on this machine determines the digest.
    """

    format: Format
    path: Location
    files: tuple[Path, ...]

    def digest(self) -> str:
        """Return the XXH3-128 (hex) of the files' content."""
        hashed = xxhash.xxh3_128()
        try:
            if isinstance(self.path, RemotePath):
                hashed.update(read_file(self.path, MANIFEST_FILE))
            for file in self.files:
                part = file.name.removeprefix(self.path.name)
                hashed.update(f"{part}:{file.stat().st_size}:".encode())
                with file.open("rb") as opened:
                    hashlib.file_digest(opened, lambda: hashed)
        except OSError as error:
            raise CheckpointError(
                f"the warm start {self.path} cannot be read: {error}; check the disk, then resume"
            ) from error
        return hashed.hexdigest()


def locate(options: WarmStart) -> LocatedFile:
    """Return the files that ``options`` names; a `WarmStartError` if they do not exist or have no known format."""
    path = options.file
    try:
        if isinstance(path, RemotePath) or path.is_dir():
            return _in_directory(path, options)
        if path.is_file():
            return _of_file(path)
    except OSError as error:
        raise WarmStartError(f"the warm start {path} cannot be read: {error}") from error
    prefixed = _prefix(path)
    if prefixed is not None:
        return prefixed
    near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else None
    contents = "there is no such directory" if near is None else f"the directory has {_some(near)}"
    raise WarmStartError(
        f"the warm start {path.absolute()} does not exist ({contents}); {EXPECTED}"
    )


def describe_warm_start(options: WarmStart) -> dict[str, Any]:
    """Return the settings of a warm start of all trials, for the definition, with the file's digest."""
    try:
        digest = locate(options).digest()
    except (WarmStartError, CheckpointError) as error:
        raise DefinitionError(str(error)) from error
    return {**options.describe(), "digest": digest}


def digest_now(options: WarmStart, notify: Callable[[str], None]) -> dict[str, str]:
    """Return the digest of a resumed trial's warm start by path; empty, with a notice, if it is missing."""
    try:
        located = locate(options)
        return {str(located.path): located.digest()}
    except (WarmStartError, CheckpointError) as error:
        notify(
            f"{error}. This trial started from it and resumes from its own checkpoint; without the "
            "file it can be neither started again nor verified"
        )
        return {}


def _of_file(path: Path) -> LocatedFile:
    with path.open("rb") as file:
        head = file.read(9)
    if head.startswith(_HDF5):
        return LocatedFile("hdf5", path, (path,))
    if head.startswith(_ZIP):
        return LocatedFile("keras", path, (path,))
    part = _DATA.fullmatch(path.name)
    prefixed = None if part is None else _prefix(path.with_name(part[1]))
    if prefixed is not None:
        return prefixed
    if path.name == "checkpoint":
        return _in_directory(path.parent, WarmStart(path.parent))
    content = "an empty file" if not head else f"a file that begins with {head!r}"
    raise WarmStartError(
        f"the warm start {path} is {content}, which is not a known format; {EXPECTED}"
    )


def _in_directory(path: Location, options: WarmStart) -> LocatedFile:
    steps = _steps(path)
    if steps:
        step = _at(path, steps, options) if path not in steps else path
        # The manifest has the digests of the other files, which are verified when they are read.
        return LocatedFile(
            "sweeper", step, (step / MANIFEST_FILE,) if isinstance(step, Path) else ()
        )
    if isinstance(path, RemotePath):
        raise WarmStartError(f"the warm start {path} has no checkpoint of sweeper's; {EXPECTED}")
    state = path / "checkpoint"
    if state.is_file():
        latest = _LATEST.search(state.read_text(encoding="utf-8", errors="replace"))
        prefixed = None if latest is None else _prefix(path / json.loads(latest[1]))
        if prefixed is not None:
            return prefixed
        raise WarmStartError(
            f"{state} names no existing checkpoint; give the prefix of one, such as ckpt-3"
        )
    names = sorted(p.name for p in path.iterdir())
    hint = ""
    if "saved_model.pb" in names:
        hint = f"; of a SavedModel, give {path / 'variables' / 'variables'}"
    raise WarmStartError(
        f"the warm start {path} is a directory with {_some(names)}; {EXPECTED}{hint}"
    )


def _steps(path: Location) -> list[Location]:
    """Return the checkpoints of a trial, an attempt or a directory, or ``path`` itself, the newest last."""
    steps: list[Location] = []
    if isinstance(path, RemotePath):
        for *directories, file in objects_at(path).list(path):
            # The model at the end has only the values that differ from the last checkpoint's.
            if file == MANIFEST_FILE and END_MODEL not in directories:
                steps.append(RemotePath(path.protocol, (*path.parts, *directories)))
    elif (path / MANIFEST_FILE).is_file():
        return [path]
    else:
        for pattern in ("step-*", "checkpoints/step-*", "attempt-*/checkpoints/step-*"):
            steps += path.glob(pattern)
    named = {step: name for step in steps if (name := CheckpointName.parse(step.name))}
    return sorted(named, key=lambda step: (named[step], str(step.parent)))


def _at(path: Location, steps: list[Location], options: WarmStart) -> Location:
    if options.at == "last":
        return steps[-1]
    checkpoints = read_kept((), steps)
    good = [checkpoint for checkpoint in checkpoints if checkpoint.good]
    # Within an epoch, no metrics are known.
    ends = [checkpoint for checkpoint in good if checkpoint.metrics or not checkpoint.step]
    matching = [end.path for end in ends if end.epoch == options.at]
    if not matching:
        epochs = ", ".join(str(epoch) for epoch in sorted({end.epoch for end in ends}))
        has = f"it has some after {epochs}" if epochs else "it has none at the end of an epoch"
        raise WarmStartError(
            f"{path} has no checkpoint after {counted(int(options.at), 'epoch')}; {has}"
        )
    return matching[-1]


def _prefix(path: Path) -> LocatedFile | None:
    """Return the TensorFlow checkpoint with the prefix ``path``, or None."""
    index = path.with_name(f"{path.name}.index")
    if not index.is_file():
        return None
    data = sorted(path.parent.glob(f"{glob.escape(path.name)}.data-?????-of-?????"))
    return LocatedFile("tf-checkpoint", path, (index, *data))


def _some(names: list[str]) -> str:
    if not names:
        return "nothing in it"
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
