"""What came into being after a moment, and what was there before it.

Python's garbage collector keeps every object that can refer to others in lists. `gc.freeze` puts
all that are there aside in constant time; whatever the lists have afterwards was made since. So an
object's age needs no hook in Keras, no snapshot of all modules and no trust in names, and what no
walk can find (a C extension's, another thread's) has an age as well.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable


class _Witness:
    """An object whose age is known."""


class AgeLine:
    """A moment, and which objects are younger.

    Args:
        lasting: Whether what is set aside may stay so: in a process that ends with its trial, what
            was imported before is no garbage. Otherwise `release` gives it back.
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._before = _Witness()
        # What someone else has frozen could not be distinguished from ours when it is given back.
        self._frozen = lasting or gc.get_freeze_count() == 0
        self._census: list[object] = []
        if self._frozen:
            gc.freeze()
        else:
            self._census = gc.get_objects()
        self._after = _Witness()
        self.blind = False
        """Whether somebody has frozen or thawed objects since, so that no age can be known."""

    def older(self, things: Iterable[object]) -> set[int]:
        """Return the ids of those that were there before; of one without age, it is taken to be young.

        Numbers, strings, arrays and containers of nothing but these have none: the collector does
        not list them.
        """
        aged = {id(thing) for thing in things if gc.is_tracked(thing)}
        asked = aged | {id(self._before), id(self._after)}
        young = asked.intersection(map(id, gc.get_objects()))
        young.difference_update(map(id, self._census))
        if id(self._before) in young or id(self._after) not in young:
            self.blind = True
            return set()
        return aged - young

    def release(self) -> None:
        """Give back what was set aside. Nothing has an age afterwards."""
        self._census = []
        if self._frozen and not self._lasting:
            gc.unfreeze()
        self._frozen = False
