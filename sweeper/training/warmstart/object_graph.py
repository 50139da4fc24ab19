"""The graph of objects in a TensorFlow checkpoint, walked together with a model's.

A checkpoint files each variable once, under one of the ways that lead to it, and that way may go
through the optimizer (``optimizer/_trainable_variables/3``). So names are not read off its keys:
like TensorFlow's own restore, this walks the model and the graph in it side by side, by the names of
attributes. Keras 3's names differ from Keras 2's and an Estimator's (``_kernel`` and ``kernel``,
``_operations/2`` and ``layer-2``); the walk takes either.

What TensorFlow leaves out is walked on the model's side all the same: layers in lists and
dictionaries, which Keras 3 does not show it, and Keras 2 did.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import keras
from keras.src.models.functional import Functional

from sweeper.inspection import keras_names
from sweeper.inspection.sorts import is_variable

_VALUE = "VARIABLE_VALUE"

_NOT_OF_THE_MODEL = frozenset().union(
    keras_names.CONNECTIONS,
    keras_names.REBUILT - {"_functional"},
    {keras_names.OPTIMIZER},
    keras_names.COMPILED,
    keras_names.LISTS,
    keras_names.IN_TF_CHECKPOINTS,
)
"""Edges of Keras's bookkeeping: positions in its lists say less than names, and may be others."""


@dataclass(frozen=True, slots=True)
class Node:
    """An object in a checkpoint: its children by name, and the key of its value if it has one."""

    children: Mapping[str, int]
    key: str | None


@dataclass(frozen=True)
class ObjectGraph:
    """The objects in a checkpoint; the first is what was saved."""

    nodes: tuple[Node, ...]

    @classmethod
    def parse(cls, content: bytes) -> ObjectGraph:
        """Read what a checkpoint holds under ``_CHECKPOINTABLE_OBJECT_GRAPH``."""
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        graph = TrackableObjectGraph()
        graph.ParseFromString(content)
        return cls(
            tuple(
                Node(
                    {child.local_name: child.node_id for child in node.children},
                    next((a.checkpoint_key for a in node.attributes if a.name == _VALUE), None),
                )
                for node in graph.nodes
            )
        )

    def at(self, path: str, start: int = 0) -> int | None:
        """The object at ``path``, names with slashes, from ``start`` on; None if there is none."""
        node = start
        for name in filter(None, path.split("/")):
            found = self.child(node, name)
            if found is None:
                return None
            node = found
        return node

    def child(self, node: int, name: str) -> int | None:
        """The child called ``name``, with or without an underscore before it."""
        children = self.nodes[node].children
        return next((children[n] for n in _spellings(name) if n in children), None)

    def values_below(self, node: int) -> dict[str, str]:
        """The keys of all values of a model's below ``node``, with a path to each."""
        found: dict[str, str] = {}
        seen, waiting = {node}, [(node, "")]
        for each, path in waiting:
            at = self.nodes[each]
            if at.key is not None:
                found.setdefault(at.key, path)
            for name, child in sorted(at.children.items()):
                if child not in seen and name not in _NOT_OF_THE_MODEL:
                    seen.add(child)
                    waiting.append((child, f"{path}/{name}" if path else name))
        return found


@dataclass
class Walked:
    """What a walk found.

    Attributes:
        keys: The key of each variable, by the variable's ``id``.
        paths: The attributes that lead to each variable, by its ``id``.
        variables: All variables that were come by.
    """

    keys: dict[int, str] = field(default_factory=dict)
    paths: dict[int, list[str]] = field(default_factory=dict)
    variables: dict[int, Any] = field(default_factory=dict)


def walk(graph: ObjectGraph, node: int, root: Any, rename: Mapping[str, str]) -> Walked:
    """Walk ``root`` and the objects below ``node`` side by side; of several ways the shortest counts.

    Args:
        graph: The checkpoint's.
        node: What ``root`` was when it was saved.
        root: A model, or an optimizer.
        rename: Paths in ``root`` whose objects are elsewhere in the graph, from ``node`` on.
    """
    found = Walked()
    paths = {_plain(old): new for old, new in rename.items()}
    order = count()
    waiting: list[tuple[int, int, str, Any, int | None]] = [(0, next(order), "", root, node)]
    seen: set[tuple[int, int | None]] = set()
    while waiting:
        length, _, path, thing, at = heapq.heappop(waiting)
        if (id(thing), at) in seen:
            continue
        seen.add((id(thing), at))
        if is_variable(thing):
            found.variables[id(thing)] = thing
            known = found.paths.setdefault(id(thing), [])
            if path not in known:
                known.append(path)
            key = None if at is None else graph.nodes[at].key
            if key is not None:
                found.keys.setdefault(id(thing), key)
            continue
        for names, child in _children(thing):
            where = f"{path}/{names[0]}" if path else names[0]
            other = paths.get(_plain(where))
            if other is not None:
                beside = graph.at(other, node)
            elif at is None:
                beside = None
            else:
                beside = next((c for n in names if (c := graph.child(at, n)) is not None), None)
            heapq.heappush(waiting, (length + 1, next(order), where, child, beside))
    return found


def _children(thing: Any) -> Iterator[tuple[list[str], Any]]:
    """What an object leads to, each with the names under which a checkpoint may have it."""
    if isinstance(thing, Mapping):
        yield from (([str(key)], value) for key, value in thing.items() if _leads_on(value))
        return
    if isinstance(thing, list | tuple):
        yield from (([str(i)], value) for i, value in enumerate(thing) if _leads_on(value))
        return
    if isinstance(thing, keras.Sequential | Functional):
        yield from _layers_by_position(thing)
    yielded = set()
    if hasattr(thing, "_trackable_children"):
        for name, child in thing._trackable_children().items():
            if name not in _NOT_OF_THE_MODEL:
                yielded.add(name)
                yield _names(name, child), child
    if isinstance(thing, keras.layers.Layer):
        for name, child in sorted(vars(thing).items()):
            held = isinstance(child, list | tuple | Mapping) and any(map(_leads_on, _items(child)))
            if held and name not in yielded and name not in _NOT_OF_THE_MODEL and name != "_layers":
                yield [name], child


def _layers_by_position(model: Any) -> Iterator[tuple[list[str], Any]]:
    """The layers of a model without attributes of its own, as Keras 2 counted them."""
    weighted = 0
    for index, layer in enumerate(model.layers):
        names = [f"layer-{index}"]
        if layer.weights:
            names.insert(0, f"layer_with_weights-{weighted}")
            weighted += 1
        yield names, layer


def _names(name: str, child: Any) -> list[str]:
    """The child's own name, and for a variable what Keras calls it."""
    called = getattr(child, "name", None)
    if is_variable(child) and isinstance(called, str) and "/" not in called:
        return [name, called.partition(":")[0]]
    return [name]


def _spellings(name: str) -> tuple[str, str]:
    return name, name[1:] if name.startswith("_") else f"_{name}"


def _plain(path: str) -> str:
    """A path as a person writes it: ``head/kernel`` for ``head/_kernel``."""
    return "/".join(part.lstrip("_") for part in path.split("/"))


def _items(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, Mapping) else list(container)


def _leads_on(value: Any) -> bool:
    return (
        isinstance(value, keras.layers.Layer | list | tuple | Mapping)
        or is_variable(value)
        or hasattr(value, "_trackable_children")
    )
