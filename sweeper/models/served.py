"""Graphs of the forward pass, whose readers need no code of the study: a SavedModel and a frozen graph.

A SavedModel, for TensorFlow Serving, has a signature with named inputs and no code. A frozen graph
(``.pb``) is one GraphDef whose variables are constants. A model with lookup tables or other resources
cannot be frozen.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeper.errors import ExportError

_SIGNATURE = "serving_default"
_GENERATED = re.compile(r"(keras_tensor|input_layer|input)?(_\d+)?")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


def write_saved_model(model: keras.Model, batch: Any, path: Path) -> dict[str, Any]:
    """Write a SavedModel to the directory ``path``, and return its inputs and outputs for display."""
    function, traced = _forward_pass(model, batch)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(_SIGNATURE, function)
    with _quiet():
        archive.write_out(str(path), verbose=False)
    inputs = traced.structured_input_signature[1]
    return {
        "signature": _SIGNATURE,
        "inputs": {name: _shown(spec) for name, spec in inputs.items()},
        "outputs": {name: _shown(out) for name, out in traced.structured_outputs.items()},
    }


def write_frozen_graph(model: keras.Model, batch: Any, path: Path) -> dict[str, Any]:
    """Write a frozen graph to the file ``path``, and return its inputs and outputs for display."""
    _, concrete = _forward_pass(model, batch)
    frozen = convert_variables_to_constants_v2(concrete)
    graph = frozen.graph.as_graph_def()
    _refuse_resources(graph)
    path.write_bytes(graph.SerializeToString(deterministic=True))
    outputs = dict(zip(sorted(concrete.structured_outputs), frozen.outputs, strict=True))
    return {
        "inputs": {tensor.name: _shown(tensor) for tensor in frozen.inputs},
        "outputs": {tensor.name: _shown(tensor) for tensor in outputs.values()},
        "output_names": {name: tensor.name for name, tensor in outputs.items()},
    }


def _forward_pass(model: keras.Model, batch: Any) -> tuple[Any, Any]:
    """Return a graph function from named inputs to named predictions, and its trace for any batch size.

    The structure and dtypes are those of ``batch``, the model's inputs, which must be dense arrays.
    """
    leaves = tf.nest.flatten(batch)
    tensors = list(getattr(model, "inputs", None) or ())
    if isinstance(batch, Mapping):
        # The order of `tf.nest` for the leaves of a mapping.
        names = [_clean(str(key)) for key in sorted(batch)]
        by_name = {_clean(tensor.name): tensor for tensor in tensors}
        tensors = [by_name.get(name) for name in names]
    else:
        tensors = tensors if len(tensors) == len(leaves) else [None] * len(leaves)
        names = [_input_name(t, i, len(leaves)) for i, t in enumerate(tensors)]
    if len(set(names)) != len(leaves):
        names = [f"input_{index}" for index in range(len(leaves))]
        tensors = [None] * len(leaves)
    signature = {
        name: _spec(name, leaf, tensor)
        for name, leaf, tensor in zip(names, leaves, tensors, strict=True)
    }

    def serve(**named: Any) -> dict[str, Any]:
        given = tf.nest.pack_sequence_as(batch, [named[name] for name in names])
        return _named_outputs(model(given, training=False))

    function = tf.function(serve, autograph=False)
    return function, function.get_concrete_function(**signature)


def _spec(name: str, leaf: Any, tensor: Any) -> tf.TensorSpec:
    """Return an input's specification for any number of samples: the model's own, or the batch's."""
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        msg = (
            f"input {name!r} of the model is a {type(leaf).__name__}, which this form cannot name; "
            "use --format keras or weights"
        )
        raise ExportError(msg)
    given = tf.convert_to_tensor(leaf)
    own = tensor is not None and given.dtype != tf.string
    dtype = tf.as_dtype(tensor.dtype) if own else given.dtype
    shape = given.shape if tensor is None else tensor.shape
    return tf.TensorSpec([None, *shape[1:]], dtype, name=name)


def _input_name(tensor: Any, index: int, count: int) -> str:
    """Return the user's name of an input, or a generic one if Keras generated the name."""
    if tensor is not None and not _GENERATED.fullmatch(tensor.name):
        return _clean(re.sub(r"_\d+$", "", tensor.name))
    return "input" if count == 1 else f"input_{index}"


def _clean(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).strip("_") or "input"


def _named_outputs(outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name: a mapping's names, ``output``, or ``output_0``, ``output_1``, …."""
    if isinstance(outputs, Mapping) and not any(map(tf.nest.is_nested, outputs.values())):
        return {_clean(str(name)): value for name, value in outputs.items()}
    leaves = tf.nest.flatten(outputs)
    if len(leaves) == 1:
        return {"output": leaves[0]}
    return {f"output_{index}": leaf for index, leaf in enumerate(leaves)}


def _shown(spec: Any) -> str:
    """Return a tensor's dtype and shape for display: ``float32[?, 10]``."""
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.dtype.name}[{sizes}]"


def _refuse_resources(graph: Any) -> None:
    kinds = {"HashTableV2", "MutableHashTableV2", "VarHandleOp", "LookupTableFindV2"}
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    found = sorted({node.op for node in nodes if node.op in kinds})
    if found:
        msg = (
            f"the model's graph has {', '.join(found)}, whose contents are not constants, so it "
            "cannot be frozen; use --format savedmodel, or leave the lookup out of the model"
        )
        raise ExportError(msg)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses TensorFlow's output about the export."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(before)
