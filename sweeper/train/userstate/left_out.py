"""Fingerprints of changed attributes of callbacks with their own ``get_state`` and ``set_state``.

Such a callback's state is the result of its ``get_state``. State that this leaves out is lost on resume
without an error. So each checkpoint has fingerprints of all values that the callback reaches and training
has changed. They are found by a new walk each time, because a ``set_state`` creates new objects where
training changes objects in place; both have the same paths. Fingerprints are compared with those of a
replay, never restored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoint.format import relocated
from sweeper.inspection.sorts import class_name
from sweeper.inspection.walk import ObjectPath
from sweeper.train.codec import Json, NotPlainError, Tensors, encode, is_plain
from sweeper.train.userstate.codec import path_in
from sweeper.train.userstate.holders import KEYED, NAMED, Holder, SetItems, Structure, Value
from sweeper.train.userstate.walk import Roots, Walk

_ATTRIBUTE = re.compile(r": attribute '(\w+)'$")
_SHORT = 40
_MOST_ELEMENTS = 64
"""Maximum length of a list whose elements have their own fingerprints."""


class LeftOut:
    """Attributes of callbacks with their own ``get_state``, which the ``walk`` from ``roots`` does not enter."""

    def __init__(self, walk: Walk, roots: Roots, covered: Callable[[], frozenset[int]]) -> None:
        own = [walk.nodes.get(id(callback)) for callback in roots.keeping_own_state()]
        self._own = [node for node in own if node is not None]
        self._others, self._roots, self._covered = walk, roots, covered
        self._began = self._fingerprints()

    def fingerprints(self) -> Json:
        """Return the name and fingerprint of each attribute, key and element that training changed."""
        now = self._fingerprints()
        return [
            [name, now.get(name, "missing")]
            for name in dict.fromkeys([*self._began, *now])
            if self._began.get(name) != now.get(name)
        ]

    def _fingerprints(self) -> dict[str, str]:
        return {} if not self._own else dict(self._all())

    def _all(self) -> Iterator[tuple[str, str]]:
        own = {id(node.obj) for node in self._own}
        exempt = self._roots.ids_of_output() | (frozenset(self._others.nodes) - own)
        walk = Walk(self._covered(), exempt)
        walk.visit([(ObjectPath(node.path), node.obj) for node in self._own])
        for module in walk.modules.values():
            watched = self._others.modules.get(module.path)
            for name in () if watched is None else watched.names:
                module.names.pop(name, None)
        for holder in walk.holders:
            yield from self._of(holder)

    def _of(self, holder: Holder) -> Iterator[tuple[str, str]]:
        path = holder.path
        if isinstance(holder, Value):
            tensors: Tensors = {}
            try:
                yield path, self._text(holder.capture(tensors, path), tensors)
            except NotPlainError:
                # An open file, an iterator: it can be neither restored nor compared.
                return
        elif isinstance(holder, Structure):
            keys, values = holder.read()
            if isinstance(holder, SetItems):
                yield path, self._text(sorted(map(self._leaf, values)))
            elif holder.shape == NAMED:
                for name, value in zip(keys, values, strict=True):
                    yield from self._part(path_in(holder, name), value)
            elif holder.shape == KEYED and all(type(key) is str for key in keys):
                yield f"{path}.keys()", self._text(keys)
                for key, value in zip(keys, values, strict=True):
                    yield from self._part(f"{path}[{key!r}]", value)
            elif holder.shape == KEYED or len(values) > _MOST_ELEMENTS:
                yield path, self._text([*map(self._leaf, keys), *map(self._leaf, values)])
            else:
                yield from self._items(path, values)

    def _items(self, path: str, values: Any) -> Iterator[tuple[str, str]]:
        for index, value in enumerate(values):
            yield from self._part(f"{path}[{index}]", value)

    def _part(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yield the fingerprint of a value without a holder; of another object only its kind."""
        yield path, "list" if type(value) is tuple else self._leaf(value)
        if isinstance(value, tuple):
            inner = _ATTRIBUTE.sub(r".\1", path)
            yield from self._items(inner, tuple.__iter__(value))

    def _leaf(self, value: Any) -> str:
        node = self._others.nodes.get(id(value))
        if node is not None:
            return node.path
        if isinstance(value, tuple | frozenset):
            return self._text([*map(self._leaf, value)])
        if not is_plain(value):
            return "list" if isinstance(value, list) else class_name(type(value))
        tensors: Tensors = {}
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            return self._text(encode(plain, "", tensors), tensors)
        except NotPlainError:
            return class_name(type(value))

    def _text(self, node: Json, tensors: Tensors | None = None) -> str:
        """Return a short value as text, and the digest of another value."""
        plain = relocated(node, self._roots.directory, "…")
        if isinstance(plain, dict) and isinstance(plain.get("v"), str):
            plain = plain["v"]
        text = json.dumps(plain, sort_keys=True)
        if not isinstance(plain, list | dict) and len(text) <= _SHORT:
            return text
        digest = xxhash.xxh3_64(text.encode())
        for name in sorted(tensors or {}):
            array = np.asarray((tensors or {})[name])
            digest.update(f"{array.dtype} {array.shape}".encode())
            text = repr(array.tolist()) if array.dtype == object else ""
            digest.update(text.encode() or array.tobytes())
        return f"digest {digest.hexdigest()}"
