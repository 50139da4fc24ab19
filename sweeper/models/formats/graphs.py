"""Graphs of the forward pass, whose readers need no code of the study: a SavedModel and a frozen graph.

A SavedModel, for TensorFlow Serving, has a signature with named inputs and no code. A frozen graph
(``.pb``) is one GraphDef whose variables are constants. It is read by
``tf.graph_util.import_graph_def`` and by readers of TensorFlow 1's graphs. A model with lookup tables or
other resources cannot be frozen.

Graphs and eager calls round differently in the last bits, so predictions are compared with a tolerance.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeper.errors import ExportError
from sweeper.models.formats import Leaving, Written
from sweeper.models.signature import arrays_of

_SIGNATURE = "serving_default"


class SavedModel:
    """SavedModel format; see `ExportFormat`."""

    name = "savedmodel"
    suffix = ""
    tolerance = 1e-6

    def write(self, leaving: Leaving, path: Path) -> Written:
        signature = leaving.signature()
        function = signature.function(leaving.model)
        traced = function.get_concrete_function(**signature.inputs)
        archive = keras.export.ExportArchive()
        archive.track(leaving.model)
        archive.add_endpoint(_SIGNATURE, function)
        with _quiet():
            archive.write_out(str(path), verbose=False)
        return Written(
            {
                "signature": _SIGNATURE,
                "inputs": {n: shown(spec) for n, spec in signature.inputs.items()},
                "outputs": {n: shown(out) for n, out in traced.structured_outputs.items()},
            }
        )

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        served = tf.saved_model.load(str(path)).signatures[_SIGNATURE]
        return arrays_of(served(**leaving.signature().feed(leaving.batch)))


def shown(spec: Any) -> str:
    """Return a tensor's dtype and shape for display: ``float32[?, 10]``."""
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.dtype.name}[{sizes}]"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses TensorFlow's output about the export."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(os.environ.get("SWEEPER_TF_LOG", "ERROR"))
    try:
        yield
    finally:
        logger.setLevel(before)


class FrozenGraph:
    """Frozen graph format; see `ExportFormat`."""

    name = "frozen"
    suffix = ".pb"
    tolerance = 1e-6

    def write(self, leaving: Leaving, path: Path) -> Written:
        signature = leaving.signature()
        concrete = signature.function(leaving.model).get_concrete_function(**signature.inputs)
        frozen = convert_variables_to_constants_v2(concrete)
        graph = frozen.graph.as_graph_def()
        _refuse_resources(graph)
        path.write_bytes(graph.SerializeToString(deterministic=True))
        outputs = dict(zip(sorted(concrete.structured_outputs), frozen.outputs, strict=True))
        inputs = {tensor.op.name: tensor for tensor in frozen.inputs}
        return Written(
            {
                "inputs": {tensor.name: shown(tensor) for tensor in inputs.values()},
                "outputs": {tensor.name: shown(tensor) for tensor in outputs.values()},
                "output_names": {name: tensor.name for name, tensor in outputs.items()},
            }
        )

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        graph = tf.compat.v1.GraphDef()
        graph.ParseFromString(path.read_bytes())
        fed = leaving.signature().feed(leaving.batch)
        imported = tf.compat.v1.wrap_function(
            lambda: tf.graph_util.import_graph_def(graph, name=""), []
        )
        pruned = imported.prune([f"{name}:0" for name in fed], written.details["output_names"])
        return arrays_of(pruned(*fed.values()))


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
