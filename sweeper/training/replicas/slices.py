"""A global batch as one slice a replica.

Every replica is handed the slice of the whole batch that its number names, so the order of the data
stays what it is on one replica, and nothing about the data need know of replicas. Slices differ by
one sample at most, the first ones being the longer. A batch that leaves a replica without a sample
is refused: BatchNorm, and whatever else takes a mean of its slice, would make NaN of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sweeper.errors import DataError

_MARK = "sweeper: samples in this batch:"
_MARKED = re.compile(re.escape(_MARK) + r"\]? \[(\d+)\]")


@dataclass(frozen=True)
class Slice:
    """What one replica takes of a batch.

    Attributes:
        batch: Its part of the batch, in the same structure.
        size: Its samples, a scalar.
        whole: The batch's samples, a scalar.
    """

    batch: Any
    size: Any
    whole: Any

    def share(self, dtype: Any) -> Any:
        """Which part of the batch it has, from 0 to 1."""
        return tf.cast(self.size, dtype) / tf.cast(self.whole, dtype)

    @property
    def static_size(self) -> int | None:
        """Its samples, where they are known before a graph runs."""
        size = tf.get_static_value(self.size)
        return None if size is None else int(size)


def slice_batch(batch: Any, replicas: int) -> tuple[Slice, ...]:
    """The slices of ``batch`` along its first axis, one a replica; None stays None."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    whole = _length(leaves[0])
    least, longer = whole // replicas, whole % replicas
    found = []
    for index in range(replicas):
        at = tf.constant(index, whole.dtype)
        begin = at * least + tf.minimum(at, longer)
        size = least + tf.cast(at < longer, whole.dtype)
        part = tf.nest.map_structure(
            lambda leaf, begin=begin, size=size: _part(leaf, begin, size), batch
        )
        found.append(Slice(part, size, whole))
    return tuple(found)


def _length(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


def _part(leaf: Any, begin: Any, size: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.shape(leaf, out_type=tf.int64)
        start = tf.concat([[begin], tf.zeros_like(shape[1:])], 0)
        part = tf.sparse.slice(leaf, start, tf.concat([[size], shape[1:]], 0))
        part.set_shape([None, *leaf.shape[1:]])
        return part
    return leaf[begin : begin + size]


@dataclass(frozen=True)
class SliceRule:
    """Which batches can be sliced.

    Attributes:
        replicas: How many slices.
        strategy: What the strategy is called.
        use: ``train`` or ``validation``, as the user calls the data.
        own: The user's own method of the model, whose losses are right for equal slices only; empty
            for Keras's own, which are right for all.
    """

    replicas: int
    strategy: str
    use: str
    own: str = ""

    def is_broken_by(self, samples: int) -> bool:
        """Whether a batch of so many samples is refused."""
        return samples < self.replicas or bool(self.own and samples % self.replicas)

    def check(self, samples: int, shown: str) -> None:
        """Refuse a batch.

        Args:
            samples: In it.
            shown: Which one it is, such as ``batch 3 of epoch 1``.

        Raises:
            DataError: It leaves a replica without a sample, or slices unequal that must be equal.
        """
        if self.is_broken_by(samples):
            msg = (
                f"Data({self.use}=…): {shown} has {_samples(samples)}{self._why(samples)}; give "
                f"batches of {self._wanted()}, and leave out or fill up what is over at the end"
            )
            raise DataError(msg)

    def check_arrays(self, samples: int, batch_size: int, *, last: bool) -> None:
        """Refuse a ``batch_size`` with which arrays come in batches that cannot be sliced.

        Args:
            samples: In the arrays.
            batch_size: As it is given.
            last: Whether the last, smaller batch is ever drawn.

        Raises:
            DataError: The message has the nearest size that can be.
        """
        sizes = [min(batch_size, samples)]
        if last and samples > batch_size and samples % batch_size:
            sizes.append(samples % batch_size)
        bad = next((size for size in sizes if self.is_broken_by(size)), None)
        if bad is None:
            return
        name = "batch_size" if self.use == "train" else "validation_batch_size"
        which = "which" if len(sizes) == 1 else "the last of which"
        if bad == batch_size:
            which = "each of which"
        elif bad != sizes[-1]:
            which = "of which most"
        msg = (
            f"Data({self.use}=…, {name}={batch_size}): {samples:,} samples come in batches "
            f"{which} has {_samples(bad)}{self._why(bad)}; "
        )
        found = self._nearest(samples, batch_size)
        msg += (
            f"give batches of {self._wanted()}"
            if found is None
            else f"{name}={found} leaves none such"
        )
        raise DataError(msg)

    def _nearest(self, samples: int, batch_size: int) -> int | None:
        sizes = range(1, min(samples, 2 * batch_size + 2 * self.replicas) + 1)
        fitting = [
            size
            for size in sizes
            if not self.is_broken_by(size)
            and (samples % size == 0 or not self.is_broken_by(samples % size))
        ]
        return min(fitting, key=lambda size: abs(size - batch_size), default=None)

    def _why(self, samples: int) -> str:
        if samples < self.replicas:
            return f", fewer than the {self.replicas} replicas of the {self.strategy}"
        return (
            f", which the {self.replicas} replicas of the {self.strategy} cannot share equally, as "
            f"the model's own {self.own} needs it: what it divides by the number of replicas is "
            "right for equal shares only (Keras's own steps, and a TrainingStep, take any)"
        )

    def _wanted(self) -> str:
        return f"multiples of {self.replicas}" if self.own else f"at least {self.replicas} samples"

    def assertion(self, whole: Any) -> None:
        """The same check inside a graph; `explained` turns what it raises into an error of ours."""
        needed = whole >= self.replicas
        if self.own:
            needed = tf.logical_and(needed, whole % self.replicas == 0)
        tf.debugging.Assert(needed, [_MARK, whole])

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around what runs a graph with an `assertion` in it.

        Raises:
            DataError: In place of TensorFlow's error of the assertion.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            found = _MARKED.search(str(error))
            if found is None:
                raise
            samples = int(found[1])
        else:
            return
        self.check(samples, "a batch")


def _samples(count: int) -> str:
    return f"{count:,} sample" if count == 1 else f"{count:,} samples"
