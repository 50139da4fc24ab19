"""What one object leads to, and what holds its state: decided by its type, nothing of it is run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import io
import multiprocessing.process
import os
import socket
import subprocess
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops

from sweeper.inspection import keras_names
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    is_users_class,
    may_have_fields,
    module_of,
    sort_of,
)
from sweeper.training.encoding.encoder import seeds_of
from sweeper.training.encoding.leaves import is_plain
from sweeper.training.userstate.holders.bindings import ContextValue, Environment
from sweeper.training.userstate.holders.foreign import (
    Buffer,
    Opaque,
    PandasObject,
    hides_state,
    is_buffer,
    is_pandas,
)
from sweeper.training.userstate.holders.objects import Attributes, Holder, ListItems, WeakItems
from sweeper.training.userstate.holders.outputs import is_output
from sweeper.training.userstate.holders.positions import (
    DatasetIterator,
    File,
    Frame,
    IteratorState,
    LookupTable,
    Queue,
    reduced_iterator,
)
from sweeper.training.userstate.holders.values import (
    Array,
    Generator,
    SeedSequence,
    Variable,
)
from sweeper.training.userstate.traversal.containers import (
    OwnAttributes,
    reach_dict,
    reach_list,
    reach_own_attributes,
    reach_set,
    reach_tuple,
)
from sweeper.training.userstate.traversal.functions import (
    reach_cache,
    reach_cell,
    reach_class,
    reach_descriptor,
    reach_function,
    reach_method,
    reach_partial,
    reach_wrapped,
    users_classes,
)
from sweeper.training.userstate.traversal.keras_objects import keras_edges
from sweeper.training.userstate.traversal.reached import Edge, Reached, Reacher, edges_to

_GENERATOR_STATE: type = dataset_ops.DatasetV2._GeneratorState

_CLOSED: tuple[type, ...] = (
    *(asyncio.Future, asyncio.AbstractEventLoop, concurrent.futures.Executor),
    *(concurrent.futures.Future, multiprocessing.process.BaseProcess, socket.socket),
    *(subprocess.Popen, threading.Thread, threading.Condition, threading.Barrier),
    types.ModuleType,
    *(tf.Graph, tf.distribute.Strategy, tf.io.TFRecordWriter, weakref.ref),
    weakref.WeakSet,
)
"""What nobody can save, and mostly does not change: known by identity alone."""


_OPENED = frozenset({"numpy", "scipy", "threading"})
"""Libraries whose objects, where they are written in Python, are made of attributes."""


_OF_TENSORFLOW = frozenset({"keras", "ml_dtypes", "sweeper", "tensorflow"})
"""Libraries whose objects written in C are looked at by their sorts alone."""


_WITHOUT_STATE = frozenset({"grain"})
"""Libraries whose objects only describe what is read; where a reader stands, its iterator says."""


def reach(edge: Edge, covered: frozenset[int]) -> Reached | None:
    """What ``edge.thing`` is to the walk; None for a leaf that is known by its value."""
    thing = edge.thing
    if is_plain(thing) or isinstance(thing, tf.Tensor):
        return None
    cls = type(thing)
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = _choose(thing, cls)
    if known is _variable:
        covers = id(thing) in covered
        return Reached(Variable(thing, edge.path.text, covered=covers))
    return known(thing, edge.path)


_known: dict[type, Reacher] = {}


def _choose(thing: Any, cls: type) -> Reacher:
    if is_output(thing):
        return _opaque
    for kinds, reacher in _SPECIAL:
        if isinstance(thing, kinds):
            return reacher
    if isinstance(thing, _CLOSED):
        return _opaque
    sort = sort_of(thing)
    if sort in OF_KERAS:
        return _keras_of(sort)
    if reduced_iterator(thing) is not None:
        return _iterator
    by_sort = _BY_SORT.get(sort)
    return _of_attributes(sort, cls) if by_sort is None else by_sort


def _of_attributes(sort: Sort, cls: type) -> Reacher:
    root = module_of(cls).partition(".")[0]
    if root == "pandas":
        return _pandas
    if sort is Sort.ITERATOR and not is_users_class(cls):
        return _opaque
    if root in _WITHOUT_STATE:
        return _walked_through
    if hides_state(cls) and root not in _OF_TENSORFLOW:
        return _foreign
    if sort in (Sort.OBJECT, Sort.ITERATOR) or root in _OPENED:
        return _object
    return _opaque


def _opaque(thing: Any, path: ObjectPath) -> Reached:
    del thing, path
    return Reached()


def _variable(thing: Any, path: ObjectPath) -> Reached:
    return Reached(Variable(thing, path.text, covered=False))


def _array(thing: Any, path: ObjectPath) -> Reached:
    if thing.dtype == object:
        return Reached(ListItems(thing, path.text))
    base = thing
    while isinstance(base.base, np.ndarray):
        base = base.base
    return Reached(Array(thing, path.text), edges_to(path, base) if base is not thing else ())


def _object(thing: Any, path: ObjectPath) -> Reached:
    ignored = frozenset(
        name for name in fields_of(thing) if name.startswith(keras_names.TRACKING_PREFIXES)
    )
    module = isinstance(thing, tf.Module)
    holder = Attributes(thing, path.text, ignored if module else frozenset())
    return Reached(holder, tuple(users_classes(type(thing), path)))


def _walked_through(thing: Any, path: ObjectPath) -> Reached:
    edges = [Edge(path.attribute(name), value) for name, value in fields_of(thing).items()]
    return Reached(None, tuple(edges))


def _attributes_alone(thing: Any, path: ObjectPath) -> Reached:
    """TensorFlow's record of a generator: the user's function in it."""
    return Reached(None, edges_to(path, *(v for v in fields_of(thing).values() if callable(v))))


def _traced(thing: Any, path: ObjectPath) -> Reached:
    """A ``tf.function``: what it was made of."""
    python = getattr(thing, "python_function", None)
    return Reached(None, edges_to(path, python) if python is not None else ())


def _dataset(thing: Any, path: ObjectPath) -> Reached:
    edges = []
    for name, value in list(fields_of(thing).items()):
        if type(value).__name__ == "StructuredFunctionWrapper":
            function = fields_of(value).get("_func")
            edges.append(Edge(path.noted("the function"), function))
        elif isinstance(value, tf.data.Dataset):
            edges.append(Edge(path, value))
        elif name == "_datasets" and isinstance(value, list | tuple):
            edges += edges_to(path, *value)
    return Reached(None, tuple(edges))


def _generator(thing: Any, path: ObjectPath) -> Reached:
    seeds = seeds_of(thing)
    edges = () if seeds is None else (Edge(path.attribute("seed_seq"), seeds),)
    return Reached(Generator(thing, path.text), edges)


def _seeds(thing: Any, path: ObjectPath) -> Reached:
    fields = fields_of(thing)
    states = (fields[name] for name in ("state", "_state_var") if name in fields)
    return Reached(None, edges_to(path.attribute("state"), *states))


def _iterator(thing: Any, path: ObjectPath) -> Reached:
    edges: list[Edge] = []
    reduced = reduced_iterator(thing) or ()
    waiting = list(reduced[1:3])
    while waiting:
        value = waiting.pop()
        nested = None if is_plain(value) else reduced_iterator(value)
        if nested is not None:
            # It is named by the one around it; where it is held by itself, it is met there.
            waiting += nested[1:3]
        elif isinstance(value, tuple):
            waiting += value
        elif not is_plain(value) and (type(value) is not list or not _is_fresh(thing)):
            edges.append(Edge(path.noted("what is iterated over"), value))
    return Reached(IteratorState(thing, path.text), tuple(edges))


def _is_fresh(iterator: object) -> bool:
    """Whether the iterator tells its items by a list that it makes for the answer."""
    return type(iterator).__name__.startswith(("dict", "set", "cycle", "groupby"))


def _pandas(thing: Any, path: ObjectPath) -> Reached:
    """A frame or series, and the arrays that it is made of; anything else of pandas."""
    if not is_pandas(thing):
        return _foreign(thing, path)
    values = [block.values for block in thing._mgr.blocks]
    arrays = edges_to(path, *(v for v in values if type(v) is np.ndarray))
    return Reached(PandasObject(thing, path.text), arrays)


def _foreign(thing: Any, path: ObjectPath) -> Reached:
    """An object that is written in C, or a part of it."""
    edges: list[Edge] = []
    if may_have_fields(type(thing)):
        edges.append(Edge(path.noted("the attributes"), OwnAttributes(thing)))
        edges += users_classes(type(thing), path)
    if is_buffer(thing):
        return Reached(Buffer(thing, path.text), tuple(edges))
    # The pickle of one with attributes would tell theirs as well, which are captured.
    return Reached(None if edges else Opaque(thing, path.text), tuple(edges))


def _python_frame(thing: Any, path: ObjectPath) -> Reached:
    frame = getattr(thing, "gi_frame", None) or getattr(thing, "cr_frame", None)
    inside = () if frame is None else tuple(frame.f_locals.items())
    edges = tuple(Edge(path.closure(name), value) for name, value in inside)
    return Reached(Frame(thing, path.text), edges)


def _keras_of(sort: Sort) -> Reacher:
    def reacher(thing: Any, path: ObjectPath) -> Reached:
        holder, inside = keras_edges(thing, sort, path)
        edges = [Edge(where, each) for where, each in inside]
        return Reached(holder, (*edges, *users_classes(type(thing), path)), follow=False)

    return reacher


def _simple(kind: Callable[[Any, str], Holder]) -> Reacher:
    return lambda thing, path: Reached(kind(thing, path.text))


_SPECIAL: tuple[tuple[Any, Reacher], ...] = (
    (OwnAttributes, reach_own_attributes),
    (tf.data.Dataset, _dataset),
    (_GENERATOR_STATE, _attributes_alone),
    ((keras.Variable, tf.Variable), _variable),
    (type(os.environ), lambda thing, path: Reached(Environment(thing, path.text), follow=False)),
    (types.CellType, reach_cell),
    (tf.types.experimental.GenericFunction, _traced),
    (iterator_ops.OwnedIterator, _simple(DatasetIterator)),
    (
        (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable),
        _simple(LookupTable),
    ),
    (tf.queue.QueueBase, _simple(Queue)),
    (io.IOBase, _simple(File)),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _python_frame),
    ((np.random.BitGenerator,), _generator),
    ((np.random.SeedSequence,), _simple(SeedSequence)),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), _simple(WeakItems)),
    ((functools.cached_property,), reach_descriptor),
    ((contextvars.ContextVar,), _simple(ContextValue)),
    (
        (threading.Event,),
        lambda thing, path: Reached(Attributes(thing, path.text, watched=("_flag",))),
    ),
)

_BY_SORT: dict[Sort, Reacher] = {
    Sort.ARRAY: _array,
    Sort.CACHE: reach_cache,
    Sort.CLASS: reach_class,
    Sort.DESCRIPTOR: reach_descriptor,
    Sort.DICT: reach_dict,
    Sort.FUNCTION: reach_function,
    Sort.LIST: lambda thing, path: (reach_tuple if isinstance(thing, tuple) else reach_list)(
        thing, path
    ),
    Sort.METHOD: reach_method,
    Sort.PARTIAL: reach_partial,
    Sort.RANDOM: _generator,
    Sort.SEEDS: _seeds,
    Sort.SET: reach_set,
    Sort.WRAPPED: reach_wrapped,
}
