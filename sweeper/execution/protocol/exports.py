"""What a process is asked to export, and what it says of it."""

from __future__ import annotations

from typing import Any, Literal

from sweeper.execution.protocol.sendable import sendable


@sendable
class ExportOrder:
    """What is to be written, and where.

    Attributes:
        format: A name of `sweeper.export.formats.SUFFIXES`.
        path: Absolute.
        checkpoint: Where the model's variables are.
        training: The checkpoints that hold the optimizer too, oldest first; the last of them goes
            with ``checkpoint``.
        card: What is known of the model beyond what writing it tells.
        force: Whether what is at ``path`` is replaced.
        name: Of TensorFlow's checkpoints.
    """

    format: str
    path: str
    checkpoint: str
    training: tuple[str, ...]
    card: dict[str, Any]
    force: bool = False
    name: str = "ckpt"


@sendable
class ModelExported:
    """Up, last: the model stands at its path; its card."""

    card: dict[str, Any]
    kind: Literal["model_exported"] = "model_exported"
