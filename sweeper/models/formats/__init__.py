"""Export formats of models: their interface, and their names, which need no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from sweeper.errors import UsageError

if TYPE_CHECKING:
    import keras

    from sweeper.checkpoint.format import LoadedCheckpoint
    from sweeper.models.signature import Signature

SUFFIXES = {
    "keras": ".keras",
    "weights": ".weights.h5",
    "savedmodel": "",
    "frozen": ".pb",
    "tf-checkpoint": "",
    "safetensors": ".safetensors",
}
"""Suffix of each format's path, by the format's name; empty for a directory."""


def check_format(name: str, path: str) -> None:
    """Check the format's name and the suffix of ``path``.

    Raises:
        UsageError: One of them is wrong.
    """
    if name not in SUFFIXES:
        msg = f"{name!r} is not an export format; use one of {', '.join(SUFFIXES)}"
        raise UsageError(msg)
    suffix = SUFFIXES[name]
    if suffix and (not path.endswith(suffix) or path == suffix):
        msg = f"--format {name} writes a file that ends with {suffix}; the path is {path}"
        raise UsageError(msg)


@dataclass(frozen=True)
class Leaving:
    """An exported model.

    Attributes:
        model: The built model with its variables.
        loaded: The stored variables.
        training: One or more checkpoints with the optimizer's variables, oldest first. The last one
            belongs to ``loaded``.
        rebuilt: Returns a new model of the same study, with other values.
        batch: Inputs of the study's data.
        signature: Returns the names and types of the inputs.
        name: Name of TensorFlow's checkpoints.
    """

    model: keras.Model
    loaded: LoadedCheckpoint
    training: Sequence[LoadedCheckpoint]
    rebuilt: Callable[[], keras.Model]
    batch: Any
    signature: Callable[[], Signature]
    name: str = "ckpt"


@dataclass(frozen=True)
class Written:
    """Description of a written file, for the report and the card.

    Attributes:
        details: JSON values by name.
    """

    details: dict[str, Any] = field(default_factory=dict)


class ExportFormat(Protocol):
    """An export format.

    Attributes:
        name: Name for ``--format``.
        suffix: Suffix of the path; empty for a directory.
        tolerance: Allowed difference of predictions, relative and absolute; 0 for bit-identical
            predictions.
    """

    name: str
    suffix: str
    tolerance: float

    def write(self, leaving: Leaving, path: Path) -> Written:
        """Write the model to ``path``, which does not exist."""
        ...

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        """Read ``path`` again and return its predictions for the batch, one array for each output.

        Args:
            leaving: The exported model.
            path: The written file or directory.
            written: Result of `write`.

        Raises:
            ExportError: It cannot be read; says what a reader needs.
        """
        ...


_CLASSES = {
    "keras": ("model_files", "KerasFile"),
    "weights": ("model_files", "WeightsFile"),
    "savedmodel": ("graphs", "SavedModel"),
    "frozen": ("graphs", "FrozenGraph"),
    "tf-checkpoint": ("tf_checkpoint", "TensorFlowCheckpoint"),
    "safetensors": ("model_files", "SafetensorsFile"),
}
"""Module and class of each format, imported by `open_format`."""


def open_format(name: str) -> ExportFormat:
    """Return the format ``name``, which must exist."""
    module, form = _CLASSES[name]
    return cast("ExportFormat", getattr(import_module(f"{__name__}.{module}"), form)())
