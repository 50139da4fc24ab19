"""Which file, or files, a warm start names, of which format, and a digest of their content.

A format is known by what a file begins with, never by how it is called. TensorFlow is not needed:
a study's definition takes the digest as well, so that a file that changes is noticed like changed
code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from sweeper.checkpoints.format import MANIFEST_FILE
from sweeper.checkpoints.names import CheckpointName
from sweeper.errors import CheckpointError, DefinitionError, WarmStartError
from sweeper.training.warmstart.options import WarmStart

Format = Literal["hdf5", "keras", "safetensors", "sweeper", "tf-checkpoint"]

EXPECTED = (
    "expected a .weights.h5, .keras or .safetensors file, a TensorFlow checkpoint (its prefix, such "
    "as ckpt-3), a checkpoint of sweeper's, or a trial's directory"
)

_BLOCK = 1 << 22
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_DATA = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5})")
_LATEST = re.compile(r'^model_checkpoint_path: (".*")$', re.MULTILINE)
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """What a warm start reads.

    Attributes:
        path: The file; of a TensorFlow checkpoint the prefix, of sweeper's the directory.
        files: Those whose content is the warm start's.
    """

    format: Format
    path: Path
    files: tuple[Path, ...]

    def digest(self) -> str:
        """XXH3-128 (hex) of the files' content.

        Raises:
            CheckpointError: One cannot be read.
        """
        hashed = xxhash.xxh3_128()
        try:
            for file in self.files:
                part = file.name.removeprefix(self.path.name)
                hashed.update(f"{part}:{file.stat().st_size}:".encode())
                with file.open("rb") as opened:
                    while block := opened.read(_BLOCK):
                        hashed.update(block)
        except OSError as error:
            msg = f"the warm start {self.path} cannot be read: {error}; check the disk, then resume"
            raise CheckpointError(msg) from error
        return hashed.hexdigest()


def locate(options: WarmStart) -> LocatedFile:
    """The files that ``options`` names.

    Raises:
        WarmStartError: There are none, or of no format that can be begun from.
    """
    path = options.file
    try:
        if path.is_dir():
            return _in_directory(path, options)
        if path.is_file():
            return _of_file(path)
    except OSError as error:
        msg = f"the warm start {path} cannot be looked at: {error}"
        raise WarmStartError(msg) from error
    prefixed = _prefix(path)
    if prefixed is not None:
        return prefixed
    near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else None
    there = "there is no such directory" if near is None else f"the directory has {_some(near)}"
    msg = f"the warm start {path.absolute()} does not exist ({there}); {EXPECTED}"
    raise WarmStartError(msg)


def describe_warm_start(options: WarmStart) -> dict[str, Any]:
    """What a definition's settings say of a file that all trials begin from.

    Raises:
        DefinitionError: The file is not there, of no known format, or cannot be read.
    """
    try:
        digest = locate(options).digest()
    except (WarmStartError, CheckpointError) as error:
        raise DefinitionError(str(error)) from error
    return {**options.describe(), "digest": digest}


def digest_now(options: WarmStart, notice: Callable[[str], None]) -> dict[str, str]:
    """The digest of what a resumed trial began from, by its path; none, and a notice, where it is gone."""
    try:
        located = locate(options)
        return {str(located.path): located.digest()}
    except (WarmStartError, CheckpointError) as error:
        notice(
            f"{error}. This trial began from it and goes on from its own checkpoint; without it, it "
            "can be neither begun again nor verified"
        )
        return {}


def _of_file(path: Path) -> LocatedFile:
    with path.open("rb") as file:
        head = file.read(9)
    if head.startswith(_HDF5):
        return LocatedFile("hdf5", path, (path,))
    if head.startswith(_ZIP):
        return LocatedFile("keras", path, (path,))
    if head[8:] == b"{":
        return LocatedFile("safetensors", path, (path,))
    part = _DATA.fullmatch(path.name)
    prefixed = None if part is None else _prefix(path.with_name(part[1]))
    if prefixed is not None:
        return prefixed
    if path.name == "checkpoint":
        return _in_directory(path.parent, WarmStart(path.parent))
    seen = "an empty file" if not head else f"a file that begins with {head!r}"
    msg = f"the warm start {path} is {seen}, which is of no known format; {EXPECTED}"
    raise WarmStartError(msg)


def _in_directory(path: Path, options: WarmStart) -> LocatedFile:
    if (path / MANIFEST_FILE).is_file():
        return _of_sweeper(path)
    steps = sorted(_steps_below(path), key=lambda found: found[:2])
    if steps:
        return _of_sweeper(_at(path, steps, options))
    state = path / "checkpoint"
    if state.is_file():
        latest = _LATEST.search(state.read_text(encoding="utf-8", errors="replace"))
        prefixed = None if latest is None else _prefix(path / json.loads(latest[1]))
        if prefixed is not None:
            return prefixed
        msg = f"{state} names no checkpoint that is there; give the prefix of one, such as ckpt-3"
        raise WarmStartError(msg)
    names = sorted(p.name for p in path.iterdir())
    hint = ""
    if "saved_model.pb" in names:
        hint = f"; of a SavedModel, give {path / 'variables' / 'variables'}"
    msg = f"the warm start {path} is a directory with {_some(names)}; {EXPECTED}{hint}"
    raise WarmStartError(msg)


def _steps_below(path: Path) -> Iterator[tuple[CheckpointName, str, Path]]:
    """The whole checkpoints in a trial's, an attempt's or a checkpoints' directory."""
    for pattern in ("step-*", "checkpoints/step-*", "attempt-*/checkpoints/step-*"):
        for found in path.glob(pattern):
            name = CheckpointName.parse(found.name)
            if name is not None:
                yield name, found.parent.parent.name, found


def _at(path: Path, steps: list[tuple[CheckpointName, str, Path]], options: WarmStart) -> Path:
    if options.at == "last":
        return steps[-1][2]
    wanted = [found for name, _, found in steps if name.step == options.at]
    if not wanted:
        there = ", ".join(str(name.step) for name, _, _ in steps)
        msg = f"{path} keeps no checkpoint at step {options.at}; there are some at {there}"
        raise WarmStartError(msg)
    return wanted[-1]


def _of_sweeper(path: Path) -> LocatedFile:
    # The manifest has the digests of the other files, which are compared when they are read.
    return LocatedFile("sweeper", path, (path / MANIFEST_FILE,))


def _prefix(path: Path) -> LocatedFile | None:
    """The TensorFlow checkpoint of this prefix, if there is one."""
    index = path.with_name(f"{path.name}.index")
    if not index.is_file():
        return None
    data = sorted(path.parent.glob(f"{_escaped(path.name)}.data-?????-of-?????"))
    return LocatedFile("tf-checkpoint", path, (index, *data))


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _some(names: list[str]) -> str:
    if not names:
        return "nothing in it"
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
