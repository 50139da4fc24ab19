"""Base of the parts of a training's state, each of which is captured and restored by itself."""

from collections.abc import Mapping
from typing import Any

from sweeper.train.codec import Json, Tensors


class Component:
    """One kind of state. Names of its tensors begin with its name.

    A training calls the methods in the order in which they stand here. Those that only some components
    need do nothing by default.
    """

    name: str

    def before_train_begin(self, saved: Json | None, lost_from: int | None) -> None:
        """Prepare for the callbacks' ``on_train_begin``; ``saved`` is None for a training from its start.

        ``lost_from`` is the first epoch of which an attempt that was lost may have written something; None
        if nothing was lost.
        """

    def begin(self) -> None:
        """Record the initial state, after ``on_train_begin``."""

    def undo(self) -> None:
        """Undo the changes of a step that was run for its variables; keep layers and variables that it created."""

    def settle(self) -> None:
        """Record that all variables of the training exist."""

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each mismatch of ``saved``, without changing anything."""
        del saved, tensors
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def capture(self, tensors: Tensors) -> Json:
        """Put arrays into ``tensors`` and return the rest as JSON; change nothing."""
        raise NotImplementedError

    def after_train_end(self) -> None:
        """Remove what is needed only for a resume, after the last snapshot of a training that has ended."""
