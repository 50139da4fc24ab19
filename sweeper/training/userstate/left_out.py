"""Fingerprints of what training changes in callbacks that keep their state by get_state and set_state.

Nobody walks such a callback: its own methods say what a checkpoint has to hold. What they leave out is
lost on resume, and nothing in a checkpoint would tell. So its attributes are walked for themselves, and a
checkpoint has a fingerprint of each that has changed: to be compared with a replay's, never restored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash

from sweeper.checkpoints.values import relocated
from sweeper.inspection.object_paths import ObjectPath
from sweeper.training.encoding import TAG, Json, NotPlainError, Tensors
from sweeper.training.encoding.leaves import MISSING, same
from sweeper.training.userstate.codec import UserEncoder, path_in
from sweeper.training.userstate.holders.objects import KEYED, NAMED, Holder, Structure
from sweeper.training.userstate.holders.positions import Cache, IteratorState
from sweeper.training.userstate.traversal.roots import Roots
from sweeper.training.userstate.traversal.walk import Walk

_SHORT = 40
_SEQUENCES = ("list", "deque", "set", "tuple", "frozenset")
"""Kinds that a callback's methods often turn into one another, without effect."""


class _Comparing(UserEncoder):
    """Encoder of what is compared and never restored: each set may be written."""

    def _way_to_fill(self, thing: Any, members: list[Any], path: str) -> bool:
        del thing, members, path
        return False


class LeftOut:
    """What callbacks with a get_state of their own hold, watched beside the walk of all else.

    Args:
        walk: The walk of everything else, which knows these callbacks and looks into none of them.
        roots: What the training was given.
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

    def fingerprints(self) -> Json:
        """Return the name and fingerprint of each attribute and key that is not as training began."""
        return [
            [name, text]
            for holder in self._walk.holders
            if not isinstance(holder, Cache | IteratorState) and holder.changed()
            for name, text in self._of(holder)
        ]

    def _of(self, holder: Holder) -> Iterator[tuple[str, str]]:
        if not isinstance(holder, Structure) or not _is_by_name(holder):
            text = self._fingerprint(lambda encoder: encoder.holder(holder))
            if text is not None:
                yield holder.path, text
            return
        began = dict(zip(holder.keys, holder.values, strict=True))
        now = dict(zip(*holder.read(), strict=True))
        keyed = holder.shape == KEYED
        values = {
            f"{holder.path}[{name!r}]" if keyed else path_in(holder, name): now.get(name, MISSING)
            for name in dict.fromkeys([*began, *now])
            if not same(began.get(name, MISSING), now.get(name, MISSING))
        }
        if keyed and [*began] != [*now]:
            values[f"{holder.path}.keys()"] = [*now]
        for path, value in values.items():
            text = "missing" if value is MISSING else self._fingerprint_of(path, value)
            if text is not None:
                yield path, text

    def _fingerprint_of(self, path: str, value: object) -> str | None:
        plain = value.item() if isinstance(value, np.generic) else value
        return self._fingerprint(lambda encoder: encoder.encode(plain, path))

    def _fingerprint(self, write: Callable[[UserEncoder], Json]) -> str | None:
        """Return a short value as text, another's digest, and None for what has no plain form."""
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
            # An open file, a thread, a compiled function: nobody could put it back, or compare it.
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


def _is_by_name(holder: Structure) -> bool:
    """Return whether each value has a name: an attribute, or a dictionary's key that is a string."""
    if holder.shape != KEYED:
        return holder.shape == NAMED
    return all(type(key) is str for key in (*holder.keys, *holder.read()[0]))


def _plain(node: Json, shared: dict[str, Json]) -> Json:
    """Return an encoded value with each shared object where it is held, and sequences of one kind.

    Args:
        node: The value.
        shared: What the objects that others refer to are, by their ids; it is filled on the way.
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
