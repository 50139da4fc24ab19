"""The forms in which a model can leave. Their names import no TensorFlow.

A form says what it is given, how it writes, and how what it wrote is read again.
"""

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
"""Every form by name, with what its path ends with; empty for a directory."""


def check_format(name: str, path: str) -> None:
    """Check that there is such a form, and that ``path`` is called as it is.

    Raises:
        UsageError: One of the two is not so.
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
    """A model that leaves.

    Attributes:
        model: Built, with its variables.
        loaded: What these variables were read from.
        training: The checkpoint, or several, oldest first, that hold the whole training: the
            optimizer's variables too. The last one belongs to ``loaded``.
        rebuilt: Gives a fresh model of the same study, with other values and new variables.
        batch: Inputs of the study's data.
        signature: Gives the names and types of the inputs.
        name: Of TensorFlow's checkpoints.
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
        details: By what they are called; JSON.
    """

    details: dict[str, Any] = field(default_factory=dict)


class ExportFormat(Protocol):
    """One form. It is written under another name, read again, compared, and then renamed.

    Attributes:
        name: As ``--format`` has it.
        suffix: What the path ends with; empty for a directory.
        tolerance: By how much predictions may differ, relative and absolute; 0 where it runs the
            same operations, so that every bit is the same.
    """

    name: str
    suffix: str
    tolerance: float

    def write(self, leaving: Leaving, path: Path) -> Written:
        """Write the model to ``path``, where nothing is."""
        ...

    def predict(self, leaving: Leaving, path: Path, written: Written) -> list[Any]:
        """Read ``path`` afresh, and give what it predicts for the batch: one array an output.

        Args:
            leaving: The model that was written, for its batch and for fresh models of its kind.
            path: Where it was written.
            written: What `write` said.

        Raises:
            ExportError: It cannot be read; says what its reader needs.
        """
        ...


_CLASSES = {
    "keras": ("keras_files", "KerasFile"),
    "weights": ("keras_files", "WeightsFile"),
    "savedmodel": ("graphs", "SavedModel"),
    "frozen": ("graphs", "FrozenGraph"),
    "tf-checkpoint": ("tf_checkpoint", "TensorFlowCheckpoint"),
    "safetensors": ("safetensors", "SafetensorsFile"),
}
"""Every form's module and class, imported when it is opened."""


def open_format(name: str) -> ExportFormat:
    """Return the format called ``name``; `check_format` has checked the name."""
    module, form = _CLASSES[name]
    return cast("ExportFormat", getattr(import_module(f"{__name__}.{module}"), form)())
