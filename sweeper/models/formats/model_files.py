"""Files with a model's variables: ``.keras``, ``.weights.h5`` and ``.safetensors``.

A ``.keras`` file has architecture, weights and the arguments of ``compile``, and is read by
``keras.saving.load_model``. It has the names of classes but not their code. Readers have to import or
register the study's own classes, so the card lists all classes that are not Keras's.

A ``.weights.h5`` file has the weights alone, for ``model.load_weights`` of a model of the same code. Keras
leaves out the states of seed generators (such as dropout's), which predictions do not use.

A ``.safetensors`` file has the variables by their paths in the trial's process, for any reader of the
format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.tensors import TensorEntry, TensorFile, as_array, hash_tensor, read_tensors
from sweeper.errors import ExportError
from sweeper.models.formats import Leaving, Written
from sweeper.models.signature import predict


class KerasFile:
    """``.keras`` format; see `ExportFormat`."""

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
    """``.weights.h5`` format; see `ExportFormat`."""

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


class SafetensorsFile:
    """``.safetensors`` format; see `ExportFormat`."""

    name = "safetensors"
    suffix = ".safetensors"
    tolerance = 0.0

    def write(self, leaving: Leaving, path: Path) -> Written:
        tensors = TensorFile(_by_path(leaving.loaded))
        with path.open("xb") as file:
            tensors.write(lambda chunk: _write_whole(file, chunk))
        return Written({"variables": len(leaving.loaded.state["model"])})

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        del written
        entries = [
            TensorEntry(name, array.dtype.name, tuple(array.shape), hash_tensor(array))
            for name, value in _by_path(leaving.loaded).items()
            for array in [as_array(name, value)]
        ]
        try:
            with path.open("rb", buffering=0) as file:
                read = read_tensors(file, path.stat().st_size, entries, lambda _: None)
        except ValueError as error:
            msg = f"the exported file differs from the model: {error}"
            raise ExportError(msg) from error
        model = leaving.rebuilt()
        for variable, name in zip(model.variables, _names(leaving.loaded), strict=True):
            variable.assign(read[name])
        return predict(model, leaving.batch)


def _by_path(loaded: LoadedCheckpoint) -> Mapping[str, np.ndarray[Any, Any]]:
    return {name: loaded.tensors[f"model/{index:05d}"] for index, name in enumerate(_names(loaded))}


def _names(loaded: LoadedCheckpoint) -> list[str]:
    paths = loaded.state["model"]
    repeats = [paths[:index].count(path) for index, path in enumerate(paths)]
    return [p if n == 0 else f"{p}:{n + 1}" for p, n in zip(paths, repeats, strict=True)]


def _write_whole(file: Any, chunk: memoryview) -> None:
    file.write(chunk)
