"""Source of arrays in memory, whose samples are visited by permuted indices.

The order of a pass is a pure function of (seed, pass), so a resumed pass skips indices.
`sweeper.train.loop.runners` gathers the batches inside the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeper.errors import DataError
from sweeper.train.data import Batch, Data, DataSource, PartName, SourceOptions, shown_option


class ArraySource(DataSource):
    """Arrays of one length: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``."""

    def __init__(self, batch: Batch, options: SourceOptions, *, batch_size: int) -> None:
        super().__init__(options)
        name = self.name
        batch = _map_arrays(_as_tuple(batch, name), partial(_to_numpy, name))
        if self.class_weight is not None:
            from sweeper.train.sources.batches import with_class_weight

            pair = batch[:2] if len(batch) == 3 and batch[2] is None else batch
            batch = with_class_weight(pair, self.class_weight, name)
        self.arrays: Batch = _map_arrays(batch, partial(_standardize, name))
        self.batch_size = int(batch_size)
        self.samples = _common_length(self.arrays, name)
        alone = len(self.arrays) == 1 and not isinstance(self.arrays[0], tuple)
        self.packed: Any = self.arrays[0] if alone else self.arrays
        """The arrays in the form that ``model.fit`` passes to ``train_step``: a single ``x`` without a tuple."""

    @property
    def steps(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def order(self, pass_: int) -> npt.NDArray[np.int64]:
        """Return the indices of all samples in the order in which ``pass_`` visits them."""
        return permutation(self.seed, pass_, self.samples)

    def open(self, pass_: int, step: int) -> Iterator[Batch]:
        order = self.order(pass_)
        for index in range(step, self.steps):
            rows = order[index * self.batch_size : (index + 1) * self.batch_size]
            yield _map_arrays(self.packed, partial(_take, rows))


def permutation(
    seed: np.random.SeedSequence | None, pass_: int, length: int
) -> npt.NDArray[np.int64]:
    """Return the permutation of ``range(length)`` of ``pass_``; ``range(length)`` without a seed."""
    if seed is None:
        return np.arange(length)
    # Not `spawn`, whose result depends on how often it was called.
    entropy = [int(word) for word in seed.generate_state(4)]
    return np.random.default_rng([*entropy, pass_]).permutation(length)


def is_arrays(data: object) -> bool:
    """Return whether ``data`` is an array, or a tuple, list or dict, which are for arrays."""
    arrays = isinstance(data, tuple | list | Mapping) or hasattr(data, "__array__")
    return arrays or is_ragged(data)


def is_ragged(value: object) -> bool:
    """Return whether ``value`` is a ``tf.RaggedTensor``, whose rows are samples of unequal length."""
    return type(value).__qualname__ == "RaggedTensor"


def split_arrays(data: Data) -> tuple[Batch, Batch]:
    """Return the training arrays without the last ``validation_split`` of the samples, and those, as ``model.fit`` does."""
    name = PartName.of(data, "train")
    fraction = data.validation_split
    batch = _map_arrays(_as_tuple(data.train, name), partial(_to_numpy, name))
    samples = _common_length(_map_arrays(batch, partial(_standardize, name)), name)
    split = math.floor(samples * (1.0 - fraction))
    if split in (0, samples):
        raise DataError(
            f"{shown_option(data, 'validation_split', fraction)} of {samples:,} samples leaves {split:,} for "
            f"training and {samples - split:,} for validation; both need at least 1"
        )
    return (
        _map_arrays(batch, lambda array, _: array[:split]),
        _map_arrays(batch, lambda array, _: array[split:]),
    )


def _take(rows: npt.NDArray[np.int64], array: Any, _path: str) -> Any:
    if not is_ragged(array):
        return array[rows]
    import tensorflow as tf

    return tf.gather(array, rows)


def is_texts(value: object) -> bool:
    """Return whether ``value`` is a list or tuple of ``str`` or ``bytes``, which is one array of texts."""
    return (
        isinstance(value, tuple | list)
        and bool(value)
        and all(isinstance(part, str | bytes) for part in value)
    )


def _as_tuple(data: Batch, name: PartName) -> tuple[Any, ...]:
    parts = isinstance(data, tuple | list) and not is_texts(data)
    batch = tuple(data) if parts else (data,)
    if not 1 <= len(batch) <= 3:
        raise DataError(
            f"{name} is a tuple of {len(batch)}; expected (x, y) or (x, y, sample_weight)"
        )
    return batch


def _map_arrays(nest: Any, function: Callable[[Any, str], Any], path: str = "") -> Any:
    if nest is None:
        return None
    if is_texts(nest):
        return function(np.array(nest, dtype=object), path)
    if isinstance(nest, tuple | list):
        return tuple(_map_arrays(part, function, f"{path}[{i}]") for i, part in enumerate(nest))
    if isinstance(nest, Mapping):
        return {key: _map_arrays(part, function, f"{path}[{key!r}]") for key, part in nest.items()}
    return function(nest, path)


def _to_numpy(name: PartName, value: Any, path: str) -> Any:
    kind = type(value)
    if "sparse" in f"{kind.__module__}.{kind.__qualname__}".lower():
        raise DataError(
            f"{name.array(path)} is a sparse {kind.__qualname__}, whose samples cannot be selected by "
            "index; give its dense array, or a tf.data.Dataset of sparse batches"
        )
    if is_ragged(value):
        return value
    if not (hasattr(value, "__array__") or isinstance(value, int | float)):
        raise DataError(
            f"{name.array(path)} is a {kind.__name__}; expected a NumPy array, or a tuple, list "
            "or dict of arrays"
        )
    if kind.__module__.startswith("pandas"):
        array = value.to_numpy()
        return array[:, np.newaxis] if kind.__qualname__ == "Series" else array
    return np.asarray(value)


_TEXT_KINDS = "SUT"
"""Kinds of NumPy's dtypes of bytes, of ``str`` of fixed length, and of ``StringDType``."""


def _as_texts(name: PartName, array: Any, path: str) -> Any:
    """Return an array of texts as Python objects, which TensorFlow converts to strings."""
    array = array.astype(object)
    for index, value in np.ndenumerate(array):
        if not isinstance(value, str | bytes):
            where = "".join(f"[{i}]" for i in index)
            raise DataError(
                f"{name.array(path)} is an array of Python objects, and its element {where} is a "
                f"{type(value).__name__}; give numbers of one type, or texts (str) only"
            )
    return array


def _standardize(name: PartName, array: Any, path: str) -> Any:
    import keras

    if is_ragged(array):
        import tensorflow as tf

        return tf.cast(array, keras.config.floatx()) if array.dtype.is_floating else array
    if array.ndim == 0:
        raise DataError(
            f"{name.array(path)} is the single value {array!s}; expected an array of samples, such as np.array([…])"
        )
    if array.dtype == object or array.dtype.kind in _TEXT_KINDS:
        return _as_texts(name, array, path)
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.config.floatx(), copy=False)
    return array


def _common_length(nest: Any, name: PartName) -> int:
    lengths: dict[str, int] = {}

    def note(array: Any, path: str) -> None:
        lengths[path] = int(array.nrows()) if is_ragged(array) else len(array)

    _map_arrays(nest, note)
    if not lengths:
        raise DataError(f"{name} contains no array")
    if len(set(lengths.values())) != 1:
        counts = ", ".join(f"{name.array(path)} has {length:,}" for path, length in lengths.items())
        raise DataError(
            f"the arrays have different numbers of samples: {counts}; the numbers must be equal"
        )
    (samples,) = set(lengths.values())
    if samples == 0:
        raise DataError(f"{name} contains arrays without samples")
    return samples
