"""Keras's own files: ``.keras`` and ``.weights.h5``.

A ``.keras`` file has architecture, weights and how the model is compiled, and is read by
``keras.saving.load_model``. It has the names of classes but not their code. Readers have to import
or register the study's own classes, so the card lists every class that is not Keras's.

A ``.weights.h5`` file has the weights alone, for ``model.load_weights`` of a model of the same
code. Keras leaves out the states of seed generators (such as dropout's), which predictions do not
use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from sweeper.errors import ExportError
from sweeper.models.formats import Leaving, Written
from sweeper.models.signature import predict


class KerasFile:
    """See `ExportFormat`."""

    name = "keras"
    suffix = ".keras"
    tolerance = 0.0

    def write(self, leaving: Leaving, path: Path) -> Written:
        try:
            config = keras.saving.serialize_keras_object(leaving.model)
        except (NotImplementedError, TypeError, ValueError) as error:
            msg = (
                f"the model's configuration cannot be written to a .keras file: {error}; give its "
                "classes a get_config(), or use --format savedmodel, which needs none"
            )
            raise ExportError(msg) from error
        leaving.model.save(path)
        return Written({"needs": sorted(set(_own_classes(config)))})

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        try:
            model = keras.saving.load_model(path, compile=False)
        except (TypeError, ValueError, ImportError, AttributeError) as error:
            summary = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
            msg = (
                f"the exported file cannot be read by keras.saving.load_model: {summary}. "
                "Decorate the study's own layers with "
                "@keras.saving.register_keras_serializable(), and give them a get_config() that "
                "has every argument; or use --format savedmodel, which needs no code"
            )
            raise ExportError(msg) from error
        return predict(model, leaving.batch)


def _own_classes(config: Any) -> Iterator[str]:
    """Yield the classes and functions in a config that do not belong to Keras."""
    if isinstance(config, dict):
        module = config.get("module")
        name = config.get("class_name")
        named = config.get("registered_name")
        if isinstance(name, str) and "config" in config:
            if name == "function":
                name = config["config"]
            outside = isinstance(module, str) and not module.startswith(("keras", "builtins"))
            if outside or (module is None and named):
                yield f"{module}.{name}" if outside else str(named)
        for value in config.values():
            yield from _own_classes(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _own_classes(value)


class WeightsFile:
    """See `ExportFormat`."""

    name = "weights"
    suffix = ".weights.h5"
    tolerance = 0.0

    def write(self, leaving: Leaving, path: Path) -> Written:
        leaving.model.save_weights(path)
        return Written({"variables": len(leaving.model.weights)})

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        model = leaving.rebuilt()
        model.load_weights(path)
        return predict(model, leaving.batch)
