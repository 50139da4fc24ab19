"""Sets, which a checkpoint holds only where filling one anew gives the same.

A set gives its members in the order of a table inside it, and which place a member has there depends on the
others that were there when it came, on how far the table had grown, and on the members that have left. No
interface tells the table. So a set is filled anew, by inserting its members in their order, and compared: the
order, and the memory that the table takes. Members that hash by their address have another order in each
process anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from sweeper.training.encoding.form import UnplaceableError
from sweeper.training.encoding.leaves import hashes_alike


def way_to_fill(thing: Any, members: Sequence[Any]) -> bool | None:
    """Return how to fill a set so that it is like ``thing``: with all members at once, or one by one.

    Returns:
        Whether at once; None where neither gives the same.
    """
    for at_once in (False, True):
        again: set[Any] = set()
        try:
            fill_set(again, members, at_once=at_once)
        except UnplaceableError:
            continue
        if has_an_order(members) and set.__sizeof__(again) != set.__sizeof__(thing):
            continue
        return at_once
    return None


def has_an_order(members: Sequence[Any]) -> bool:
    """Return whether a set of these members has the same order in every process that makes it alike."""
    return all(map(hashes_alike, members))


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
    if has_an_order(members) and not all(map(is_, set.__iter__(thing), members)):
        msg = "a set gave its members in another order, and cannot be filled so that it does again"
        raise UnplaceableError(msg)
