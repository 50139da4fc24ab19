"""Objects whose changes are found but not restored: queues, tables, iterators, generators, frames of pandas.

Each kind has a token, which stays the same as long as an object is unchanged, and an advice. An object
that training changes or makes is refused with the advice; one that is only used is not.
"""

from __future__ import annotations

import contextvars
import gc
import io
import pickle
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.ops import gen_dataset_ops

from sweeper.inspection.sorts import Sort, class_name, module_of
from sweeper.inspection.walk import Edge, ObjectPath, edges_of, frame_of
from sweeper.train.codec import Json, NotPlainError, Tensors, UnplaceableError, digest_of
from sweeper.train.codec.form import MISSING, is_plain, same
from sweeper.train.userstate.values import Value

_MOST_PICKLED = 4 << 20
"""Size of a pickle in bytes above which an object is not compared."""

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects whose state cannot be restored.

    Attributes:
        what: Description in the refusal.
        advice: What to use instead; general advice by default.
        token: Returns leaves, tuples of leaves, and objects to compare by identity. `MISSING` if the state
            cannot be read, so that it may have changed.
        inside: Returns the edges to the objects that it holds.
        stable: False if the token may differ each time; then an object whose token does is not compared.
    """

    what: str
    advice: str
    token: Callable[[Any], Any]
    inside: Callable[[Any, ObjectPath], Iterable[Edge]] = lambda _, __: ()
    stable: bool = True


class Uncaptured(Value):
    """An object whose change is refused."""

    __slots__ = ("comparable", "kind")

    def __init__(self, obj: Any, path: str, kind: Kind) -> None:
        super().__init__(obj, path)
        self.kind = kind
        self.comparable = True

    def token(self) -> Any:
        return self.kind.token(self.obj)

    def begin(self) -> None:
        super().begin()
        # Some pickles differ each time, and are not compared.
        self.comparable = self.kind.stable or same(self.began, self.token())

    def changed(self) -> bool:
        if self.began is MISSING:
            return True
        return self.comparable and not same(self.token(), self.began)

    def reset(self) -> None:
        raise UnplaceableError(self.kind.what)

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        raise NotPlainError(key, self.obj, self.kind.what, self.kind.advice)


def _reduced_iterator(value: Any) -> tuple[Any, ...] | None:
    """Return the result of ``__reduce__`` of an iterator of Python's own; None for other objects.

    Only for types whose ``__reduce__`` runs no other code and does not advance them.
    """
    if type(value).__module__ not in ("builtins", "itertools", "collections", "_collections"):
        return None
    if not hasattr(type(value), "__next__") or isinstance(value, types.GeneratorType):
        return None
    try:
        reduced = value.__reduce__()
    except TypeError:
        return None
    return reduced if isinstance(reduced, tuple) else None


def _is_fresh(iterator: object) -> bool:
    """Return whether the iterator's ``__reduce__`` creates a list of its items."""
    return type(iterator).__name__.startswith(("dict", "set", "cycle", "groupby"))


def _of_iterator(value: Any, depth: int = 0, *, fresh: bool = False) -> Any:
    if is_plain(value) or depth > _DEEPEST:
        return value
    if isinstance(value, tuple) or (fresh and type(value) is list):
        return tuple(_of_iterator(each, depth + 1, fresh=fresh) for each in value)
    reduced = _reduced_iterator(value)
    if reduced is None:
        return value
    return _of_iterator(reduced, depth + 1, fresh=_is_fresh(value))


def _inside_iterator(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    reduced = _reduced_iterator(obj) or ()
    waiting = list(reduced[1:3])
    while waiting:
        value = waiting.pop()
        nested = None if is_plain(value) else _reduced_iterator(value)
        if nested is not None:
            # Its path is that of the outer iterator; if other objects hold it, the walk finds it there.
            waiting += nested[1:3]
        elif isinstance(value, tuple):
            waiting += value
        elif not is_plain(value) and (type(value) is not list or not _is_fresh(obj)):
            yield Edge(path.noted("what is iterated over"), value)


def _of_frame(obj: Any) -> Any:
    frame = frame_of(obj)
    if frame is None:
        return None
    # A loop returns to the same position. Its counter is among the frame's values; its iterator
    # is on the frame's stack, which only the garbage collector shows.
    held = [v for v in gc.get_referents(obj) if v is not frame]
    return frame.f_lasti, tuple(_of_iterator(value) for value in held)


def _of_table(obj: Any) -> Any:
    keys, values = (np.asarray(each) for each in obj.export())
    pairs = zip(keys.tolist(), [str(v) for v in values.tolist()], strict=True)
    return tuple(sorted(pairs, key=repr))


def _of_dataset_iterator(obj: Any) -> Any:
    try:
        state = gen_dataset_ops.serialize_iterator(obj._iterator_resource, external_state_policy=2)
    except tf.errors.FailedPreconditionError:
        return MISSING
    return bytes(tf.io.serialize_tensor(state).numpy())


def _weak_items(obj: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping, or the members of a set, with its weak references."""
    if isinstance(obj, weakref.WeakSet):
        return [(each, None) for each in sorted(vars(obj)["data"], key=id)]
    return list(obj.data.items())


def _inside_weak(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    for pair in _weak_items(obj):
        for each in pair:
            yield Edge(path.noted("an item"), each() if isinstance(each, weakref.ref) else each)


class _Bounded(io.BytesIO):
    """File in memory that refuses more than `_MOST_PICKLED` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _MOST_PICKLED:
            raise pickle.PicklingError("too large")
        return super().write(data)


def _pickled(obj: object) -> bytes | None:
    taken = _Bounded()
    try:
        pickle.Pickler(taken, 5).dump(obj)
    except Exception:
        return None
    return taken.getvalue()


def opaque(obj: object) -> Kind:
    """Return the kind of an object written in C, whose changes its pickle shows; no pickle is loaded."""
    return Kind(
        f"a {class_name(type(obj))}, whose content no API can read", "", _pickled, stable=False
    )


def _arrays_in(obj: Any) -> list[np.ndarray[Any, Any]]:
    """Return the NumPy arrays with the values of a frame or a series of pandas, each once."""
    found = {}
    for column in _columns(obj):
        if isinstance(column.dtype, np.dtype):
            values = column.to_numpy()
            while isinstance(values.base, np.ndarray):
                values = values.base
            found[id(values)] = values
    return list(found.values())


def _columns(obj: Any) -> list[Any]:
    if type(obj).__name__ == "Series":
        return [obj]
    return [obj.iloc[:, at] for at in range(obj.shape[1])]


def _of_pandas(obj: Any) -> Any:
    """Return the layout and the labels; the arrays of values have their own holders."""
    labels = (obj.index, getattr(obj, "columns", None))
    # The arrays, so that their addresses are not used again.
    kept = tuple(_arrays_in(obj))
    return labels, repr(getattr(obj, "name", None)), tuple(map(_layout, _columns(obj))), kept


def _layout(column: Any) -> Any:
    """Return the address of a column's NumPy array, or the values of another column."""
    import pandas as pd

    if isinstance(column.dtype, np.dtype):
        inside = column.to_numpy().__array_interface__
        return inside["typestr"], inside["data"][0], inside["shape"], inside["strides"]
    return str(column.dtype), digest_of(pd.util.hash_array(column.array))


def _is_pandas(obj: object) -> bool:
    """Return whether ``obj`` is a frame or a series of pandas."""
    cls = type(obj)
    return module_of(cls).partition(".")[0] == "pandas" and cls.__name__ in ("DataFrame", "Series")


def _of_stream(obj: Any) -> Any:
    return None if obj.closed else (obj.getvalue(), obj.tell())


_ITERATOR = Kind(
    "an iterator",
    "keep a list and an index into it (values[index % len(values)]) instead of an iterator",
    _of_iterator,
    _inside_iterator,
)
_PANDAS = Kind(
    "a frame or series of pandas",
    "collect the values in a list or in a dict of lists, and make the frame when training has ended",
    _of_pandas,
    lambda obj, path: (Edge(path, array) for array in _arrays_in(obj)),
)
BUFFER = Kind(
    "a buffer of bytes (bytearray, array.array, ctypes)",
    "keep a NumPy array",
    lambda buffer: digest_of(np.frombuffer(memoryview(buffer).tobytes(), np.uint8)),
)
_BY_CLASS: tuple[tuple[tuple[type, ...], Kind], ...] = (
    (
        (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable),
        Kind(
            "a mutable lookup table of TensorFlow",
            "keep the values in a tf.Variable, or in a dict",
            _of_table,
        ),
    ),
    (
        (tf.queue.QueueBase,),
        Kind(
            "a TensorFlow queue whose elements no API can read",
            "use collections.deque",
            lambda queue: 0 if int(queue.size()) == 0 else MISSING,
        ),
    ),
    (
        (iterator_ops.OwnedIterator,),
        Kind(
            "an iterator over a tf.data.Dataset",
            "make a new iterator where it is used",
            _of_dataset_iterator,
        ),
    ),
    (
        (io.StringIO, io.BytesIO),
        Kind(
            "a stream in memory",
            "keep the texts in a list; if nothing reads the stream, exempt it: trial.output_only(stream)",
            _of_stream,
        ),
    ),
    (
        (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
        Kind(
            "a generator",
            "keep the values that it continues from in attributes, and compute the next one in a method",
            _of_frame,
            lambda obj, path: edges_of(obj, Sort.ITERATOR, path) if frame_of(obj) else (),
        ),
    ),
    (
        (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
        Kind(
            "a mapping or set with weak references",
            "use a dict, and delete the entries that are not needed any more",
            lambda obj: tuple(_weak_items(obj)),
            _inside_weak,
        ),
    ),
    (
        (contextvars.ContextVar,),
        Kind(
            "a context variable",
            "keep the value in an attribute or in a variable of the module",
            lambda variable: (variable.get(MISSING),),
            lambda variable, path: [Edge(path, variable.get(None))],
        ),
    ),
)


def kind_of(obj: Any) -> Kind | None:
    """Return the kind of an object whose changes are refused; None for other objects."""
    for classes, kind in _BY_CLASS:
        if isinstance(obj, classes):
            return kind
    if _is_pandas(obj):
        return _PANDAS
    return None if _reduced_iterator(obj) is None else _ITERATOR


KINDS = (_ITERATOR, _PANDAS, BUFFER, *(kind for _, kind in _BY_CLASS))
"""All kinds, for the documentation."""
