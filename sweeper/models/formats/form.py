"""Interface of an export format: its input, writing, and reading back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sweeper.checkpoint.format import LoadedCheckpoint

if TYPE_CHECKING:
    import keras

    from sweeper.models.signature import Signature


@dataclass(frozen=True)
class Leaving:
    """A model to export.

    Attributes:
        model: Built, with its variables.
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
    """An export format. Its file is written under a temporary name, read again, compared, and renamed.

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
            leaving: The exported model, with its batch and a source of new models.
            path: The written file or directory.
            written: Result of `write`.

        Raises:
            ExportError: It cannot be read; the message says what a reader needs.
        """
        ...
