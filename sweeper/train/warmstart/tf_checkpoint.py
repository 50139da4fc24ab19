"""Reader of object-based TensorFlow checkpoints of Keras 3, Keras 2, Estimators or user code.

A checkpoint stores each variable once, under one of the paths to it, which may lead through the optimizer
(``optimizer/_trainable_variables/3``). So keys are not used as names. Like TensorFlow's own restore, the
reader walks the model and the checkpoint's object graph together, by names of attributes. Keras 3's names
differ from those of Keras 2 and Estimators (``_kernel`` and ``kernel``, ``_operations/2`` and
``layer-2``); the walk accepts both.

The walk also covers layers in lists and dictionaries of the model, which Keras 2 tracked for TensorFlow
and Keras 3 does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.models.functional import Functional

from sweeper.checkpoint.tensors import Array
from sweeper.errors import WarmStartError
from sweeper.inspection import keras_names
from sweeper.inspection.sorts import is_variable
from sweeper.spec.warm_start import WarmStart
from sweeper.train.warmstart.source import Candidate, Matched, Stored, variables_of, with_extra

_VALUE = "VARIABLE_VALUE"

_NOT_OF_THE_MODEL = frozenset().union(
    keras_names.CONNECTIONS,
    keras_names.REBUILT - {"_functional"},
    {keras_names.OPTIMIZER},
    keras_names.COMPILED,
    keras_names.LISTS,
    keras_names.IN_TF_CHECKPOINTS,
)
"""Edges of Keras's bookkeeping, such as positions in its lists, which may differ between versions."""


@dataclass(frozen=True, slots=True)
class Node:
    """An object in a checkpoint: its children by name, and the key of its value, if any."""

    children: Mapping[str, int]
    key: str | None


@dataclass(frozen=True)
class ObjectGraph:
    """The objects in a checkpoint; the first is the saved root."""

    nodes: tuple[Node, ...]

    @classmethod
    def parse(cls, content: bytes) -> ObjectGraph:
        """Parse the value of ``_CHECKPOINTABLE_OBJECT_GRAPH`` in a checkpoint."""
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
        """Return the object at ``path``, names with slashes, below ``start``; None if there is none."""
        node = start
        for name in filter(None, path.split("/")):
            found = self.child(node, name)
            if found is None:
                return None
            node = found
        return node

    def child(self, node: int, name: str) -> int | None:
        """Return the child ``name``, with or without a leading underscore, or None."""
        children = self.nodes[node].children
        other = name[1:] if name.startswith("_") else f"_{name}"
        return children.get(name, children.get(other))

    def values_below(self, node: int) -> dict[str, str]:
        """Return the paths of all values of a model below ``node``, by key."""
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
    """Result of a walk.

    Attributes:
        keys: Keys of variables, by id.
        paths: Paths of attributes to variables, by id.
        variables: All visited variables, by id.
    """

    keys: dict[int, str] = field(default_factory=dict)
    paths: dict[int, list[str]] = field(default_factory=dict)
    variables: dict[int, Any] = field(default_factory=dict)


def walk(graph: ObjectGraph, node: int, root: Any, rename: Mapping[str, str]) -> Walked:
    """Walk ``root`` and the objects below ``node`` together; the shortest path to a variable counts.

    Args:
        graph: Object graph of the checkpoint.
        node: Object in the graph that corresponds to ``root``.
        root: A model or an optimizer.
        rename: Paths in ``root`` to other paths below ``node``.
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
    """Yield an object's children, each with its possible names in a checkpoint."""
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
    """Yield the layers of a functional or sequential model with Keras 2's names."""
    weighted = 0
    for index, layer in enumerate(model.layers):
        names = [f"layer-{index}"]
        if layer.weights:
            names.insert(0, f"layer_with_weights-{weighted}")
            weighted += 1
        yield names, layer


def _names(name: str, child: Any) -> list[str]:
    """Return the child's attribute name, and for a variable also its Keras name."""
    called = getattr(child, "name", None)
    if is_variable(child) and isinstance(called, str) and "/" not in called:
        return [name, called.partition(":")[0]]
    return [name]


def _plain(path: str) -> str:
    """Return a path without leading underscores: ``head/kernel`` for ``head/_kernel``."""
    return "/".join(part.lstrip("_") for part in path.split("/"))


def _items(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, Mapping) else list(container)


def _leads_on(value: Any) -> bool:
    return (
        isinstance(value, keras.layers.Layer | list | tuple | Mapping)
        or is_variable(value)
        or hasattr(value, "_trackable_children")
    )


_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OPTIMIZERS = ("optimizer", "_optimizer", "opt")
_BESIDE = (*_OPTIMIZERS, "save_counter")
_DEEPEST = 2
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
"""Errors that TensorFlow raises for a damaged file."""
_IN_A_LIST = (
    "not in it: Keras 3 does not track layers in lists and dictionaries for TensorFlow; save "
    "such a model with save_weights"
)


class TensorFlowCheckpoint:
    """A checkpoint with the prefix ``prefix``.

    Raises:
        WarmStartError: It is damaged, or not an object-based checkpoint.
    """

    kind = "TensorFlow checkpoint"

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            self._shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
            graph = self._reader.get_tensor(_GRAPH) if _GRAPH in self._shapes else None
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        if graph is None:
            some = ", ".join(sorted(self._shapes)[:3]) or "no values"
            msg = (
                f"the warm start {prefix} is a TensorFlow 1 checkpoint, which stores values by "
                f"the names of graph variables ({some}); expected an object-based one: load it "
                "into a model with TensorFlow 1's API, and write that with tf.train.Checkpoint "
                "or save_weights"
            )
            raise WarmStartError(msg)
        self._graph = ObjectGraph.parse(graph)
        self._root = 0

    def _damaged(self, error: Exception) -> WarmStartError:
        first = str(error).strip().partition("\n")[0]
        msg = (
            f"the warm start {self._prefix} cannot be read as a TensorFlow checkpoint ({first}); it "
            "may have been cut off, or one of its files is missing: copy it again"
        )
        return WarmStartError(msg)

    def match(self, model: Any, options: WarmStart) -> Matched:
        self._root = self._root_of(model, options)
        walked = walk(self._graph, self._root, model, options.rename)
        listed = variables_of(model)
        known = {id(v) for v in model.variables}
        # A tf.Variable of the user's is in the checkpoint, but not in Keras's list.
        own = [v for i, v in walked.variables.items() if i not in known and i in walked.keys]
        candidates = []
        for variable in [*listed, *own]:
            key = walked.keys.get(id(variable))
            paths = walked.paths.get(id(variable), [])
            reason = "" if key or not paths else self._in_a_list(paths[0])
            name = getattr(variable, "path", None) or variable.name
            candidates.append(Candidate(variable, name, key, tuple(paths), reason))
        return self._matched(candidates, self._root)

    def _matched(self, candidates: Iterable[Candidate], node: int) -> Matched:
        below = self._graph.values_below(node)
        shown = {key: key.removesuffix(_SUFFIX) for key in self._shapes}
        return with_extra(candidates, below, {**shown, **below})

    def _in_a_list(self, path: str) -> str:
        """Return the reason if a variable is missing because the checkpoint lacks a list."""
        parts = path.split("/")
        for index, part in enumerate(parts):
            before = "/".join(parts[: index - 1])
            if part.isdigit() and index and self._graph.at(before, self._root) is not None:
                there = self._graph.at("/".join(parts[:index]), self._root)
                if there is None and not parts[index - 1].startswith("_"):
                    return _IN_A_LIST
        return ""

    def _root_of(self, model: Any, options: WarmStart) -> int:
        """Return the object in the checkpoint that corresponds to the model.

        Raises:
            WarmStartError: `WarmStart.root` does not exist, or several objects fit.
        """
        if options.root is not None:
            node = self._graph.at(options.root)
            if node is None:
                names = ", ".join(sorted(self._graph.nodes[0].children)) or "nothing"
                msg = f"the warm start {self._prefix} has no {options.root!r}; it has {names}"
                raise WarmStartError(msg)
            return node
        wanted = {id(v): v for v in variables_of(model)}
        best: dict[frozenset[str], tuple[int, str]] = {}
        most = 0
        for node, path in self._objects_to_try():
            keys = self._fitting(walk(self._graph, node, model, options.rename), wanted)
            if not keys or len(keys) < most:
                continue
            if len(keys) > most:
                best, most = {}, len(keys)
            best.setdefault(keys, (node, path))
        if len(best) > 1:
            names = " or ".join(f"root={path!r}" for _, path in best.values())
            msg = (
                f"the warm start {self._prefix} has {len(best)} objects that fit the model "
                f"{model.name!r} equally; choose one: {names}"
            )
            raise WarmStartError(msg)
        return next(iter(best.values()))[0] if best else 0

    def _objects_to_try(self) -> Iterator[tuple[int, str]]:
        """Yield the outer objects of the graph, as which a model may have been saved."""
        seen, waiting = {0}, [(0, "", 0)]
        for node, path, depth in waiting:
            yield node, path
            for name, child in sorted(self._graph.nodes[node].children.items()):
                if depth < _DEEPEST and child not in seen and name not in _BESIDE:
                    seen.add(child)
                    waiting.append((child, f"{path}/{name}" if path else name, depth + 1))

    def _fitting(self, walked: Walked, wanted: dict[int, Any]) -> frozenset[str]:
        return frozenset(
            key
            for i, key in walked.keys.items()
            if i in wanted and tuple(wanted[i].shape) == self.stored(key).shape
        )

    def match_optimizer(self, optimizer: Any) -> Matched:
        nodes = (self._graph.child(at, name) for at in (0, self._root) for name in _OPTIMIZERS)
        node = next((found for found in nodes if found is not None), None)
        if node is None:
            msg = f"the warm start {self._prefix} has no optimizer state"
            raise WarmStartError(msg)
        if self._graph.child(node, "_variables") is None:
            msg = (
                f"the optimizer state in the warm start {self._prefix} does not have Keras 3's "
                "format; leave it out (optimizer=False)"
            )
            raise WarmStartError(msg)
        walked = walk(self._graph, node, optimizer, {})
        candidates = (
            Candidate(v, v.path, walked.keys.get(id(v)), tuple(walked.paths.get(id(v), ())))
            for v in optimizer.variables
        )
        return self._matched(candidates, node)

    def stored(self, key: str) -> Stored:
        return Stored(tuple(self._shapes[key]), tf.as_dtype(self._dtypes[key]).name)

    def read(self, key: str) -> Array:
        try:
            value: Array = np.asarray(self._reader.get_tensor(key))
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        return value

    def close(self) -> None:
        self._shapes = {}
