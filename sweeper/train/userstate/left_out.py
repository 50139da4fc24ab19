"""Fingerprints of changed attributes of callbacks with their own ``get_state`` and ``set_state``.

Such a callback's state is the result of its ``get_state``. State that this leaves out is lost on resume
without an error. So a separate walk covers the callback's attributes, and a checkpoint has a
fingerprint of each changed one. Fingerprints are compared with those of a replay, never restored.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoint.format import relocated
from sweeper.inspection.sorts import fields_of, is_users_class
from sweeper.inspection.walk import ObjectPath
from sweeper.train.codec import TAG, Json, NotPlainError, Tensors
from sweeper.train.codec.form import MISSING, same
from sweeper.train.userstate.codec import UserEncoder, path_in
from sweeper.train.userstate.holders import KEYED, NAMED, ORDERED, Holder, Structure
from sweeper.train.userstate.values import Array, Cache
from sweeper.train.userstate.walk import Roots, Walk

_SHORT = 40
_MOST_ELEMENTS = 64
"""Maximum length of a list whose elements have their own fingerprints."""

_SEQUENCES = ("list", "deque", "set", "tuple", "frozenset")
"""Kinds that a callback's methods often convert into one another, which has no effect."""

_MUTABLE = frozenset({list, set, deque, dict, OrderedDict, defaultdict, np.ndarray})
"""Built-in containers and arrays, which can be copied without running the user's code."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of an object by their names, keys or positions."""

    shape: str
    values: dict[Any, Any]


class _Comparing(UserEncoder):
    """Encoder of values that are compared and never restored, so any set can be encoded."""

    def _members(self, thing: set[Any] | frozenset[Any], path: str) -> list[Json]:
        kind: Any = set if isinstance(thing, set) else frozenset
        return self._items([*kind.__iter__(thing)], path)


class LeftOut:
    """Attributes of callbacks with their own ``get_state``.

    Args:
        walk: The walk of all other objects, which does not enter these callbacks.
        roots: Roots of that walk.
        covered: Returns the ids of the variables that other components capture.
    """

    def __init__(self, walk: Walk, roots: Roots, covered: Callable[[], frozenset[int]]) -> None:
        callbacks, output = roots.keeping_own_state(), roots.ids_of_output()
        own = [walk.nodes[id(each)] for each in callbacks if id(each) in walk.nodes]
        self._directory = roots.directory
        others = frozenset(walk.nodes) - {id(node.thing) for node in own}
        self._covered = covered
        self._output = output
        self._walk = Walk(covered(), output | others)
        if own:
            self._walk.visit([(ObjectPath(node.path), node.thing) for node in own])
        for module in self._walk.modules:
            watched = walk.module(module.path)
            for name in () if watched is None else watched.names:
                module.names.pop(name, None)
        self._walk.begin()
        self._nodes = {**walk.nodes, **self._walk.nodes}
        held: dict[int, list[Holder]] = {}
        for holder in self._walk.holders:
            held.setdefault(id(holder.thing), []).append(holder)
        self._held = {key: found[0] for key, found in held.items() if len(found) == 1}

    def fingerprints(self) -> Json:
        """Return the name and fingerprint of each attribute, key and element that training changed."""
        return [
            [name, text]
            for holder in self._walk.holders
            if not isinstance(holder, Cache) and holder.changed()
            for name, text in self._of(holder)
        ]

    def _of(self, holder: Holder) -> Iterator[tuple[str, str]]:
        """Yield the differences in an object that existed when training began."""
        now = _contents(holder.thing, holder)
        if now is None:
            whole = _copied(holder.thing)
            if whole is holder.thing:
                text = self._fingerprint(lambda encoder: encoder.holder(holder))
            else:
                text = self._fingerprint_of(holder.path, whole)
            if text is not None:
                yield holder.path, text
            return
        yield from self._parts(holder.path, self._began(holder.thing), now, holder)

    def _parts(
        self, path: str, began: Parts, now: Parts, holder: Holder | None, within: Ids = ()
    ) -> Iterator[tuple[str, str]]:
        """Yield the replaced parts; objects that changed in place have their own holder."""
        for key in dict.fromkeys([*began.values, *now.values]):
            one, two = began.values.get(key, MISSING), now.values.get(key, MISSING)
            if same(one, two):
                continue
            inner = f"{path}.{key}" if now.shape == NAMED else f"{path}[{key!r}]"
            leaf = inner
            if isinstance(holder, Structure) and now.shape == NAMED:
                leaf = path_in(holder, key)
            elif now.shape == NAMED:
                leaf = f"{path}: attribute {key!r}"
            yield from self._replaced(leaf, inner, one, two, within)
        if now.shape == KEYED and [*began.values] != [*now.values]:
            text = self._fingerprint_of(path, [*now.values])
            if text is not None:
                yield f"{path}.keys()", text

    def _replaced(
        self, leaf: str, inner: str, one: Any, two: Any, within: Ids
    ) -> Iterator[tuple[str, str]]:
        """Yield the differences between ``one`` and its replacement ``two``, as if changed in place.

        A callback's ``set_state`` creates objects that training changes in place.

        Args:
            leaf: Path of a value without parts.
            inner: Path of an object that may change in place.
            one: The initial object.
            two: The current object.
            within: Ids of the objects that contain it.
        """
        held = self._held.get(id(one))
        alike = isinstance(held, Structure) and type(one) is type(two) and held.shape == NAMED
        now = None if id(two) in within else _contents(two, attributes=alike)
        if now is not None:
            yield from self._parts(inner, self._began(one), now, None, (*within, id(two)))
            return
        if type(two) is np.ndarray and type(held) is Array and _token(two) == held.began:
            return
        whole = _copied(two)
        path = leaf if whole is two else inner
        text = "missing" if two is MISSING else self._fingerprint_of(path, whole)
        if text is not None:
            yield path, text

    def _began(self, thing: Any) -> Parts:
        """Return the initial parts of ``thing``; none if it has no parts."""
        held = self._held.get(id(thing))
        if isinstance(held, Structure):
            return Parts(held.shape, _by_key(held.shape, held.keys, held.values))
        return _contents(thing) or Parts(ORDERED, {})

    def _fingerprint_of(self, path: str, value: object) -> str | None:
        plain = value.item() if isinstance(value, np.generic) else value
        return self._fingerprint(lambda encoder: encoder.encode(plain, path))

    def _fingerprint(self, write: Callable[[UserEncoder], Json]) -> str | None:
        """Return a short value as text, the digest of another value; None if it cannot be encoded."""
        tensors: Tensors = {}
        encoder = _Comparing(
            tensors,
            "",
            self._nodes,
            covered=self._covered,
            exempt=self._output,
        )
        try:
            plain = relocated(_plain(write(encoder), {}), self._directory, "…")
        except NotPlainError:
            # An open file, a thread, a compiled function: it can be neither restored nor compared.
            return None
        text = json.dumps(plain, sort_keys=True)
        if not isinstance(plain, list | dict) and len(text) <= _SHORT:
            return text
        digest = xxhash.xxh3_64(text.encode())
        for name in sorted(tensors):
            array = np.asarray(tensors[name])
            digest.update(f"{array.dtype} {array.shape}".encode())
            text = repr(array.tolist()) if array.dtype == object else ""
            digest.update(text.encode() or array.tobytes())
        return f"digest {digest.hexdigest()}"


def _contents(
    thing: Any, holder: Holder | None = None, *, attributes: bool = False
) -> Parts | None:
    """Return the parts of ``thing`` by name; None if it is compared as one value.

    Args:
        thing: Any object.
        holder: Its holder; None for an object made during training.
        attributes: Whether its attributes are its parts, whatever its class.
    """
    if isinstance(holder, Structure):
        shape, (keys, values) = holder.shape, holder.read()
    elif type(thing) in (list, tuple, deque):
        shape, keys, values = ORDERED, [], [*thing]
    elif isinstance(thing, dict):
        shape, keys, values = KEYED, [*dict.keys(thing)], [*dict.values(thing)]
    elif attributes or all(b is object or is_users_class(b) for b in type(thing).__mro__):
        fields = fields_of(thing)
        shape, keys, values = NAMED, [*fields], [*fields.values()]
    else:
        return None
    if shape == ORDERED and (len(values) > _MOST_ELEMENTS or isinstance(thing, set | np.ndarray)):
        return None
    if shape == KEYED and not all(type(key) is str for key in keys):
        return None
    return Parts(shape, _by_key(shape, keys, values))


def _by_key(shape: str, keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    return dict(enumerate(values)) if shape == ORDERED else dict(zip(keys, values, strict=True))


def _copied(thing: Any) -> Any:
    """Return a copy of a container or an array, which is encoded by content instead of by reference."""
    return copy.copy(thing) if type(thing) in _MUTABLE else thing


def _token(array: Any) -> Any:
    return Array(array, "").token()


def _plain(node: Json, shared: dict[str, Json]) -> Json:
    """Return an encoded value with references replaced by objects, and all sequences of one kind.

    Args:
        node: The value.
        shared: Objects that references refer to, by their ids; filled by this function.
    """
    if isinstance(node, list):
        return [_plain(each, shared) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get(TAG) == "same":
        return shared[node["as"]]
    own = node.get("id")
    if own is not None:
        shared[own] = {TAG: "again"}
    if node.get(TAG) in _SEQUENCES and "v" in node:
        found: Json = {"sequence": _plain(node["v"], shared)}
    else:
        found = {key: _plain(each, shared) for key, each in node.items() if key != "id"}
    if own is not None:
        shared[own] = found
    return found
