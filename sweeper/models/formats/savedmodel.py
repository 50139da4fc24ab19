"""A SavedModel for TensorFlow Serving: the forward pass, its signature with named inputs, no code.

Its reader needs no code of the study, because it contains the graph. Graphs and eager calls round
differently in the last bits, so predictions are compared with a tolerance.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from sweeper.models.formats.form import Leaving, Written
from sweeper.models.signature import arrays_of

_SIGNATURE = "serving_default"


class SavedModel:
    """See `ExportFormat`."""

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


FORMAT = SavedModel()
