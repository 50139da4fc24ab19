"""One object watched by itself: whether anything in it has changed since."""

from __future__ import annotations

from typing import Any

from sweeper.inspection.object_paths import ObjectPath
from sweeper.training.userstate.traversal.walk import Walk


class Watch:
    """What an object and all that it leads to were when this was made.

    Args:
        shown: What the user calls it.
        thing: The object.
    """

    def __init__(self, shown: str, thing: Any) -> None:
        self._walk = Walk(frozenset(), frozenset())
        self._walk.visit([(ObjectPath(shown), thing)])
        self._walk.begin()

    def changed(self) -> list[str]:
        """The paths of what has changed."""
        return [holder.path for holder in self._walk.holders if holder.changed()]
