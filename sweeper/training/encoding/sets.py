"""Sets, which a checkpoint holds only where filling one anew gives the same.

A set gives its members in the order of a table inside it, and which place a member has there depends on the
others that were there when it came, on how far the table had grown, and on the members that have left. No
interface tells the table. So a set is filled anew, by inserting its members in their order, and compared: the
order, the size, and whether a member that was seen earlier has left, whose place in the table stays taken. Members that hash by their
address have another order in each process anyway.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_
from typing import Any

from sweeper.training.encoding.form import UnplaceableError
from sweeper.training.encoding.leaves import hashes_alike


class SetHistory:
    """The members that earlier captures saw in each set."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[Any], list[Any], bool]] = {}

    def see(self, thing: Any, members: Sequence[Any]) -> bool:
        """Note the members of a set; return whether one that was there earlier has left."""
        reference, earlier, left = self._seen.get(id(thing), (None, [], False))
        if reference is None or reference() is not thing:
            earlier, left = [], False
        left = left or not set.issuperset(thing, earlier)
        self._seen[id(thing)] = weakref.ref(thing), list(members), left
        return left

    def refill(self, thing: Any, members: Sequence[Any]) -> bool | None:
        """Return how to fill a set so that it is like ``thing``: with all members at once, or one by one.

        Returns:
            Whether at once; None where neither gives the same.
        """
        left = self.see(thing, members)
        for at_once in (False, True):
            again: set[Any] = set()
            try:
                fill_set(again, members, at_once=at_once)
            except UnplaceableError:
                continue
            same_size = set.__sizeof__(again) == set.__sizeof__(thing)
            if not all(map(hashes_alike, members)) or (same_size and not left):
                return at_once
        return None


def fill_set(thing: Any, members: Sequence[Any], *, at_once: bool = False) -> None:
    """Give the set ``thing`` these members and no others, in their order.

    Args:
        thing: The set.
        members: In the order in which it shall give them.
        at_once: Whether its table is made for all of them first; it grows with each otherwise.

    Raises:
        UnplaceableError: It then gives them in another order.
    """
    set.clear(thing)
    if at_once:
        set.update(thing, dict.fromkeys(members))
    else:
        for member in members:
            set.add(thing, member)
    if all(map(hashes_alike, members)) and not all(map(is_, set.__iter__(thing), members)):
        msg = "a set gave its members in another order, and cannot be filled so that it does again"
        raise UnplaceableError(msg)
