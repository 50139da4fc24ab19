"""Named tensors in one safetensors file, written and read without a second copy in memory.

The safetensors package does not write it, because that accepts no TensorFlow tensors and does not hash.
Here every chunk is hashed while it is in the processor's cache, once for its tensor and once for the
file. ``safetensors.numpy.load_file`` reads the files. Tensors with larger elements come first, so that
every tensor is aligned for readers that map the file.

TensorFlow is not imported: its eager tensors provide their buffer to NumPy.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import xxhash

from sweeper.errors import CheckpointError

Array = np.ndarray[Any, np.dtype[Any]]

_CHUNK = 512 << 10
"""Bytes that fit into a core's cache, so that memory is read once for two hashes and the write."""

_SAFETENSORS_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NO_REPEATS: Mapping[str, tuple[str, ...]] = {}


@runtime_checkable
class ArrayLike(Protocol):
    """Interface of NumPy arrays and of tensors that convert to them, such as TensorFlow's eager tensors."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    def __array__(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Entry of a tensor in the manifest: NumPy's name of the dtype, shape, and XXH3-128 of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str

    @property
    def nbytes(self) -> int:
        """Return the size of its values in bytes; an unknown dtype is a `ValueError`."""
        return math.prod(self.shape) * named_dtype(self.dtype).itemsize


def as_array(name: str, value: ArrayLike) -> Array:
    """Return ``value`` as a little-endian array, which shares its memory if possible."""
    if not isinstance(value, ArrayLike):
        raise CheckpointError(
            f"{name!r} is a {type(value).__qualname__}; expected a NumPy array or an eager tensor "
            "(put plain values into the state)"
        )
    scalar = getattr(value, "numpy", None)
    if scalar is not None and tuple(value.shape) == ():
        # TensorFlow's __array__ raises for a 0-d bfloat16 tensor; its numpy() does not.
        array: Array = np.asarray(scalar())
    else:
        array = np.asarray(value)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.name not in _SAFETENSORS_NAMES:
        raise CheckpointError(
            f"{name!r} has dtype {array.dtype.name}, which safetensors does not support; convert "
            f"it to one of {', '.join(_SAFETENSORS_NAMES)}"
        )
    return array


def entry_of(
    name: str, array: Array, write: Callable[[memoryview], object] = lambda _: None
) -> TensorEntry:
    """Return the entry of a tensor, and pass its bytes in C order to ``write``, in chunks."""
    digest = xxhash.xxh3_128()
    for chunk in _chunks(array):
        digest.update(chunk)
        write(chunk)
    return TensorEntry(name, array.dtype.name, array.shape, digest.hexdigest())


class TensorFile:
    """Layout of one file of ``size`` bytes, computed before it is written.

    Each of the tensors is held by reference until it is written. A name or a dtype that cannot be stored is
    a `CheckpointError`. For ``repeated``, see `Snapshot.repeated`.
    """

    def __init__(
        self,
        tensors: Mapping[str, ArrayLike],
        repeated: Mapping[str, tuple[str, ...]] = _NO_REPEATS,
    ) -> None:
        arrays = {name: as_array(name, value) for name, value in tensors.items()}
        for name, others in repeated.items():
            if (
                name in arrays
                and len({entry_of("", arrays[repeat]) for repeat in (name, *others)}) == 1
            ):
                arrays = {key: array for key, array in arrays.items() if key not in others}
        self._arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
        self._header = _render_header(self._arrays)
        self.size = len(self._header) + sum(a.nbytes for a in self._arrays.values())

    def write(self, write: Callable[[memoryview], object]) -> tuple[TensorEntry, ...]:
        """Pass the file's bytes to ``write`` in chunks, and return the entries of the tensors.

        It can be called only once, because each tensor is released after it is written.
        """
        write(memoryview(self._header))
        entries = []
        while self._arrays:
            name = next(iter(self._arrays))
            # Only the call references the tensor's memory, which is freed when it returns.
            entries.append(entry_of(name, self._arrays.pop(name), write))
        return tuple(entries)


class DamagedTensorError(ValueError):
    """A tensor of a file differs from its entry in the manifest; ``tensor`` is its name."""

    def __init__(self, message: str, tensor: str) -> None:
        super().__init__(message)
        self.tensor = tensor


def read_tensors(
    file: BinaryIO,
    size: int,
    entries: Sequence[TensorEntry],
    update: Callable[[memoryview], object],
) -> dict[str, Array]:
    """Return the tensors of a file of ``size`` bytes, which is read once, directly into the arrays.

    The file's header is hashed, not parsed: the manifest's entries, in the order of the file, have the
    same content. ``update`` receives all read bytes, to hash the file. A difference is a `ValueError`, of
    one tensor a `DamagedTensorError`.
    """
    header = bytearray(size - sum(entry.nbytes for entry in entries))
    _read_exactly(file, memoryview(header), "the header", update)
    if int.from_bytes(header[:8], "little") != len(header) - 8:
        raise ValueError(
            f"its header does not end at {len(header)}, where the manifest puts the first tensor"
        )
    tensors: dict[str, Array] = {}
    for entry in entries:
        array: Array = np.empty(entry.shape, named_dtype(entry.dtype))
        digest = xxhash.xxh3_128()
        try:
            for chunk in _chunks(array):
                _read_exactly(file, chunk, f"tensor {entry.name!r}", update)
                digest.update(chunk)
        except ValueError as error:
            raise DamagedTensorError(str(error), entry.name) from error
        if digest.hexdigest() != entry.digest:
            raise DamagedTensorError(
                f"tensor {entry.name!r} has the digest {digest.hexdigest()}, expected {entry.digest}",
                entry.name,
            )
        tensors[entry.name] = array
    return tensors


def _chunks(array: Array) -> Iterator[memoryview]:
    """Yield the array's bytes in C order; an array that is not contiguous is copied."""
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    view = contiguous.reshape(-1).view(np.uint8).data
    for start in range(0, len(view), _CHUNK):
        yield view[start : start + _CHUNK]


def _render_header(arrays: Mapping[str, Array]) -> bytes:
    header: dict[str, object] = {}
    position = 0
    for name, array in arrays.items():
        if name == "__metadata__" or not isinstance(name, str) or _SURROGATE.search(name):
            raise CheckpointError(
                f"a tensor cannot be named {name!r} in safetensors; choose another name"
            )
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_exactly(
    file: BinaryIO, target: memoryview, part: str, update: Callable[[memoryview], object]
) -> None:
    received = 0
    while received < len(target):
        count = file.readinto(target[received:])  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"it ends {len(target) - received} bytes before the end of {part}")
        received += count
    update(target)


def named_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name in a `TensorEntry`; an unknown one is a `ValueError`."""
    import ml_dtypes  # noqa: F401 - it gives NumPy the names of its dtypes

    if name not in _SAFETENSORS_NAMES:
        raise ValueError(f"the manifest names the unknown dtype {name!r}")
    return np.dtype(name)
