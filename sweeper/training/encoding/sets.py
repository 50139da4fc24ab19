"""Sets, which a checkpoint holds only where filling one anew gives the same.

A set gives its members in the order of a table inside it, and which place a member has there depends on the
others that were there when it came, on how far the table had grown, and on the members that have left. No
interface tells the table. So a set is filled anew, by inserting its members in their order, and compared: the
order, the size of the table, and whether a member that was seen earlier has left. Members that hash by their
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

    def can_be_rebuilt(self, thing: Any, members: Sequence[Any]) -> bool:
        """Return whether a set that is filled with ``members`` in their order is like ``thing``."""
        left = self.see(thing, members)
        if not all(map(hashes_alike, members)):
            return True
        again: set[Any] = set()
        for member in members:
            again.add(member)
        same_size = set.__sizeof__(again) == set.__sizeof__(thing)
        return not left and same_size and all(map(is_, again, members))


def fill_set(thing: Any, members: Sequence[Any]) -> None:
    """Give the set ``thing`` these members and no others, inserted in their order.

    Raises:
        UnplaceableError: It then gives them in another order.
    """
    set.clear(thing)
    for member in members:
        set.add(thing, member)
    if all(map(hashes_alike, members)) and not all(map(is_, set.__iter__(thing), members)):
        msg = "a set gave its members in another order, and cannot be filled so that it does again"
        raise UnplaceableError(msg)
