"""One object watched by itself: whether anything in it has changed since."""

from __future__ import annotations

from typing import Any

from sweeper.inspection.places import Place
from sweeper.training.userstate.walk import Walk

__all__ = ["Watch"]


class Watch:
    """What an object and all that it leads to were when this was made.

    Args:
        told: What the user calls it.
        thing: The object.
    """

    def __init__(self, told: str, thing: Any) -> None:
        self._walk = Walk(frozenset(), frozenset())
        self._walk.visit([(Place(told), thing)])
        self._walk.begin()

    def changed(self) -> list[str]:
        """The paths of what has changed."""
        return [holder.path for holder in self._walk.holders if holder.changed()]
