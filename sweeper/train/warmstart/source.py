"""A file to begin from: where it lies, its format and digest, and the values under its names.

A format is known by what a file begins with, never by how it is called. TensorFlow is not needed:
a study's definition takes the digest as well, so that a file that changes is noticed like changed
code.

A format is one class with these methods. Names are the format's business: each derives, from the
model, under which of its own keys a variable's value is; comparing shapes and types, strictness and
reports are the same for all, in `matching`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import xxhash

from sweeper.checkpoint.format import MANIFEST_FILE
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.tensors import Array
from sweeper.errors import CheckpointError, DefinitionError, WarmStartError
from sweeper.spec.warm_start import WarmStart


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in a file: its shape, and NumPy's name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variable of the model, and where a file has its value.

    Attributes:
        variable: Keras's, or a ``tf.Variable``.
        name: What it is called in reports.
        key: The file's; None where it has none.
        looked_for: The names under which it was looked for.
        reason: Why it has no key, where there is more to say than that.
    """

    variable: Any = field(repr=False)
    name: str
    key: str | None
    looked_for: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Matched:
    """Each variable of a model with its key in a file, and what else the file has of a model.

    Attributes:
        extra: Names of values for which the model has no variable, by their keys.
        shown: What a key is called for a person, where that is not the key itself.
    """

    candidates: tuple[Candidate, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)


class WarmStartSource(Protocol):
    """One open file."""

    @property
    def kind(self) -> str:
        """Return the name of the format for people: ``"Keras weights"``."""
        ...

    def match(self, model: Any, options: WarmStart) -> Matched:
        """Return where the values of the model's variables are; nothing is read yet.

        Raises:
            WarmStartError: More than one part of the file could be the model.
        """
        ...

    def match_optimizer(self, optimizer: Any) -> Matched:
        """Return where the values of the optimizer's variables are.

        Raises:
            WarmStartError: The file has none, or not in a form that can be recognized.
        """
        ...

    def stored(self, key: str) -> Stored:
        """Return the shape and dtype of the value under ``key``."""
        ...

    def read(self, key: str) -> Array:
        """Return the value under ``key``, in memory of its own.

        Raises:
            WarmStartError: The file is damaged there.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def variables_of(model: Any) -> list[Any]:
    """Return the model's variables, each once, but for the states of random generators."""
    found = {id(v): v for v in model.variables if not is_random_state(v.path)}
    return list(found.values())


def is_random_state(name: str) -> bool:
    """Return whether a variable of this name is a random generator's, which is the trial's own."""
    return name.rpartition("/")[2] in ("seed_generator_state", "_state_var")


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """``name`` with the longest of its beginnings that ``rename`` has replaced."""
    for old in sorted(rename, key=len, reverse=True):
        if name == old or name.startswith(f"{old}/"):
            return f"{rename[old]}{name[len(old) :]}"
    return name


def by_names(
    variables: Sequence[tuple[Any, Sequence[str]]],
    keys: Mapping[str, str],
    rename: Mapping[str, str],
) -> Matched:
    """Match variables by names of which each has several, the first that is there counts.

    Args:
        variables: Each with its names, the likeliest first.
        keys: The file's names, with their keys.
        rename: As `WarmStart` has it.
    """
    candidates = []
    for variable, names in variables:
        wanted = tuple(dict.fromkeys(renamed(name, rename) for name in names))
        key = next((keys[name] for name in wanted if name in keys), None)
        candidates.append(Candidate(variable, variable.path, key, wanted))
    taken = {candidate.key for candidate in candidates}
    extra = {
        key: name for name, key in keys.items() if key not in taken and not is_random_state(name)
    }
    return Matched(tuple(candidates), extra, {key: name for name, key in keys.items()})


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
    """File that a warm start reads.

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
    """Return the files that ``options`` names.

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
        msg = f"the warm start {path} cannot be read: {error}"
        raise WarmStartError(msg) from error
    prefixed = _prefix(path)
    if prefixed is not None:
        return prefixed
    near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else None
    there = "there is no such directory" if near is None else f"the directory has {_some(near)}"
    msg = f"the warm start {path.absolute()} does not exist ({there}); {EXPECTED}"
    raise WarmStartError(msg)


def describe_warm_start(options: WarmStart) -> dict[str, Any]:
    """Return what a definition's settings say of a file that all trials begin from.

    Raises:
        DefinitionError: The file is not there, of no known format, or cannot be read.
    """
    try:
        digest = locate(options).digest()
    except (WarmStartError, CheckpointError) as error:
        raise DefinitionError(str(error)) from error
    return {**options.describe(), "digest": digest}


def digest_now(options: WarmStart, notice: Callable[[str], None]) -> dict[str, str]:
    """Return the digest of what a resumed trial began from, by its path; none, and a notice, where it is gone."""
    try:
        located = locate(options)
        return {str(located.path): located.digest()}
    except (WarmStartError, CheckpointError) as error:
        notice(
            f"{error}. This trial began from it and resumes from its own checkpoint; without the "
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
    if head[8:] == b"{":
        return LocatedFile("safetensors", path, (path,))
    part = _DATA.fullmatch(path.name)
    prefixed = None if part is None else _prefix(path.with_name(part[1]))
    if prefixed is not None:
        return prefixed
    if path.name == "checkpoint":
        return _in_directory(path.parent, WarmStart(path.parent))
    seen = "an empty file" if not head else f"a file that begins with {head!r}"
    msg = f"the warm start {path} is {seen}, which is not a known format; {EXPECTED}"
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
        msg = f"{state} names no existing checkpoint; give the prefix of one, such as ckpt-3"
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
        msg = f"{path} has no checkpoint at step {options.at}; it has some at {there}"
        raise WarmStartError(msg)
    return wanted[-1]


def _of_sweeper(path: Path) -> LocatedFile:
    # The manifest has the digests of the other files, which are compared when they are read.
    return LocatedFile("sweeper", path, (path / MANIFEST_FILE,))


def _prefix(path: Path) -> LocatedFile | None:
    """Return the TensorFlow checkpoint of this prefix, if there is one."""
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
