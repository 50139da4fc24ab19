"""Inputs and outputs of a model by name, for formats that serve it without its code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.errors import ExportError

_NUMBERED = re.compile(r"_\d+$")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")
_MADE_UP = ("keras_tensor", "input_layer", "input")


@dataclass(frozen=True)
class Signature:
    """The inputs of a model, in the order of its input structure.

    Attributes:
        inputs: Specifications by name, for any number of samples.
        structure: The input structure; its leaves are ignored.
    """

    inputs: Mapping[str, tf.TensorSpec]
    structure: Any

    @classmethod
    def of(cls, model: keras.Model, batch: Any) -> Signature:
        """Return the signature of ``model`` for the study's data.

        Args:
            model: A built model.
            batch: Inputs of the model.

        Raises:
            ExportError: An input is not a dense array.
        """
        leaves = tf.nest.flatten(batch)
        known = _inputs_of(model)
        if len(known) != len(leaves):
            known = [None] * len(leaves)
        if isinstance(batch, Mapping):
            # The order of `tf.nest` for the leaves of a mapping.
            named = [str(key) for key in sorted(batch)] if len(batch) == len(leaves) else []
            by_name = {_clean(t.name): t for t in known if t is not None}
            known = [by_name.get(_clean(name)) for name in named] or [None] * len(leaves)
        else:
            named = []
        names = named or [_own_name(t, i, len(leaves)) for i, t in enumerate(known)]
        names = _unique([_clean(name) for name in names])
        specs = {
            name: _spec(name, leaf, tensor)
            for name, leaf, tensor in zip(names, leaves, known, strict=True)
        }
        return cls(specs, batch)

    def feed(self, batch: Any) -> dict[str, Any]:
        """Return the batch's arrays by name, converted to the types of the signature."""
        return {
            name: tf.cast(leaf, spec.dtype) if spec.dtype != tf.string else tf.constant(leaf)
            for (name, spec), leaf in zip(self.inputs.items(), tf.nest.flatten(batch), strict=True)
        }

    def function(self, model: keras.Model) -> Any:
        """Return the model's predictions as a graph function from named inputs to named outputs."""

        def serve(**named: Any) -> dict[str, Any]:
            leaves = [named[name] for name in self.inputs]
            given = tf.nest.pack_sequence_as(self.structure, leaves)
            return named_outputs(model(given, training=False))

        return tf.function(serve, autograph=False)


def predict(model: keras.Model, batch: Any) -> list[Any]:
    """Return the model's predictions for ``batch``, as arrays, in the order of its outputs."""
    composite = tf.RaggedTensor | tf.SparseTensor
    given = tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, composite) else tf.convert_to_tensor(leaf), batch
    )
    return arrays_of(named_outputs(model(given, training=False)))


def arrays_of(outputs: Mapping[str, Any]) -> list[Any]:
    """Return named outputs as arrays, in the order of their names."""
    return [np.asarray(outputs[name]) for name in sorted(outputs)]


def named_outputs(outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name: a mapping's names, ``output``, or ``output_0``, ``output_1``, …."""
    if isinstance(outputs, Mapping) and not any(map(tf.nest.is_nested, outputs.values())):
        return {_clean(str(name)): value for name, value in outputs.items()}
    leaves = tf.nest.flatten(outputs)
    if len(leaves) == 1:
        return {"output": leaves[0]}
    return {f"output_{index}": leaf for index, leaf in enumerate(leaves)}


def _inputs_of(model: keras.Model) -> list[Any]:
    try:
        return list(model.inputs or ())
    except AttributeError:
        return []


def _own_name(tensor: Any, index: int, count: int) -> str:
    """Return the user's name of an input, or a generic one if Keras generated the name."""
    name = "" if tensor is None else _NUMBERED.sub("", tensor.name)
    if name and name not in _MADE_UP:
        return str(name)
    return "input" if count == 1 else f"input_{index}"


def _clean(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).strip("_") or "input"


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found


def _spec(name: str, leaf: Any, tensor: Any) -> tf.TensorSpec:
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        msg = (
            f"input {name!r} of the model is a {type(leaf).__name__}, which this form cannot name; "
            "use --format keras or weights"
        )
        raise ExportError(msg)
    given = tf.convert_to_tensor(leaf)
    shape = [None, *given.shape[1:]] if tensor is None else [None, *tensor.shape[1:]]
    dtype = given.dtype if tensor is None else tf.as_dtype(tensor.dtype)
    if given.dtype == tf.string:
        dtype = given.dtype
    return tf.TensorSpec(shape, dtype, name=name)
