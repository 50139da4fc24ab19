"""A form in which a model can leave: what it is given, how it writes, and how it is read again."""

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
