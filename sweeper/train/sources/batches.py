"""Batches from Python code: form, class weights and specification.

A graph is traced once, for one specification. A batch of another form is an error, because another
trace could give other bits in a resumed trial than in one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.errors import DataError
from sweeper.train.data import Batch, PartName

_PEEKED = 2
"""Number of batches that define the form of all, as in ``model.fit``."""


@dataclass(frozen=True)
class BatchSpec:
    """The common form of the batches of a part of the data: a batch with specifications in place of arrays."""

    structure: Any
    name: PartName

    @property
    def signature(self) -> list[Any]:
        """Return the specifications of the tensors, in order."""
        return [spec for spec in tf.nest.flatten(self.structure) if _is_spec(spec)]

    def example(self) -> Any:
        """Return two samples of zeros in the form of a batch; None if a size is unknown."""
        static = all(
            isinstance(spec, tf.TensorSpec)
            and spec.shape.rank is not None
            and None not in spec.shape[1:]
            for spec in self.signature
        )
        return self.zeros() if static else None

    def zeros(self) -> Any:
        """Return two samples of zeros in the form of a batch, with 1 for each unknown size."""
        return self.pack(*map(_zeros, self.signature))

    def leaves(self, batch: Batch) -> list[Any]:
        """Return the tensors of a batch of this form, in order."""
        flat = zip(tf.nest.flatten(self.structure), tf.nest.flatten(batch), strict=True)
        return [leaf for spec, leaf in flat if _is_spec(spec)]

    def tensors(self, batch: Batch, label: str) -> list[Any]:
        """Return the tensors of ``batch``, in order; one of another form is an error, which calls it ``label``."""
        try:
            tf.nest.assert_same_structure(self.structure, batch)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.name}: {label} has another structure than the first: {error}"
            ) from None
        tensors = []
        for spec, leaf in zip(tf.nest.flatten(self.structure), tf.nest.flatten(batch), strict=True):
            if not _is_spec(spec):
                continue
            value = _sparse_or_same(leaf)
            try:
                if isinstance(spec, tf.TensorSpec):
                    value = tf.convert_to_tensor(value, dtype=spec.dtype)
            except (TypeError, ValueError) as error:
                raise DataError(f"{self.name}: {label} cannot become a tensor: {error}") from None
            if not spec.is_compatible_with(value):
                raise DataError(
                    f"{self.name}: {label} has {_form(value)} of shape {tuple(value.shape)}; "
                    f"the first batches had {_form(spec)} of {tuple(spec.shape)} (None: any); pad to one shape, or give "
                    "tf.data.Dataset.from_generator(…, output_signature=…) with the shapes"
                )
            tensors.append(value)
        return tensors

    def pack(self, *tensors: Any) -> Batch:
        """Return the inverse of `tensors`."""
        leaves = iter(tensors)
        return tf.nest.map_structure(
            lambda spec: next(leaves) if _is_spec(spec) else None, self.structure
        )


def standardize_batch(
    batch: Any, class_weight: Mapping[int, float] | None, name: PartName
) -> Batch:
    """Return a batch in the form for ``train_step``, with class weights as sample weights."""
    if isinstance(batch, list):
        batch = tuple(batch)
    if not isinstance(batch, tuple | dict) and hasattr(batch, "__array__"):
        batch = (batch,)
    if not isinstance(batch, dict) and not (isinstance(batch, tuple) and 1 <= len(batch) <= 3):
        kind = f"tuple of {len(batch)}" if isinstance(batch, tuple) else type(batch).__name__
        raise DataError(
            f"{name}: a batch is a {kind}; expected (x,), (x, y) or (x, y, sample_weight), "
            "or a dict of inputs"
        )
    return batch if class_weight is None else with_class_weight(batch, class_weight, name)


def with_class_weight(batch: Any, class_weight: Mapping[int, float], name: PartName) -> Batch:
    """Return ``(x, y, weights)`` for ``(x, y)``, as in ``model.fit``."""
    # The conversion of `fit`, so that the weights have the same bits.
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    _check_weighable(batch, name)
    return (*batch, class_weight_to_sample_weights(batch[1], class_weight))


def _check_weighable(batch: Any, name: PartName) -> None:
    pair = isinstance(batch, tuple) and len(batch) == 2
    if not pair or tf.nest.is_nested(batch[1]) or isinstance(batch[1], tf.RaggedTensor):
        raise DataError(
            f"{name}: class_weight needs batches (x, y) with a single "
            "array of targets and no sample weights"
        )


def spec_of(batches: Iterable[Batch], name: PartName) -> BatchSpec:
    """Return the common specification of the first of ``batches``, with any number of samples."""
    first = list(islice(batches, _PEEKED))
    if not first:
        raise DataError(f"{name} has no batch; expected at least one in an epoch")
    try:
        structure = tf.nest.map_structure(lambda *leaves: _spec(leaves, name), *first)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: the first batches have different structures: {error}") from None
    return BatchSpec(structure, name)


def weigh_classes_of(class_weight: Mapping[int, float], name: PartName) -> Callable[..., Any]:
    """Return a function that maps ``(x, y)`` to ``(x, y, weights)``; other classes have weight 1."""
    classes = max(class_weight, default=0) + 1
    table = tf.constant([class_weight.get(c, 1.0) for c in range(classes)] + [1.0])

    def weigh(*batch: Any) -> Any:
        _check_weighable(batch, name)
        x, y = batch
        if y.shape.rank is not None and y.shape.rank > 1:
            label = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
        else:
            label = y
        label = tf.cast(tf.round(label), tf.int64)
        in_range = tf.logical_and(label >= 0, label < classes)
        return x, y, tf.gather(table, tf.where(in_range, label, classes))

    return weigh


def _spec(leaves: Sequence[Any], name: PartName) -> Any:
    if all(leaf is None for leaf in leaves):
        return None
    leaves = [_sparse_or_same(leaf) for leaf in leaves]
    tensors = [leaf if tf.is_tensor(leaf) else _array(leaf, name) for leaf in leaves]
    ranks = {len(tensor.shape) for tensor in tensors}
    dtypes = {tf.as_dtype(tensor.dtype) for tensor in tensors}
    if len(ranks) != 1 or len(dtypes) != 1 or 0 in ranks:
        forms = ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
        raise DataError(
            f"{name}: the first batches have {forms} in the same place; expected arrays "
            "of one dtype and one rank, at least 1"
        )
    shapes = zip(*(tuple(tensor.shape) for tensor in tensors), strict=True)
    shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]
    return _spec_like(tensors[0], [None, *shape[1:]], dtypes.pop())


def _spec_like(tensor: Any, shape: list[int | None], dtype: tf.DType) -> Any:
    """Return a specification of ``shape`` and ``dtype``: sparse, ragged or dense like ``tensor``."""
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, dtype)
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    return tf.TensorSpec(shape, dtype)


def _zeros(spec: Any) -> Any:
    dense = tf.zeros([2, *(size or 1 for size in spec.shape[1:])], spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(dense)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(
            dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype
        )
    return dense


def _form(value: Any) -> str:
    if isinstance(value, tf.SparseTensor | tf.SparseTensorSpec):
        return "a sparse tensor"
    if isinstance(value, tf.RaggedTensor | tf.RaggedTensorSpec):
        return "a ragged tensor"
    return "an array"


def _sparse_or_same(leaf: Any) -> Any:
    """Return a sparse array of SciPy or JAX as a ``tf.SparseTensor``, and other values unchanged."""
    # The tests of `fit` for the libraries that it accepts, without importing them.
    from keras.src.trainers.data_adapters import data_adapter_utils as keras_adapters

    if keras_adapters.is_scipy_sparse(leaf):
        return keras_adapters.scipy_sparse_to_tf_sparse(leaf)
    if keras_adapters.is_jax_sparse(leaf):
        return keras_adapters.jax_sparse_to_tf_sparse(leaf)
    return leaf


def _array(leaf: Any, name: PartName) -> Any:
    array = np.asarray(leaf)
    if array.dtype == object:
        raise DataError(
            f"{name}: a batch contains a {type(leaf).__name__}, an array of Python "
            "objects; give numbers of one type"
        )
    return array


def _is_spec(spec: Any) -> bool:
    return spec is not None and type(spec).__name__ != "NoneTensorSpec"
