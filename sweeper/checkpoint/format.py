"""Format of a checkpoint: a snapshot in memory, three files in a directory, and their verification.

::

    step-000000420/
      tensors.safetensors   every variable and array
      state.json            everything else, as plain values; nothing is pickled
      manifest.json         written last: sizes and digests of the other two, and the position

The manifest begins with the XXH3-128 of its own content, so that it is verified like the files that it
describes, whatever version wrote it.

Plain JSON changes values: it has no NaN or infinity, other readers round integers beyond 2**53, and
Python refuses decimal integers of more than 4300 digits. A resumed training must get exactly its former
values, so those are written with a tag: ``{"$float": "7ff8000000000000"}`` (the eight bytes of the
IEEE double) and ``{"$int": "0x1f…"}``. A key of a dict that starts with ``$`` gets another ``$``, so
that it is not mistaken for a tag.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, BinaryIO

import xxhash

from sweeper.checkpoint.identity import CheckpointName, Origin
from sweeper.checkpoint.tensors import (
    Array,
    ArrayLike,
    DamagedTensorError,
    TensorEntry,
    read_tensors,
)
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.support.installation import VERSION
from sweeper.support.paths import Location
from sweeper.support.versions import version_of

JSON = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]
"""Values that a checkpoint's state may contain: these, lists of these, and dicts with string keys."""

_FLOAT = "$float"
_INT = "$int"
_EXACT_EVERYWHERE = 2**53


def encode_values(value: object, where: str = "state") -> bytes:
    """Return ``value`` as ASCII JSON text from which `decode_values` returns an equal value.

    Other types than those of `JSON` are refused, because they would change: a tuple would become a list,
    and a NumPy float a Python float. The error names the path below ``where``.
    """
    try:
        return json.dumps(_tag(value, where), separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        raise CheckpointError(
            f"{where} contains itself or is nested too deeply for JSON; flatten it"
        ) from error


def decode_values(text: bytes) -> Any:
    """Return the value that `encode_values` wrote; an invalid text is a `ValueError`."""
    try:
        return _untag(json.loads(text))
    except (RecursionError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def relocated(value: Any, old: str, new: str) -> Any:
    """Return ``value`` with every path below the directory ``old`` changed to one below ``new``."""
    if not old:
        return value
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(f"{old}/") else value
    if isinstance(value, list):
        return [relocated(item, old, new) for item in value]
    if isinstance(value, Mapping):
        return {key: relocated(item, old, new) for key, item in value.items()}
    return value


def _tag(value: object, where: str) -> object:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if isinstance(value, int) and kind is int:
        return value if abs(value) <= _EXACT_EVERYWHERE else {_INT: hex(value)}
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {_FLOAT: struct.pack(">d", value).hex()}
    if isinstance(value, list) and kind is list:
        return [_tag(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): _tag(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint's state holds None, "
        "bool, int, float, str, lists and dicts with string keys, of exactly these types: "
        "convert it (put an array into the tensors, and bytes into a hex string)"
    )


def _key(key: object, where: str) -> str:
    if isinstance(key, str) and type(key) is str:
        return f"${key}" if key.startswith("$") else key
    raise CheckpointError(f"{where} has the key {key!r}, a {type(key).__name__}; use string keys")


def _untag(value: object) -> object:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        if isinstance(text := value.get(_FLOAT), str):
            number: float = struct.unpack(">d", bytes.fromhex(text))[0]
            return number
        if isinstance(text := value.get(_INT), str):
            return int(text, 16)
    return {key.removeprefix("$"): _untag(item) for key, item in value.items()}


FORMAT_VERSION = 1
TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"

_MANIFEST = re.compile(rb'\{"xxh3_128":"([0-9a-f]{32})","manifest":(.*)\}\n', re.DOTALL)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Complete state of a training at one step, in memory until it is written.

    The state is encoded at once, so training may change its lists afterwards. Tensors are held by
    reference: pass arrays that are not changed, or results of ``variable.value.read_value()``, which
    TensorFlow does not change.

    Args:
        step: Finished optimizer steps of the whole trial.
        epoch: Finished epochs.
        tensors: Every variable and array by name, of any shape.
        state: Everything else as plain values.
        metrics: The metrics at this step; empty in the middle of an epoch.
        digest_names: Names of the tensors that the digest covers, in order.
        history: The metrics of each finished epoch, for retention rules; not written.
        repeated: By name of a tensor, the names of others that usually have the same values, such as
            copies of a variable on other devices. If all have, these are left out of the file and of
            the digest.

    Raises:
        CheckpointError: The state contains a value of another type.
    """

    step: int
    epoch: int
    tensors: Mapping[str, ArrayLike] = field(repr=False)
    state: Mapping[str, JSON] = field(repr=False)
    metrics: Mapping[str, float]
    digest_names: tuple[str, ...] = field(repr=False)
    history: Sequence[Mapping[str, float]] = field(default=(), repr=False)
    repeated: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    state_json: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        metrics = {name: float(value) for name, value in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "state_json", encode_values(self.state))

    def hand_over(self) -> Mapping[str, ArrayLike]:
        """Return the tensors and release them, so that the writer can free each after writing it.

        TensorFlow updates a variable in place only if nothing else references its value.
        """
        tensors = self.tensors
        object.__setattr__(self, "tensors", {})
        return tensors


@dataclass(frozen=True, eq=False)
class LoadedCheckpoint(KeptCheckpoint):
    """A checkpoint that was read and verified; each tensor owns its memory and may be changed."""

    tensors: dict[str, Array] = field(default_factory=dict, repr=False)
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    origin: Origin | None = None


@cache
def library_versions() -> Mapping[str, str]:
    """Return the installed versions of Python and of the libraries on which checkpoints depend."""
    return {
        "python": platform.python_version(),
        "sweeper": VERSION,
        "keras": version_of("keras"),
        "tensorflow": version_of("tensorflow"),
        "numpy": version_of("numpy"),
    }


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Entry of a file in the manifest: its size in bytes and its XXH3-128 (hex)."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`, without the versions of the libraries that wrote it."""

    step: int
    epoch: int
    digest: str
    digest_names: tuple[str, ...]
    metrics: Mapping[str, float]
    trained_seconds: float
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    origin: Origin | None = None

    @property
    def content_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def kept(self, path: Location, *, size: int = 0) -> KeptCheckpoint:
        return KeptCheckpoint(
            step=self.step,
            epoch=self.epoch,
            path=path,
            metrics=self.metrics,
            trained_seconds=self.trained_seconds,
            digest=self.digest,
            bytes=self.content_bytes + size,
        )

    def render(self) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "step": self.step,
            "epoch": self.epoch,
            "digest": self.digest,
            "digest_names": list(self.digest_names),
            "metrics": dict(self.metrics),
            "trained_seconds": self.trained_seconds,
            "files": [[f.name, f.size, f.digest] for f in self.files],
            "tensors": [[t.name, t.dtype, list(t.shape), t.digest] for t in self.tensors],
            "versions": dict(library_versions()),
        }
        if self.origin is not None:
            content["origin"] = self.origin.to_json()
        body = encode_values(content, "manifest")
        digest_of_body = xxhash.xxh3_128_hexdigest(body)
        return b'{"xxh3_128":"%b","manifest":%b}\n' % (digest_of_body.encode(), body)

    @classmethod
    def parse(cls, text: bytes, path: Location) -> Manifest:
        """Return the manifest from the file's content, verified against the digest at its beginning."""
        match = _MANIFEST.fullmatch(text)
        if match is None:
            raise CorruptCheckpointError(
                f"{path} is not a manifest: its {len(text)} bytes do not have the format of one",
                path,
            )
        expected = match[1].decode()
        body = match[2]
        actual = xxhash.xxh3_128_hexdigest(body)
        if actual != expected:
            raise CorruptCheckpointError(
                f"{path} has the digest {actual}, expected {expected}: it was changed or damaged",
                path,
            )
        try:
            content = decode_values(body)
            version = content["format"]
            if version == FORMAT_VERSION:
                return cls._of_content(content)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptCheckpointError(
                f"{path} is not a manifest: {type(error).__name__}: {error}", path
            ) from error
        raise CheckpointError(
            f"{path} has checkpoint format {version}; this version of sweeper reads format "
            f"{FORMAT_VERSION}. Use the version that wrote it or a later one"
        )

    @classmethod
    def _of_content(cls, content: Mapping[str, Any]) -> Manifest:
        """Return the manifest from the content that `render` wrote, which its digest has verified."""
        return cls(
            step=content["step"],
            epoch=content["epoch"],
            digest=content["digest"],
            digest_names=tuple(content["digest_names"]),
            metrics=content["metrics"],
            trained_seconds=content["trained_seconds"],
            files=tuple(FileEntry(*entry) for entry in content["files"]),
            tensors=tuple(
                TensorEntry(name, dtype, tuple(shape), digest)
                for name, dtype, shape, digest in content["tensors"]
            ),
            origin=None if "origin" not in content else Origin(**content["origin"]),
        )


def combine_digests(entries: Sequence[TensorEntry]) -> str:
    """Return the XXH3-128 (hex) of tensors: of each one's dtype, shape and digest.

    It covers no names, so that models with other variable names can be compared by value.
    """
    combined = xxhash.xxh3_128()
    for entry in entries:
        shape = ",".join(map(str, entry.shape))
        combined.update(f"{entry.dtype}[{shape}]{entry.digest};".encode("ascii"))
    return combined.hexdigest()


def checkpoint_name(path: Location) -> CheckpointName:
    """Return the parsed name of the checkpoint, or raise a `CheckpointError`."""
    name = CheckpointName.parse(path.name)
    if name is None:
        raise CheckpointError(
            f"{path} does not have the name of a checkpoint; expected a directory like step-000000420"
        )
    return name


def read_verified(path: Location, files: Mapping[str, BinaryIO]) -> LoadedCheckpoint:
    """Read and verify the checkpoint at ``path`` from its three files, opened without a buffer."""
    name = checkpoint_name(path)
    text = files[MANIFEST_FILE].read()
    manifest = Manifest.parse(text, path / MANIFEST_FILE)
    if manifest.step != name.step:
        raise CorruptCheckpointError(
            f"{path / MANIFEST_FILE} has step {manifest.step}, expected {name.step}",
            path / MANIFEST_FILE,
        )
    checkpoint = manifest.kept(path, size=len(text))
    return LoadedCheckpoint(
        **{field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)},
        state=_read_state(path / STATE_FILE, files[STATE_FILE], manifest),
        tensors=_read_tensors(path / TENSORS_FILE, files[TENSORS_FILE], manifest),
        origin=manifest.origin,
    )


def _read_state(path: Location, file: BinaryIO, manifest: Manifest) -> dict[str, object]:
    entry = manifest.files[1]
    _expect(path, "bytes", _size(file), entry.size)
    text = file.read()
    _expect(path, "digest", xxhash.xxh3_128_hexdigest(text), entry.digest)
    try:
        state: dict[str, object] = decode_values(text)
    except ValueError as error:
        raise CorruptCheckpointError(f"{path} is damaged: {error}", path) from error
    return state


def _read_tensors(path: Location, file: BinaryIO, manifest: Manifest) -> dict[str, Array]:
    entry = manifest.files[0]
    _expect(path, "bytes", _size(file), entry.size)
    whole = xxhash.xxh3_128()
    try:
        tensors = read_tensors(file, entry.size, manifest.tensors, whole.update)
    except (ValueError, OverflowError) as error:
        msg = f"{path} is damaged: {error}"
        tensor = error.tensor if isinstance(error, DamagedTensorError) else None
        raise CorruptCheckpointError(msg, path, tensor) from error
    _expect(path, "digest", whole.hexdigest(), entry.digest)
    return tensors


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _expect(path: Location, quantity: str, actual: object, expected: object) -> None:
    if actual != expected:
        raise CorruptCheckpointError(
            f"{path} is damaged: {quantity} {actual}, expected {expected}", path
        )
