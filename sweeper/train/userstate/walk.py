"""Walk from the factories' results to every object that can have state, each once.

`sweeper.inspection.walk` yields the objects that an object leads to; this module gives each its path and
its holder. The order is that in which the user's code set attributes. It is the same in every process,
and so are the paths, by which captured state is restored.
"""

import asyncio
import concurrent.futures
import functools
import io
import multiprocessing.process
import os
import socket
import subprocess
import threading
import types
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from sweeper.inspection import keras_names
from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    is_users_class,
    is_users_module,
    may_have_fields,
    module_of,
    sort_of,
)
from sweeper.inspection.walk import (
    BOOKKEEPING,
    MOST,
    Edge,
    How,
    ObjectPath,
    UsedVariable,
    assigned_by_keras,
    assigned_by_user,
    cached_values,
    edges_of,
    variables_used,
    walk,
)
from sweeper.train.codec import UnplaceableError, is_json_leaf, owner_of, seeds_of
from sweeper.train.userstate.files import AppendedFile, WrittenFile, mode_of
from sweeper.train.userstate.holders import (
    Array,
    Attributes,
    Cache,
    Cell,
    ClassAttributes,
    DictItems,
    Generator,
    Holder,
    ListItems,
    MappingVariables,
    Variable,
)
from sweeper.train.userstate.refused import (
    BUFFER,
    READER,
    SET,
    Kind,
    Uncaptured,
    hides_state,
    is_buffer,
    is_output,
    kind_of,
    opaque,
)


@dataclass(frozen=True, slots=True)
class EarlierTraining:
    """An earlier training of the same model in this process and in the same directory.

    Attributes:
        created: Objects that it has created, by identity: a new process does not have them when it starts.
        continued: Whether it ended at the checkpoint from which this training continues.
    """

    created: Mapping[int, Any]
    continued: bool


@dataclass(frozen=True)
class Roots:
    """Objects that a training was given.

    Attributes:
        model: The compiled model.
        callbacks: The user's callbacks, in order.
        step: The training step that replaces the model's own, if any.
        tracked: Objects that the user registered, by name.
        data: Objects or functions of data, by ``train`` and ``validation``; no arrays, which training
            copies.
        shown: Names of the data for errors, by use.
        read_ahead: The uses of ``data`` that threads read ahead of the training.
        written: Variables that reading the data ahead writes, by use and identity.
        exempt: Objects with their own methods for their state.
        output: Objects that only write; may grow. None if there is no trial that could exempt one.
        directory: Directory of the trial, which differs between attempts and replays.
        earlier: The earlier training of these objects in this process, if there was one.
    """

    model: keras.Model
    callbacks: Sequence[keras.callbacks.Callback] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    read_ahead: frozenset[str] = frozenset()
    written: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    exempt: Sequence[Any] = ()
    output: Sequence[Any] | None = None
    directory: str = ""
    step: Any = None
    tracked: Mapping[str, Any] = field(default_factory=dict)
    earlier: EarlierTraining | None = None

    def ids_exempt(self) -> frozenset[int]:
        """Return the ids of all objects that the walk does not enter."""
        return frozenset(map(id, (*self.exempt, *(self.output or ()))))

    def ids_of_output(self) -> frozenset[int]:
        return frozenset(map(id, self.output or ()))

    def given(self) -> list[tuple[ObjectPath, Any]]:
        """Return all roots, without data that are read ahead of the training."""
        counts = Counter(type(callback).__qualname__ for callback in self.callbacks)
        entries: list[tuple[ObjectPath, Any]] = []
        for index, callback in enumerate(self.callbacks):
            name = type(callback).__qualname__
            label = f"callback {name}" if counts[name] == 1 else f"callback {name} [{index}]"
            entries.append((ObjectPath(label), callback))
        entries.append((ObjectPath("model"), self.model))
        if self.step is not None:
            entries.append((ObjectPath("step"), self.step))
        entries += [(ObjectPath(f"tracked {n!r}"), obj) for n, obj in self.tracked.items()]
        entries.append((ObjectPath("os.environ"), os.environ))
        for use, roots in self.by_use().items():
            entries += [] if use in self.read_ahead else roots
        return entries

    def by_use(self) -> dict[str, list[tuple[ObjectPath, Any]]]:
        roots: dict[str, list[tuple[ObjectPath, Any]]] = {"train": [], "validation": []}
        for use, data in self.data.items():
            roots[use].append((ObjectPath(self.shown.get(use, use)), data))
        return roots


_GENERATOR_STATE: type = dataset_ops.DatasetV2._GeneratorState

_CLOSED: tuple[type, ...] = (
    *(asyncio.Future, asyncio.AbstractEventLoop, concurrent.futures.Executor),
    *(concurrent.futures.Future, multiprocessing.process.BaseProcess, socket.socket),
    *(subprocess.Popen, threading.Thread, threading.Condition, threading.Barrier),
    types.ModuleType,
    *(tf.Graph, tf.distribute.Strategy, tf.io.TFRecordWriter),
)
"""Classes of objects that cannot be saved and rarely change: compared by identity alone."""

_OPENED = frozenset({"numpy", "scipy", "threading"})
"""Libraries whose objects, if written in Python, have all their state in attributes."""

_OF_TENSORFLOW = frozenset({"keras", "ml_dtypes", "sweeper", "tensorflow"})
"""Libraries whose objects written in C are handled by their sorts alone."""

_WITHOUT_STATE = frozenset({"grain"})
"""Libraries whose objects have no position of reading; their iterators have it."""


_UNNAMED = (tuple, frozenset, types.MethodType)
"""Classes of objects that are compared by their parts, and have no separate path."""


class Treatment(NamedTuple):
    """Holder of an object's state, if it has any, its edges, and the module variables that its code uses."""

    holder: Holder | None = None
    edges: Iterable[Edge] = ()
    variables: Sequence[UsedVariable] = ()


Treat = Callable[[Any, ObjectPath], Treatment]


class OwnAttributes:
    """Attributes of an object whose items or content have their own holder."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner


def treatment_of(obj: Any, path: ObjectPath) -> Treatment | None:
    """Return how the walk treats ``obj``; None for a leaf."""
    if is_json_leaf(obj) or isinstance(obj, tf.Tensor):
        return None
    cls = type(obj)
    treat = _treats_by_class.get(cls)
    if treat is None:
        treat = _treats_by_class[cls] = _choose(obj, cls)
    return treat(obj, path)


_treats_by_class: dict[type, Treat] = {}


def _choose(obj: Any, cls: type) -> Treat:
    sort = sort_of(obj)
    if sort is Sort.ARRAY:
        return _array
    if is_output(obj):
        return _opaque
    refused = kind_of(obj)
    if refused is not None:
        return functools.partial(_file if issubclass(cls, io.IOBase) else _refused, refused)
    for kinds, treat in _BY_CLASS:
        if isinstance(obj, kinds):
            return treat
    return _BY_SORT.get(sort) or _of_attributes(sort, cls)


def _of_attributes(sort: Sort, cls: type) -> Treat:
    root = module_of(cls).partition(".")[0]
    in_c = root == "pandas" or hides_state(cls)
    if sort is Sort.ITERATOR and in_c and not is_users_class(cls):
        return functools.partial(_refused, READER)
    if root == "pandas":
        return _foreign
    if root in _WITHOUT_STATE and sort is not Sort.ITERATOR:
        return _walked_through
    if hides_state(cls) and root not in _OF_TENSORFLOW:
        return _foreign
    if sort in (Sort.OBJECT, Sort.ITERATOR) or root in _OPENED:
        return _object
    return _opaque


def _opaque(obj: Any, path: ObjectPath) -> Treatment:
    del obj, path
    return Treatment()


def _array(obj: Any, path: ObjectPath) -> Treatment:
    refused = kind_of(obj)
    if refused is not None:
        return _refused(refused, obj, path)
    base = owner_of(obj)
    return Treatment(Array(obj, path.text), (Edge(path, base),) if base is not obj else ())


def _object(obj: Any, path: ObjectPath) -> Treatment:
    prefixes = keras_names.TRACKING_PREFIXES if isinstance(obj, tf.Module) else ()
    ignored = frozenset(name for name in fields_of(obj) if name.startswith(prefixes))
    edges = (e for e in edges_of(obj, Sort.OBJECT, path) if e.name not in ignored)
    return Treatment(Attributes(obj, path.text, ignored), (*edges, *users_classes(type(obj))))


def _walked_through(obj: Any, path: ObjectPath) -> Treatment:
    edges = [Edge(path.attribute(name), value) for name, value in fields_of(obj).items()]
    return Treatment(None, tuple(edges))


def _dataset_generator(obj: Any, path: ObjectPath) -> Treatment:
    """Return TensorFlow's record of a generator, with the user's functions in it."""
    return Treatment(None, tuple(Edge(path, v) for v in fields_of(obj).values() if callable(v)))


def _tf_function(obj: Any, path: ObjectPath) -> Treatment:
    """Return a ``tf.function``, with its Python function."""
    python = getattr(obj, "python_function", None)
    return Treatment(None, () if python is None else (Edge(path, python),))


def _generator(obj: Any, path: ObjectPath) -> Treatment:
    seeds = seeds_of(obj)
    edges = () if seeds is None else (Edge(path.attribute("seed_seq"), seeds),)
    return Treatment(Generator(obj, path.text), edges)


def _of_builtin(function: Any, path: ObjectPath) -> Treatment:
    """Return a function written in C, with the object that it is bound to, such as the list of a ``list.append``."""
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType | type):
        return Treatment()
    return Treatment(None, (Edge(path.owner(type(owner).__name__), owner),))


def _refused(kind: Kind, obj: Any, path: ObjectPath) -> Treatment:
    edges = edges_of(obj, sort_of(obj), path) if kind.entered else ()
    return Treatment(Uncaptured(obj, path.text, kind), edges)


def _file(kind: Kind, obj: Any, path: ObjectPath) -> Treatment:
    mode = mode_of(obj)
    if mode is None:
        return _refused(kind, obj, path)
    return Treatment((WrittenFile if mode == "write" else AppendedFile)(obj, path.text))


def _foreign(obj: Any, path: ObjectPath) -> Treatment:
    """Return an object with state in C."""
    edges: list[Edge] = []
    if may_have_fields(type(obj)):
        edges.append(Edge(path.noted("the attributes"), OwnAttributes(obj)))
        edges += users_classes(type(obj))
    if is_buffer(obj):
        return Treatment(Uncaptured(obj, path.text, BUFFER), tuple(edges))
    return Treatment(Uncaptured(obj, path.text, opaque(obj)), tuple(edges))


HANDLES: Mapping[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.ProgbarLogger: ("progbar", "seen", "target"),
    keras.callbacks.CSVLogger: ("csv_file", "writer", "append", "append_header"),
    keras.callbacks.TensorBoard: (
        "_batch_trace_context",
        "_is_tracing",
        "_prev_summary_state",
        "_profiler_started",
        "_should_write_train_graph",
        "_summary_module",
        "_writers",
    ),
}
"""Attributes of Keras's own callbacks that are no state: open files and the like, which ``on_train_begin`` makes."""


def _keras_object(sort: Sort) -> Treat:
    """Return the treatment of Keras objects of ``sort``."""

    def treat(obj: Any, path: ObjectPath) -> Treatment:
        cls: Any = type(obj)
        skipped = frozenset(name for base in cls.__mro__ for name in HANDLES.get(base, ()))
        by_keras = assigned_by_keras(cls)
        by_user = assigned_by_user(cls)
        edges = [edge for edge in edges_of(obj, sort, path) if edge.name not in skipped]

        def is_compared(edge: Edge) -> bool:
            # Of the fields that Keras assigns, plain values count, such as a rate; objects in the others are edges.
            if edge.how is not How.FIELD:
                return False
            users = edge.name not in by_keras or edge.name in by_user
            return users or is_json_leaf(edge.obj)

        compared = {edge.name for edge in edges if is_compared(edge)}
        # Keras's callbacks create some of their attributes during training.
        made_late = frozenset() if sort is Sort.CALLBACK else by_keras
        ignored = frozenset({*fields_of(obj), *made_late, *BOOKKEEPING, *skipped} - compared)
        holder = Attributes(obj, path.text, ignored)
        return Treatment(holder, (*edges, *users_classes(cls)))

    return treat


def users_classes(cls: type) -> Iterator[Edge]:
    """Yield the user's own classes among the bases of ``cls``, itself included."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if is_users_class(base):
            yield Edge(_path_of_class(base), base)


def _path_of_class(cls: type) -> ObjectPath:
    return ObjectPath(f"class {module_of(cls)}.{cls.__qualname__}")


def _class(obj: Any, path: ObjectPath) -> Treatment:
    del path
    if not is_users_class(obj):
        return Treatment()
    class_path = _path_of_class(obj)
    hidden = type.__dict__["__dict__"].__get__(obj)
    holder = ClassAttributes(obj, class_path.text)
    called = {name: hidden[name] for name in _CALLED if name in hidden}
    edges = [
        Edge(class_path.attribute(n), value) for n, value in {**called, **holder.fields()}.items()
    ]
    edges += (edge for edge in users_classes(obj) if edge.obj is not obj)
    return Treatment(holder, edges)


_CALLED = ("__call__", "__getitem__", "__iter__", "__next__", "__init__", "__len__")
"""Methods with underscores that Keras, TensorFlow or the user's code calls."""


def _function(obj: Any, path: ObjectPath) -> Treatment:
    users = is_users_module(obj.__module__ or "")
    function_path = ObjectPath(f"{obj.__module__}.{obj.__qualname__}") if users else path
    edges = tuple(edges_of(obj, Sort.FUNCTION, function_path))
    if obj.__module__ == "functools" or "_clear_cache" in obj.__dict__:
        # `functools.singledispatch` computes them from the registered functions.
        caches = [
            function_path.noted(f"closure variable {n!r}")
            for n in ("cache_token", "dispatch_cache")
        ]
        caches.append(function_path.attribute("_clear_cache"))
        edges = tuple(edge for edge in edges if edge.path not in caches)
    if users:
        variables = tuple(variables_used(obj))
        return Treatment(Attributes(obj, path.text), edges, variables)
    wrapped = getattr(obj, "__wrapped__", None)
    return Treatment(None, edges if wrapped is None else (*edges, Edge(path, wrapped)))


def _container(sort: Sort, kind: Callable[[Any, str], Holder], exact: tuple[type, ...]) -> Treat:
    """Return the treatment of containers; one of a user's class has attributes and code besides its items."""

    def treat(obj: Any, path: ObjectPath) -> Treatment:
        edges = [*edges_of(obj, sort, path)]
        if isinstance(obj, tuple | frozenset | types.MappingProxyType):
            return Treatment(None, edges)
        of_keras = module_of(type(obj)).partition(".")[0] == "keras"
        # A `defaultdict` has its factory in a slot.
        if type(obj) not in exact and may_have_fields(type(obj)) and not of_keras:
            edges.append(Edge(path.noted("the attributes"), OwnAttributes(obj)))
            edges += users_classes(type(obj))
        return Treatment(kind(obj, path.text), edges)

    return treat


def _with_edges(sort: Sort, kind: Callable[[Any, str], Holder] | None = None) -> Treat:
    """Return the treatment of objects of ``sort`` whose contents are their edges."""

    def treat(obj: Any, path: ObjectPath) -> Treatment:
        holder = None if kind is None else kind(obj, path.text)
        return Treatment(holder, edges_of(obj, sort, path))

    return treat


_BY_CLASS: tuple[tuple[Any, Treat], ...] = (
    (
        OwnAttributes,
        lambda obj, path: _walked_through(obj.owner, path)._replace(
            holder=Attributes(obj.owner, path.text)
        ),
    ),
    (_GENERATOR_STATE, _dataset_generator),
    (type(os.environ), lambda obj, path: Treatment(MappingVariables(obj, path.text, whole=True))),
    (tf.types.experimental.GenericFunction, _tf_function),
    (np.random.BitGenerator, _generator),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _of_builtin),
    (_CLOSED, _opaque),
)
"""Treatment by class; the first row counts."""

_BY_SORT: dict[Sort, Treat] = {
    Sort.CACHE: _with_edges(Sort.CACHE, Cache),
    Sort.CELL: _with_edges(Sort.CELL, Cell),
    Sort.CLASS: _class,
    Sort.DESCRIPTOR: _with_edges(Sort.DESCRIPTOR),
    Sort.DICT: _container(Sort.DICT, DictItems, (dict,)),
    Sort.FUNCTION: _function,
    Sort.LIST: _container(Sort.LIST, ListItems, (list, deque)),
    Sort.METHOD: _with_edges(Sort.METHOD),
    Sort.PARTIAL: _with_edges(Sort.PARTIAL),
    Sort.RANDOM: _generator,
    Sort.SEEDS: _with_edges(Sort.SEEDS),
    Sort.SET: _container(Sort.SET, lambda obj, path: Uncaptured(obj, path, SET), (set,)),
    Sort.TFDATA: _with_edges(Sort.TFDATA),
    Sort.VARIABLE: lambda obj, path: Treatment(Variable(obj, path.text)),
    Sort.WEAK: _with_edges(Sort.WEAK),
    Sort.WRAPPED: _with_edges(Sort.WRAPPED),
    **{sort: _keras_object(sort) for sort in OF_KERAS},
    Sort.DATASET: _object,
}
"""Treatment of other objects by sort."""


@dataclass(slots=True)
class Node:
    """An object that existed when training started, with a path that no other node has, and its holder."""

    obj: Any
    path: str
    holder: Holder | None


class Walk:
    """All reached objects, by identity and by path, without what is inside of the ``exempt``, given by id."""

    def __init__(self, covered: frozenset[int], exempt: frozenset[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.by_path: dict[str, Node] = {}
        self.cut = False
        self._covered = covered
        self._exempt = exempt
        self.modules: dict[str, MappingVariables] = {}

    @property
    def holders(self) -> list[Holder]:
        holders = [node.holder for node in self.nodes.values() if node.holder is not None]
        return [*holders, *self.modules.values()]

    def visit(
        self, roots: Iterable[tuple[ObjectPath, Any]], used: set[tuple[int, str]] | None = None
    ) -> set[int]:
        """Walk from ``roots``; return the ids of all objects that they lead to, new or not.

        ``used`` receives each module variable that reached code uses: the id of the module's holder, and a name.
        """
        reached: set[int] = set()

        def look(edge: Edge, _: int) -> Iterable[Edge] | None:
            key = id(edge.obj)
            reached.add(key)
            if key in self._exempt:
                self._add(edge, None)
                return None
            treatment = treatment_of(edge.obj, edge.path)
            if treatment is None:
                return None
            if key not in self.nodes and not isinstance(edge.obj, _UNNAMED):
                self._add(edge, treatment.holder)
            inside = list(treatment.edges)
            for variable in treatment.variables:
                holder = self._use(variable)
                reached.add(id(holder))
                if used is not None:
                    used.add((id(holder), variable.name))
                if variable.name in variable.variables:
                    where = ObjectPath(f"{holder.path}.{variable.name}")
                    inside.append(Edge(where, variable.variables[variable.name]))
            # Keras may have generated a layer's name, which then differs between processes.
            return [edge._replace(path=edge.path._replace(label="")) for edge in inside]

        self.cut |= walk([Edge(where, obj) for where, obj in roots], look, most=MOST)
        return reached

    def begin(self) -> None:
        """Record the current contents of all holders as the initial ones."""
        for holder in self.holders:
            holder.begin()

    def _add(self, edge: Edge, holder: Holder | None) -> None:
        path = edge.path.text
        count = 2
        while path in self.by_path:
            path = f"{edge.path.text} ({count})"
            count += 1
        if holder is not None:
            holder.path = path
        if isinstance(holder, Variable):
            holder.covered = id(holder.obj) in self._covered
        node = Node(edge.obj, path, holder)
        self.nodes[id(edge.obj)] = node
        self.by_path[path] = node

    def _use(self, variable: UsedVariable) -> MappingVariables:
        name = path = f"module {variable.variables.get('__name__', '__main__')}"
        count = 2
        while path in self.modules and self.modules[path].obj is not variable.variables:
            path = f"{name} ({count})"
            count += 1
        holder = self.modules.setdefault(path, MappingVariables(variable.variables, path))
        holder.names.setdefault(variable.name)
        return holder


class Watch:
    """Snapshot of ``obj``, which the user knows as ``label``, and of all that is reachable from it."""

    def __init__(self, label: str, obj: Any) -> None:
        self._walk = Walk(frozenset(), frozenset())
        self._walk.visit([(ObjectPath(label), obj)])
        self._walk.begin()

    def changed(self) -> list[str]:
        return [holder.path for holder in self._walk.holders if holder.changed()]


_GUARDED = frozenset({Sort.CALLBACK, Sort.LAYER, Sort.MODEL, Sort.OPTIMIZER})
"""Sorts of results that the guard refuses to the next trial, which would otherwise be hidden from it."""


@contextmanager
def changes_undone(
    factories: Iterable[tuple[str, Callable[..., Any]]], notify: Callable[[str], None]
) -> Iterator[None]:
    """Context manager for a trial that restores at its end what the factories' code reached at its start.

    That is everything of the study's modules, classes and closures, and the environment. A cache of
    `functools` that was empty is cleared, because training may have changed the results in it, unless
    the guard refuses them. ``notify`` is called about objects that cannot be restored.
    """
    walk = Walk(frozenset(), frozenset())
    walk.visit([(ObjectPath(name), factory) for name, factory in factories])
    walk.visit([(ObjectPath("os.environ"), os.environ)])
    walk.begin()
    caches = [holder for holder in walk.holders if isinstance(holder, Cache)]
    filled = {id(cache) for cache in caches if cache.obj.cache_info().currsize}
    try:
        yield
    finally:
        unrestored = list(_not_restored(walk, filled))
        if walk.cut:
            unrestored.append(f"objects beyond the first {MOST:,} that the study's code reaches")
        if unrestored:
            notify(
                f"this trial may have changed {', '.join(unrestored)}, which cannot be restored, so later trials of "
                "this process start with the change; run the study without isolation='inline'"
            )


def _not_restored(walk: Walk, filled: Container[int]) -> Iterable[str]:
    """Restore what has changed, and yield the paths of what cannot be; ``filled`` are caches that had results."""
    for holder in walk.holders:
        if not holder.changed():
            continue
        if isinstance(holder, Cache):
            if id(holder) in filled:
                yield holder.path
            elif _GUARDED.isdisjoint(map(sort_of, cached_values(holder.obj))):
                holder.obj.cache_clear()
            continue
        try:
            holder.reset()
        except UnplaceableError:
            yield holder.path
        else:
            if holder.changed():
                yield holder.path
