"""Walk from the factories' results to every object that can have state, each once.

`sweeper.inspection.walk` yields the objects that an object leads to; this module gives each its path and
its holder. The order is that in which the user's code set attributes. It is the same in every process,
and so are the paths, by which captured state is restored.
"""

from __future__ import annotations

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
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from sweeper.inspection import keras_names
from sweeper.inspection.sorts import (
    OF_KERAS,
    PLAIN_TYPES,
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
    edges_of,
    variables_used,
    walk,
)
from sweeper.train.codec.encoder import seeds_of
from sweeper.train.codec.form import is_plain
from sweeper.train.userstate.built_ins import BUILT_INS, base_of
from sweeper.train.userstate.foreign import hides_state, is_buffer, is_output
from sweeper.train.userstate.holders import (
    KEYED,
    NAMED,
    Attributes,
    Cell,
    ClassAttributes,
    DictItems,
    Environment,
    Holder,
    ListItems,
    ModuleVariables,
    SetItems,
    Structure,
)
from sweeper.train.userstate.refused import BUFFER, Kind, Uncaptured, kind_of, opaque
from sweeper.train.userstate.values import (
    Array,
    Cache,
    File,
    Generator,
    SeedSequence,
    Variable,
)


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
        read_ahead: The uses of ``data`` that threads read ahead of the training.
        written: Variables that reading the data ahead writes, by use and identity.
        exempt: Objects with their own methods for their state.
        output: Objects that only write; may grow.
        directory: Directory of the trial, which differs between attempts and replays.
    """

    model: keras.Model
    callbacks: Sequence[keras.callbacks.Callback] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    read_ahead: frozenset[str] = frozenset()
    written: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    exempt: Sequence[Any] = ()
    output: Sequence[Any] = ()
    directory: str = ""
    step: Any = None
    tracked: Mapping[str, Any] = field(default_factory=dict)

    def ids_exempt(self) -> frozenset[int]:
        """Return the ids of all objects that the walk does not enter."""
        return frozenset(map(id, (*self.exempt, *self.output)))

    def ids_of_output(self) -> frozenset[int]:
        """Return the ids of the objects that only write."""
        return frozenset(map(id, self.output))

    def keeping_own_state(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks with their own methods for their state."""
        exempt = {id(obj) for obj in self.exempt}
        return [c for c in self.callbacks if id(c) in exempt and id(c) not in self.ids_of_output()]

    def given(self) -> list[tuple[ObjectPath, Any]]:
        """Return all roots, without data that are read ahead of the training."""
        counts = Counter(type(callback).__qualname__ for callback in self.callbacks)
        found: list[tuple[ObjectPath, Any]] = []
        for index, callback in enumerate(self.callbacks):
            name = type(callback).__qualname__
            shown = f"callback {name}" if counts[name] == 1 else f"callback {name} [{index}]"
            found.append((ObjectPath(shown), callback))
        found.append((ObjectPath("model"), self.model))
        if self.step is not None:
            found.append((ObjectPath("step"), self.step))
        found += [(ObjectPath(f"tracked {n!r}"), obj) for n, obj in self.tracked.items()]
        found.append((ObjectPath("os.environ"), os.environ))
        return found + [part for use, part in self._data() if use not in self.read_ahead]

    def by_use(self) -> dict[str, list[tuple[ObjectPath, Any]]]:
        """Return the roots of the data, by use."""
        found: dict[str, list[tuple[ObjectPath, Any]]] = {"train": [], "validation": []}
        for use, part in self._data():
            found[use].append(part)
        return found

    def _data(self) -> list[tuple[str, tuple[ObjectPath, Any]]]:
        return [(use, (ObjectPath(f"Data({use}=…)"), given)) for use, given in self.data.items()]


_GENERATOR_STATE: type = dataset_ops.DatasetV2._GeneratorState

_CLOSED: tuple[type, ...] = (
    *(asyncio.Future, asyncio.AbstractEventLoop, concurrent.futures.Executor),
    *(concurrent.futures.Future, multiprocessing.process.BaseProcess, socket.socket),
    *(subprocess.Popen, threading.Thread, threading.Condition, threading.Barrier),
    types.ModuleType,
    *(tf.Graph, tf.distribute.Strategy, tf.io.TFRecordWriter, weakref.ref),
)
"""Classes of objects that cannot be saved and rarely change: compared by identity alone."""

_OPENED = frozenset({"numpy", "scipy", "threading"})
"""Libraries whose objects, if written in Python, have all their state in attributes."""

_OF_TENSORFLOW = frozenset({"keras", "ml_dtypes", "sweeper", "tensorflow"})
"""Libraries whose objects written in C are handled by their sorts alone."""

_WITHOUT_STATE = frozenset({"grain"})
"""Libraries whose objects have no position of reading; their iterators have it."""


@dataclass(slots=True)
class Treatment:
    """Treatment of an object by the walk.

    Attributes:
        holder: Holder of its state; None if it has no own state.
        edges: Edges to other objects, besides the holder's contents.
        variables: Module variables that its code uses.
        follow: Whether the holder's contents are walked as well.
        named: Whether it can be referred to by its path.
    """

    holder: Holder | None = None
    edges: tuple[Edge, ...] = ()
    variables: tuple[UsedVariable, ...] = ()
    follow: bool = True
    named: bool = True


Treat = Callable[[Any, ObjectPath], Treatment]


class OwnAttributes:
    """Attributes of an object whose items or content have their own holder."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner


def treatment_of(edge: Edge, covered: frozenset[int]) -> Treatment | None:
    """Return how the walk treats ``edge.obj``; None for a leaf."""
    obj = edge.obj
    if is_plain(obj) or isinstance(obj, tf.Tensor):
        return None
    cls = type(obj)
    known = _treats_by_class.get(cls)
    if known is None:
        known = _treats_by_class[cls] = _choose(obj, cls)
    if known is _variable:
        covers = id(obj) in covered
        return Treatment(Variable(obj, edge.path.text, covered=covers))
    return known(obj, edge.path)


_treats_by_class: dict[type, Treat] = {}


def _choose(obj: Any, cls: type) -> Treat:
    refused = kind_of(obj)
    if is_output(obj):
        return _opaque
    if refused is not None:
        return functools.partial(_refused, refused)
    for kinds, treat in _SPECIAL:
        if isinstance(obj, kinds):
            return treat
    sort = sort_of(obj)
    return _BY_SORT.get(sort) or _of_attributes(sort, cls)


def _of_attributes(sort: Sort, cls: type) -> Treat:
    root = module_of(cls).partition(".")[0]
    if root == "pandas":
        return _foreign
    if sort is Sort.ITERATOR and not is_users_class(cls):
        return _opaque
    if root in _WITHOUT_STATE:
        return _walked_through
    if hides_state(cls) and root not in _OF_TENSORFLOW:
        return _foreign
    if sort in (Sort.OBJECT, Sort.ITERATOR) or root in _OPENED:
        return _object
    return _opaque


def _opaque(obj: Any, path: ObjectPath) -> Treatment:
    del obj, path
    return Treatment()


def _variable(obj: Any, path: ObjectPath) -> Treatment:
    return Treatment(Variable(obj, path.text, covered=False))


def _array(obj: Any, path: ObjectPath) -> Treatment:
    if obj.dtype == object:
        return Treatment(ListItems(obj, path.text))
    base = obj
    while isinstance(base.base, np.ndarray):
        base = base.base
    return Treatment(Array(obj, path.text), (Edge(path, base),) if base is not obj else ())


def _object(obj: Any, path: ObjectPath) -> Treatment:
    ignored = frozenset(
        name for name in fields_of(obj) if name.startswith(keras_names.TRACKING_PREFIXES)
    )
    module = isinstance(obj, tf.Module)
    holder = Attributes(obj, path.text, ignored if module else frozenset())
    return Treatment(holder, tuple(users_classes(type(obj))))


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


def _refused(kind: Kind, obj: Any, path: ObjectPath) -> Treatment:
    return Treatment(Uncaptured(obj, path.text, kind), tuple(kind.inside(obj, path)))


def _foreign(obj: Any, path: ObjectPath) -> Treatment:
    """Return an object with state in C."""
    edges: list[Edge] = []
    if may_have_fields(type(obj)):
        edges.append(Edge(path.noted("the attributes"), OwnAttributes(obj)))
        edges += users_classes(type(obj))
    if is_buffer(obj):
        return Treatment(Uncaptured(obj, path.text, BUFFER), tuple(edges))
    # The pickle of an object with attributes would include them, and they are captured separately.
    holder = None if edges else Uncaptured(obj, path.text, opaque(obj))
    return Treatment(holder, tuple(edges))


def _keras_object(sort: Sort) -> Treat:
    """Return the treatment of Keras objects of ``sort``.

    It covers attributes that the user's own class assigns or that Keras does not assign. Of those that
    Keras assigns it covers plain values, such as a rate that a callback changes.
    """

    def treat(obj: Any, path: ObjectPath) -> Treatment:
        cls: Any = type(obj)
        base = base_of(obj) if sort is Sort.CALLBACK else None
        skipped = frozenset() if base is None else frozenset(BUILT_INS[base].handles)
        own, users = assigned_by_keras(cls), assigned_by_user(cls)
        edges = [edge for edge in edges_of(obj, sort, path) if edge.name not in skipped]
        watched = [
            edge.name
            for edge in edges
            if edge.how is How.FIELD
            and (edge.name not in own or edge.name in users or is_plain(edge.obj))
        ]
        # Keras's callbacks create some of their attributes during training.
        made_late = frozenset() if sort is Sort.CALLBACK else own
        ignored = frozenset({*fields_of(obj), *made_late, *BOOKKEEPING, *skipped})
        holder = Attributes(obj, path.text, ignored, tuple(watched))
        return Treatment(holder, (*edges, *users_classes(cls)), follow=False)

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
    own = _path_of_class(obj)
    hidden = type.__dict__["__dict__"].__get__(obj)
    edges = [Edge(own.attribute(name), hidden[name]) for name in _CALLED if name in hidden]
    edges += (edge for edge in users_classes(obj) if edge.obj is not obj)
    return Treatment(ClassAttributes(obj, own.text), tuple(edges))


_CALLED = ("__call__", "__getitem__", "__iter__", "__next__", "__init__", "__len__")
"""Methods with underscores that Keras, TensorFlow or the user's code calls."""


def _function(obj: Any, path: ObjectPath) -> Treatment:
    users = is_users_module(obj.__module__ or "")
    shown = ObjectPath(f"{obj.__module__}.{obj.__qualname__}") if users else path
    edges = tuple(edges_of(obj, Sort.FUNCTION, shown))
    if obj.__module__ == "functools" or "_clear_cache" in obj.__dict__:
        caches = {shown.closure("cache_token"), shown.closure("dispatch_cache")}
        caches.add(shown.attribute("_clear_cache"))
        # `functools.singledispatch` computes them from the registered functions.
        edges = tuple(edge for edge in edges if edge.path not in caches)
    if users:
        variables = tuple(variables_used(obj))
        return Treatment(Attributes(obj, path.text), edges, variables, follow=False)
    wrapped = getattr(obj, "__wrapped__", None)
    return Treatment(None, edges if wrapped is None else (*edges, Edge(path, wrapped)))


def _list(obj: Any, path: ObjectPath) -> Treatment:
    if isinstance(obj, tuple):
        return Treatment(None, tuple(edges_of(obj, Sort.LIST, path)), named=False)
    return _container(ListItems(obj, path.text), type(obj) in (list, deque), path)


def _dict(obj: Any, path: ObjectPath) -> Treatment:
    if isinstance(obj, types.MappingProxyType):
        return Treatment(None, tuple(edges_of(obj, Sort.DICT, path)))
    if not isinstance(obj, dict):
        return Treatment()
    return _container(DictItems(obj, path.text), type(obj) is dict, path)


def _set(obj: Any, path: ObjectPath) -> Treatment:
    if isinstance(obj, frozenset):
        return Treatment(None, tuple(edges_of(obj, Sort.SET, path)), named=False)
    return _container(SetItems(obj, path.text), type(obj) is set, path)


def _container(holder: Structure, exact: bool, path: ObjectPath) -> Treatment:
    """Return a container; one of a user's class has attributes and code besides its items."""
    keys, values = holder.read()
    follow = not PLAIN_TYPES.issuperset({*map(type, values), *map(type, keys)})
    edges: list[Edge] = []
    obj = holder.obj
    of_keras = module_of(type(obj)).partition(".")[0] == "keras"
    if not exact and getattr(obj, "__dict__", None) is not None and not of_keras:
        edges.append(Edge(path.noted("the attributes"), OwnAttributes(obj)))
        edges += users_classes(type(obj))
    return Treatment(holder, tuple(edges), follow=follow)


def _with_edges(
    sort: Sort, kind: Callable[[Any, str], Holder] | None = None, *, named: bool = True
) -> Treat:
    """Return the treatment of objects of ``sort`` whose contents are their edges."""

    def treat(obj: Any, path: ObjectPath) -> Treatment:
        holder = None if kind is None else kind(obj, path.text)
        edges = tuple(edges_of(obj, sort, path))
        return Treatment(holder, edges, follow=False, named=named)

    return treat


def _with_holder(kind: Callable[[Any, str], Holder]) -> Treat:
    return lambda obj, path: Treatment(kind(obj, path.text))


_SPECIAL: tuple[tuple[Any, Treat], ...] = (
    (OwnAttributes, lambda obj, path: Treatment(Attributes(obj.owner, path.text))),
    (tf.data.Dataset, _with_edges(Sort.TFDATA)),
    (_GENERATOR_STATE, _dataset_generator),
    ((keras.Variable, tf.Variable), _variable),
    (type(os.environ), lambda obj, path: Treatment(Environment(obj, path.text), follow=False)),
    (types.CellType, _with_edges(Sort.CELL, Cell)),
    (tf.types.experimental.GenericFunction, _tf_function),
    (io.IOBase, _with_holder(File)),
    ((np.random.BitGenerator,), _generator),
    ((np.random.SeedSequence,), _with_holder(SeedSequence)),
    ((functools.cached_property,), _with_edges(Sort.DESCRIPTOR)),
    (
        (threading.Event,),
        lambda obj, path: Treatment(Attributes(obj, path.text, watched=("_flag",))),
    ),
    (_CLOSED, _opaque),
)
"""Treatment by class; the first row counts."""

_BY_SORT: dict[Sort, Treat] = {
    Sort.ARRAY: _array,
    Sort.CACHE: _with_edges(Sort.CACHE, Cache),
    Sort.CLASS: _class,
    Sort.DESCRIPTOR: _with_edges(Sort.DESCRIPTOR),
    Sort.DICT: _dict,
    Sort.FUNCTION: _function,
    Sort.LIST: _list,
    Sort.METHOD: _with_edges(Sort.METHOD, named=False),
    Sort.PARTIAL: _with_edges(Sort.PARTIAL),
    Sort.RANDOM: _generator,
    Sort.SEEDS: _with_edges(Sort.SEEDS),
    Sort.SET: _set,
    Sort.WRAPPED: _with_edges(Sort.WRAPPED),
    **{sort: _keras_object(sort) for sort in OF_KERAS},
}
"""Treatment of other objects by sort."""


@dataclass(slots=True)
class Node:
    """An object that existed when training began.

    Attributes:
        obj: The object.
        path: Path, unique among all nodes.
        holder: Its holder; None for an object without own state.
    """

    obj: Any
    path: str
    holder: Holder | None


class Walk:
    """All reached objects, by identity and by path.

    Args:
        covered: Ids of the variables that other components capture.
        exempt: Ids of objects that the walk does not enter.
    """

    def __init__(self, covered: frozenset[int], exempt: frozenset[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.by_path: dict[str, Node] = {}
        self.cut = False
        self._covered = covered
        self._exempt = exempt
        self._modules: dict[int, ModuleVariables] = {}

    @property
    def holders(self) -> list[Holder]:
        """Return all holders, in the order of the walk."""
        found = [node.holder for node in self.nodes.values() if node.holder is not None]
        return [*found, *self._modules.values()]

    @property
    def modules(self) -> list[ModuleVariables]:
        """Return the modules with variables that reached code uses."""
        return list(self._modules.values())

    def module(self, name: str) -> ModuleVariables | None:
        """Return the module with the path ``name``."""
        return next((m for m in self._modules.values() if m.path == name), None)

    def visit(
        self, roots: Iterable[tuple[ObjectPath, Any]], used: set[tuple[int, str]] | None = None
    ) -> set[int]:
        """Walk from ``roots``; return the ids of all objects that they lead to, new or not.

        Args:
            roots: Paths and objects to start from.
            used: Receives the module variables that reached code uses: the id of the module's holder,
                and the variable's name.
        """
        seen: set[int] = set()

        def look(edge: Edge, _: int) -> Iterable[Edge] | None:
            key = id(edge.obj)
            if len(self.nodes) >= MOST:
                self.cut = True
                return None
            seen.add(key)
            if key in self._exempt:
                self._add(edge, None)
                return None
            treatment = treatment_of(edge, self._covered)
            if treatment is None:
                return None
            if key not in self.nodes and treatment.named:
                self._add(edge, treatment.holder)
            for variable in treatment.variables:
                holder = self._use(variable)
                seen.add(id(holder))
                if used is not None:
                    used.add((id(holder), variable.name))
            return self._inside(edge, treatment)

        walk([Edge(where, obj) for where, obj in roots], look)
        return seen

    def reached_from(self, path: str, obj: Any, used: set[tuple[int, str]]) -> set[int]:
        """Return the ids of all objects that ``obj`` leads to, without adding any; see `visit`."""
        nodes, by_path = self.nodes, self.by_path
        self.nodes, self.by_path = dict(nodes), dict(by_path)
        try:
            return self.visit([(ObjectPath(path), obj)], used)
        finally:
            self.nodes, self.by_path = nodes, by_path

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
        node = Node(edge.obj, path, holder)
        self.nodes[id(edge.obj)] = node
        self.by_path[path] = node

    def _use(self, variable: UsedVariable) -> ModuleVariables:
        known = self._modules.get(id(variable.module))
        if known is None:
            path = f"module {_variables_of(variable).get('__name__', '__main__')}"
            if any(other.path == path for other in self._modules.values()):
                path = f"{path} ({len(self._modules)})"
            known = ModuleVariables(variable.module, path)
            self._modules[id(variable.module)] = known
        known.names.setdefault(variable.name)
        return known

    def _inside(self, edge: Edge, treatment: Treatment) -> list[Edge]:
        inside = list(treatment.edges)
        for variable in treatment.variables:
            own = _variables_of(variable)
            if variable.name in own:
                where = ObjectPath(f"{self._modules[id(variable.module)].path}.{variable.name}")
                inside.append(Edge(where, own[variable.name]))
        if isinstance(treatment.holder, Structure) and treatment.follow:
            inside += _contents(edge.path, treatment.holder)
        # Keras may have generated a layer's name, which then differs between processes.
        return [each._replace(path=each.path._replace(label="")) for each in inside]


def _variables_of(variable: UsedVariable) -> dict[str, Any]:
    return variable.module if isinstance(variable.module, dict) else vars(variable.module)


def _contents(where: ObjectPath, holder: Structure) -> list[Edge]:
    keys, values = holder.read()
    if holder.shape == NAMED:
        return [Edge(where.attribute(k), v) for k, v in zip(keys, values, strict=True)]
    if holder.shape == KEYED:
        found = [Edge(where.item(k), v) for k, v in zip(keys, values, strict=True)]
        return found + [Edge(where.noted("a key"), k) for k in keys]
    return [Edge(where.item(i), v) for i, v in enumerate(values)]


class Watch:
    """Snapshot of an object and of all that is reachable from it.

    Args:
        shown: Name of the object for the user.
        obj: The object.
    """

    def __init__(self, shown: str, obj: Any) -> None:
        self._walk = Walk(frozenset(), frozenset())
        self._walk.visit([(ObjectPath(shown), obj)])
        self._walk.begin()

    def changed(self) -> list[str]:
        """Return the paths of changed objects."""
        return [holder.path for holder in self._walk.holders if holder.changed()]
