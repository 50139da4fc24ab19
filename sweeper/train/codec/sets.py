"""Capture of sets: search for an order of insertion that reproduces the order of iteration.

A set is iterated in the order of its hash table. A member's slot depends on the members that were
present when it was added, on the size of the table, and on removed members. Python does not expose
the table. So a new set is filled, and its order and its memory are compared. Colliding members have
to be added in the right order. The search moves one of them at a time, and keeps the move if no more
members are out of place than before. Members that are hashed by address have a different order in
each process anyway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

from sweeper.train.codec.form import UnplaceableError, hashes_alike

_MOST_INSERTIONS = 2_000_000
"""Maximum number of insertions of one search, at about 30 million a second."""

_SMALL, _OTHERS = 20, 40
"""Largest set for which other orders of insertion are tried, and their number."""

_TINY, _ROUNDS = 8, 30
"""Largest set whose table soon grows, and the number of rounds in which such sets are compared."""

_SEEN, _MOST_PROBES = 64, 256
"""Largest set that is compared after each addition instead of at the end, and the most additions."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Order of insertion that gives a set the order of another.

    Attributes:
        order: Positions of the members, in the order in which they are inserted.
        at_once: Whether the table is allocated for all members first, instead of growing with each.
    """

    order: Sequence[int]
    at_once: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the order of insertion, unless it is the set's order of iteration."""
        written: dict[str, Any] = {"at_once": True} if self.at_once else {}
        if any(position != index for index, position in enumerate(self.order)):
            written["order"] = list(self.order)
        return written

    @classmethod
    def from_json(cls, node: dict[str, Any], count: int) -> Filling:
        """Return the inverse of `to_json`, for a set of ``count`` members."""
        return cls(node.get("order", range(count)), node.get("at_once", False))


def filling_of(thing: Any, members: Sequence[Any]) -> Filling | None:
    """Return an order of insertion for a set like ``thing``; None if none was found, or not just one."""
    by_default = Filling(range(len(members)))
    if not has_an_order(members):
        return by_default
    for at_once in (False, True):
        again = _filled(members, Filling(by_default.order, at_once))
        if set.__sizeof__(again) == set.__sizeof__(thing):
            order = order_of_insertion(members, at_once=at_once)
            return None if order is None else _certain(thing, members, Filling(order, at_once))
    return None


def filling_of_frozen(members: Sequence[Any]) -> Filling | None:
    """Return an order of insertion for a frozenset with the order of ``members``; None if none was found."""
    if not has_an_order(members):
        return Filling(range(len(members)))
    for at_once in (False, True):
        order = order_of_insertion(members, at_once=at_once)
        if order is not None:
            return Filling(order, at_once)
    return None


def frozen_set(members: Sequence[Any], filling: Filling) -> frozenset[Any]:
    """Return a frozenset of ``members`` that is filled as ``filling`` says."""
    inserted = [members[position] for position in filling.order]
    return frozenset(dict.fromkeys(inserted) if filling.at_once else inserted)


def _certain(thing: Any, members: Sequence[Any], found: Filling) -> Filling | None:
    """Return the filling after which later members get the same slots as in ``thing``, or None.

    Sets with the same order may have different free slots, which affects members that are added
    later. Copying a set keeps the slots of some sets, so copies are compared. If two orders of
    insertion fit but differ for later members, the right one is unknown.
    """
    copies = partial(set.copy, thing)
    fitting = [
        filling
        for filling in (found, *_others(members, found))
        if _go_on_alike(copies, partial(set.copy, _filled(members, filling)))
    ]
    if not fitting:
        return None
    first = partial(_filled, members, fitting[0])
    if all(_go_on_alike(first, partial(_filled, members, other)) for other in fitting[1:]):
        return fitting[0]
    return None


def _others(members: Sequence[Any], found: Filling) -> Iterator[Filling]:
    """Yield other fillings of a small set with the same order of members."""
    if len(members) > _SMALL:
        return
    draws = random.Random(0)  # noqa: S311 - the search is the same each time
    drawn = (tuple(draws.sample(range(len(members)), len(members))) for _ in range(_OTHERS))
    for order in dict.fromkeys(drawn):
        other = Filling(order, found.at_once)
        if all(map(is_, _filled(members, other), members)):
            yield other


class _Probe:
    """Later member of a set, with a chosen hash."""

    def __init__(self, value: int) -> None:
        self._hash = value

    def __hash__(self) -> int:
        return self._hash


def _go_on_alike(make_one: Callable[[], set[Any]], make_other: Callable[[], set[Any]]) -> bool:
    """Return whether two sets keep the same order while the same members are added to both."""
    draws = random.Random(1)  # noqa: S311 - the search is the same each time
    for _ in range(_ROUNDS if len(make_one()) <= _TINY else 1):
        one, other = make_one(), make_other()
        for _ in range(min(len(one), _MOST_PROBES) + 8):
            probe = _Probe(draws.getrandbits(48))
            one.add(probe)
            other.add(probe)
            if len(one) <= _SEEN and not all(map(is_, one, other)):
                return False
        if not all(map(is_, one, other)):
            return False
    return True


def order_of_insertion(members: Sequence[Any], *, at_once: bool = False) -> list[int] | None:
    """Search for an order of insertion that gives a set with its members in the order of ``members``.

    Returns:
        Positions in ``members``; None if the search ended without a result.
    """
    count = len(members)
    rank = {id(member): position for position, member in enumerate(members)}
    draws = random.Random(count)  # noqa: S311 - the search is the same each time
    order, kept, kept_gaps, kept_seen = list(range(count)), list(range(count)), None, [0]
    for _ in range(_MOST_INSERTIONS // (count + 1)):
        again = _filled(members, Filling(order, at_once))
        seen = [rank[id(member)] for member in set.__iter__(again)]
        gaps = [k for k in range(count) if seen[k] != k and (k == 0 or seen[k] != seen[k - 1] + 1)]
        if not gaps:
            return order
        if kept_gaps is None or len(gaps) <= len(kept_gaps):
            kept, kept_gaps, kept_seen = order, gaps, seen
        gap = draws.choice(kept_gaps)
        follower = kept_seen[gap - 1] + 1 if gap else 0
        moved = draws.choice((follower % count, kept_seen[gap], gap))
        order = [position for position in kept if position != moved]
        order.insert(draws.choice((0, count - 1, draws.randrange(count))), moved)
    return None


def has_an_order(members: Sequence[Any]) -> bool:
    """Return whether a set of these members has the same order in every process."""
    return all(map(hashes_alike, members))


def fill_set(thing: Any, members: Sequence[Any], filling: Filling | None = None) -> None:
    """Replace the members of the set ``thing`` by ``members``.

    Args:
        thing: The set.
        members: The members in the order of iteration to restore.
        filling: Order of insertion; that of ``members`` by default.

    Raises:
        UnplaceableError: The order of iteration is a different one.
    """
    set.clear(thing)
    _fill(thing, members, filling or Filling(range(len(members))))
    if has_an_order(members) and not all(map(is_, set.__iter__(thing), members)):
        msg = "a set had another order of iteration, which cannot be restored"
        raise UnplaceableError(msg)


def _filled(members: Sequence[Any], filling: Filling) -> set[Any]:
    again: set[Any] = set()
    _fill(again, members, filling)
    return again


def _fill(thing: Any, members: Sequence[Any], filling: Filling) -> None:
    if filling.at_once:
        set.update(thing, dict.fromkeys(members[position] for position in filling.order))
        return
    for position in filling.order:
        set.add(thing, members[position])
