"""``.safetensors``: the model's variables by their paths, for any reader of that format.

The paths are those of the variables in the trial's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.tensors import TensorEntry, TensorFile, as_array, hash_tensor, read_tensors
from sweeper.errors import ExportError
from sweeper.models.formats import Leaving, Written
from sweeper.models.signature import predict


class SafetensorsFile:
    """See `ExportFormat`."""

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
    """Return the variables' paths; a repeated path gets a number."""
    found: dict[str, int] = {}
    names = []
    for path in loaded.state["model"]:
        found[path] = found.get(path, 0) + 1
        names.append(path if found[path] == 1 else f"{path}:{found[path]}")
    return names


def _write_whole(file: Any, chunk: memoryview) -> None:
    file.write(chunk)
