"""`Data`, what a study's data factory returns, and the sources that give its batches by position.

A source can be opened at any step of any epoch: the order of an epoch is a pure function of (seed,
epoch), so a resumed epoch skips indices and decodes nothing twice. A new kind of data is a new
`DataSource`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sweeper.errors import DataError

__all__ = ["ArraySource", "Data", "DataSource", "open_source"]

Batch = Any
"""``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a nest of arrays."""


@dataclass(frozen=True)
class Data:
    """What a trial trains on and is measured on.

    Attributes:
        train: ``(x, y)`` or ``(x, y, sample_weight)``: arrays of equal length, or dicts, lists or
            tuples of such arrays. Floats are cast to Keras's ``floatx``, as ``model.fit`` does.
        validation: The same for validation, never shuffled; None for none.
        batch_size: Samples in a batch; an epoch's last batch may be smaller.
        shuffle: Whether every epoch visits the samples in an order of its own, drawn from the
            trial's seed and the epoch's number.
        validation_batch_size: ``batch_size`` by default.
        validation_freq: Validate every so many epochs.
        class_weight: Class index to weight, applied to ``y`` as ``model.fit`` does.
    """

    train: Any
    validation: Any = None
    batch_size: int = 32
    shuffle: bool = True
    validation_batch_size: int | None = None
    validation_freq: int = 1
    class_weight: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "validation_batch_size", "validation_freq"):
            value = getattr(self, name)
            if value is None and name == "validation_batch_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                msg = f"Data({name}={value!r}): it must be a whole number, at least 1"
                raise DataError(msg)

    def validates_after(self, epoch: int) -> bool:
        """Whether validation runs at the end of ``epoch`` (from 0)."""
        return self.validation is not None and (epoch + 1) % self.validation_freq == 0


class DataSource(Protocol):
    """Batches by position: ``open(e, s)`` gives what epoch ``e`` gives from step ``s`` on."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        ...

    def open(self, epoch: int, step: int) -> Iterator[Batch]:
        """The batches of ``epoch`` from ``step`` to its end."""
        ...

    def describe(self) -> str:
        """What it is, for a person."""
        ...


class ArraySource:
    """Arrays in memory, visited by permuted indices.

    Args:
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays with one length.
        batch_size: Samples in a batch.
        seed: For the order of an epoch; None to keep the arrays' own order.
        name: What the user calls these data, for errors.

    Raises:
        DataError: Lengths differ, there is no sample, or something is not an array.
    """

    def __init__(
        self, batch: Batch, *, batch_size: int, seed: np.random.SeedSequence | None, name: str
    ) -> None:
        self.arrays: Batch = _map_arrays(batch, _standardize, name)
        self.batch_size = int(batch_size)
        self.samples = _common_length(self.arrays, name)
        self._seed = seed

    @property
    def steps(self) -> int:
        return math.ceil(self.samples / self.batch_size)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The indices of all samples in the order in which ``epoch`` visits them."""
        if self._seed is None:
            return np.arange(self.samples)
        entropy = [int(word) for word in self._seed.generate_state(4)]
        return np.random.default_rng([*entropy, epoch]).permutation(self.samples)

    def open(self, epoch: int, step: int) -> Iterator[Batch]:
        order = self.order(epoch)
        for at in range(step, self.steps):
            chosen = order[at * self.batch_size : (at + 1) * self.batch_size]
            yield _map_arrays(self.arrays, lambda array, _, i=chosen: array[i], "")

    def describe(self) -> str:
        order = "in order" if self._seed is None else "shuffled every epoch"
        return f"arrays, {self.samples:,} samples in batches of {self.batch_size}, {order}"


def open_source(
    batch: Any,
    *,
    batch_size: int,
    seed: np.random.SeedSequence | None,
    name: str,
    class_weight: Mapping[int, float] | None = None,
) -> ArraySource:
    """The source for what the user gave as ``Data.train`` or ``Data.validation``.

    Raises:
        DataError: It has no form that can be read by position.
    """
    if isinstance(batch, list):
        batch = tuple(batch)
    if not isinstance(batch, tuple):
        batch = (batch,)
    if not 1 <= len(batch) <= 3:
        msg = f"Data({name}=…) is a tuple of {len(batch)}; expected (x, y) or (x, y, sample_weight)"
        raise DataError(msg)
    if class_weight is not None:
        batch = _with_class_weight(batch, class_weight, name)
    return ArraySource(batch, batch_size=batch_size, seed=seed, name=name)


def _map_arrays(nest: Any, function: Callable[[Any, str], Any], path: str) -> Any:
    if nest is None:
        return None
    if isinstance(nest, tuple | list):
        return tuple(_map_arrays(part, function, f"{path}[{i}]") for i, part in enumerate(nest))
    if isinstance(nest, Mapping):
        return {key: _map_arrays(part, function, f"{path}[{key!r}]") for key, part in nest.items()}
    return function(nest, path)


def _leaves(nest: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    _map_arrays(nest, lambda array, path: found.append((path, array)), "")
    return found


def _standardize(value: Any, path: str) -> npt.NDArray[Any]:
    import keras

    if not (hasattr(value, "__array__") or isinstance(value, int | float)):
        msg = (
            f"Data({path}) is a {type(value).__name__}; expected a NumPy array, or a tuple, list "
            "or dict of arrays"
        )
        raise DataError(msg)
    array = np.asarray(value)
    if array.ndim == 0:
        msg = f"Data({path}) is the single value {value!r}; expected an array of samples"
        raise DataError(msg)
    if array.dtype == object:
        msg = f"Data({path}) is an array of Python objects; give numbers of one type"
        raise DataError(msg)
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.config.floatx(), copy=False)
    return array


def _common_length(nest: Any, name: str) -> int:
    leaves = _leaves(nest)
    if not leaves:
        msg = f"Data({name}=…) holds no array"
        raise DataError(msg)
    lengths = {path: len(array) for path, array in leaves}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name}{path} has {length:,}" for path, length in lengths.items())
        msg = f"the arrays of Data({name}=…) have different numbers of samples: {told}"
        raise DataError(msg)
    (samples,) = set(lengths.values())
    if samples == 0:
        msg = f"Data({name}=…) holds arrays with no sample in them"
        raise DataError(msg)
    return samples


def _with_class_weight(batch: tuple[Any, ...], weights: Mapping[int, float], name: str) -> Batch:
    if len(batch) == 3 and batch[2] is not None:
        msg = f"Data({name}=…) has sample weights, and class_weight is given as well; leave one out"
        raise DataError(msg)
    if len(batch) < 2 or isinstance(batch[1], tuple | list | Mapping):
        msg = "class_weight needs a single array of targets, Data(train=(x, y))"
        raise DataError(msg)
    targets = np.asarray(batch[1])
    if targets.ndim > 1 and targets.shape[-1] > 1:
        classes = targets.argmax(axis=-1)
    else:
        classes = targets.reshape(len(targets), -1)[:, 0].round().astype(int)
    table = np.vectorize(lambda label: weights.get(int(label), 1.0), otypes=[float])
    return (batch[0], batch[1], table(classes))
