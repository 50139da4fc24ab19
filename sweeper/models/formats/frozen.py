"""Frozen graph (``.pb``): one GraphDef with constants for variables, and named inputs and outputs.

It is read by ``tf.graph_util.import_graph_def`` and by tools for TensorFlow 1. A model with lookup
tables or other resources cannot be frozen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeper.errors import ExportError
from sweeper.models.formats.form import Leaving, Written
from sweeper.models.formats.savedmodel import shown
from sweeper.models.signature import arrays_of


class FrozenGraph:
    """See `ExportFormat`."""

    name = "frozen"
    suffix = ".pb"
    tolerance = 1e-6

    def write(self, leaving: Leaving, path: Path) -> Written:
        signature = leaving.signature()
        concrete = signature.concrete(leaving.model)
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


FORMAT = FrozenGraph()
