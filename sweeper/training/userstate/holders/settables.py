"""A set that iterates in the same order as another: its table is made again, slot by slot.

A set gives its members in the order of their slots, and which slot a member has depends on who was
there when it came, on how often the table has grown, and on who has left (a slot that was left stays
taken). So the table is read, from CPython's own structure, and filled again: first who stands where
its hash says, then, each after those it had to pass, the others; for slots that were left, strangers
come and leave again. What comes out is looked at; nothing is written but by ``set`` itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Any

_LINEAR_PROBES = 9
_PERTURB_SHIFT = 5
_MANY = 50_000
"""Members from which a table doubles when it grows."""

Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Slots less one; the members' slots, in order; the slots that were left."""


class _Entry(ctypes.Structure):
    _fields_ = (("key", ctypes.c_void_p), ("hash", ctypes.c_ssize_t))


class _Set(ctypes.Structure):
    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("fill", ctypes.c_ssize_t),
        ("used", ctypes.c_ssize_t),
        ("mask", ctypes.c_ssize_t),
        ("table", ctypes.POINTER(_Entry)),
    )


def layout_of(thing: Any) -> Layout | None:
    """Where the members of a set stand; None where this Python does not tell."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    read = _Set.from_address(id(thing))
    if read.used != len(thing) or read.mask & (read.mask + 1) or read.mask < 7:
        return None
    members, left = [], []
    keys = []
    for slot in range(read.mask + 1):
        entry = read.table[slot]
        if entry.key is None:
            continue
        if entry.hash == -1:
            left.append(slot)
        else:
            members.append(slot)
            keys.append(entry.key)
    if keys != [id(member) for member in set.__iter__(thing)]:
        return None
    return read.mask, tuple(members), tuple(left)


class _Stranger:
    """Takes the slot that its hash says, and leaves."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot

    def __eq__(self, other: object) -> bool:
        return self is other


def fill_set(thing: Any, members: Sequence[Any], layout: Layout | None) -> bool:
    """Give the set these members; return whether it then iterates in their order.

    Args:
        thing: A set; what it has goes.
        members: In the order wanted.
        layout: Where they stood; None where that is not known.
    """
    for started, grown, rest in _plans(members, layout):
        set.clear(thing)
        if started:
            set.update(thing, started)
        for each in grown:
            set.add(thing, each)
            if type(each) is _Stranger:
                set.discard(thing, each)
        for each in rest:
            set.add(thing, each)
        for each in (*started, *rest):
            if type(each) is _Stranger:
                set.discard(thing, each)
        if _in_order(set.__iter__(thing), members):
            return True
    set.clear(thing)
    for member in members:
        set.add(thing, member)
    return _in_order(set.__iter__(thing), members)


def _plans(
    members: Sequence[Any], layout: Layout | None
) -> Iterator[tuple[set[Any], list[Any], list[Any]]]:
    """What to give at once, what to grow the table with, and what then comes one by one."""
    if layout is None:
        return
    mask, slots, left = layout
    standing: dict[int, Any] = dict(zip(slots, members, strict=True))
    standing.update({slot: _Stranger(slot) for slot in left})
    at_home = [s for s, each in standing.items() if hash(each) & mask == s]
    others = _after_those_passed(standing, set(at_home), mask)
    if others is None:
        return
    first = [standing[slot] for slot in at_home]
    yield set(), [], first + others
    # Those that left before the table grew for the last time made it grow, and are not in it.
    real = [each for each in first if type(each) is not _Stranger]
    for count in range(len(real), 0, -max(1, len(real) // 8)):
        leavers = [_Stranger(slot) for slot in range(_until_it_grows(count))]
        known = {id(each) for each in real[:count]}
        rest = [each for each in first if id(each) not in known]
        yield set(), [*real[: count - 1], *leavers, real[count - 1]], rest + others
    # A table that came of a copy or a union has other sizes than one that grew.
    for count in range((mask + 1) // 4, min(len(first), (mask + 1) // 2) + 1):
        yield set(first[:count]), [], first[count:] + others


def _until_it_grows(count: int) -> int:
    """How many have to come and leave, so that a table grows with its member number ``count``."""
    mask, fill = 7, 0
    for used in range(1, count + 1):
        fill += 1
        if used < count and fill * 5 >= mask * 3:
            wanted = used * (2 if used > _MANY else 4)
            mask, fill = (1 << wanted.bit_length()) - 1, used
    return max(0, -(-mask * 3 // 5) - fill)


def _after_those_passed(standing: dict[int, Any], placed: set[int], mask: int) -> list[Any] | None:
    """The members that do not stand where their hash says, each after those that it had to pass."""
    waiting = {
        slot: [passed for passed in _passed(hash(each), slot, mask) if passed in standing]
        for slot, each in standing.items()
        if slot not in placed
    }
    ordered = []
    while waiting:
        free = [slot for slot, passed in waiting.items() if placed.issuperset(passed)]
        if not free:
            return None
        for slot in free:
            del waiting[slot]
            placed.add(slot)
            ordered.append(standing[slot])
    return ordered


def _passed(hashed: int, slot: int, mask: int) -> list[int]:
    """The slots that CPython tries for a hash before it comes to ``slot``."""
    perturb = hashed & ((1 << 64) - 1)
    at = hashed & mask
    passed: list[int] = []
    for _ in range(mask + 64):
        last = at + (_LINEAR_PROBES if at + _LINEAR_PROBES <= mask else 0)
        for probe in range(at, last + 1):
            if probe == slot:
                return passed
            passed.append(probe)
        perturb >>= _PERTURB_SHIFT
        at = (at * 5 + 1 + perturb) & mask
    return passed


def _in_order(found: Iterable[Any], members: Sequence[Any]) -> bool:
    listed = list(found)
    return len(listed) == len(members) and all(map(is_, listed, members))
