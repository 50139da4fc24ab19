"""Objects whose changes are found but not restored: queues, tables, iterators, generators, frames of pandas.

Each kind has a token, which stays the same as long as an object is unchanged, and an advice. An object
that training changes or makes is refused with the advice; one that is only used is not.
"""

import contextvars
import gc
import io
import logging
import pickle
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.ops import gen_dataset_ops

from sweeper.inspection.sorts import HEAP, IMMUTABLE, class_name, fields_of, module_of
from sweeper.inspection.walk import frame_of
from sweeper.train import codec
from sweeper.train.userstate.holders import Value

_MOST_PICKLED = 4 << 20
"""Size of a pickle in bytes, without its arrays, above which an object is not compared."""

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects whose state cannot be restored.

    Attributes:
        classes: Classes of such objects, unless they are recognized otherwise.
        what: Description in the refusal.
        advice: What to use instead; general advice by default.
        token: Returns leaves, tuples of leaves, and objects to compare by identity. `MISSING` if the state
            cannot be read, so that it may have changed.
        stable: False if the token may differ each time; then an object whose token does is not compared.
        entered: Whether it holds objects of the user.
    """

    classes: tuple[type, ...]
    what: str
    advice: str
    token: Callable[[Any], Any]
    stable: bool = True
    entered: bool = True


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
        self.comparable = self.kind.stable or codec.same(self.initial, self.token())

    def changed(self) -> bool:
        if self.initial is codec.MISSING:
            return True
        return self.comparable and not codec.same(self.token(), self.initial)

    def reset(self) -> None:
        raise codec.UnplaceableError(self.kind.what)

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        del tensors
        raise codec.NotPlainError(key, self.obj, self.kind.what, self.kind.advice)


_OUTPUT: tuple[type, ...] = (
    keras.utils.Progbar,
    logging.Handler,
    logging.Logger,
    logging.LoggerAdapter,
    tf.summary.SummaryWriter,
)


def is_output(value: object) -> bool:
    """Return whether ``value`` is a progress bar or a log: it only writes, and no result depends on it."""
    return isinstance(value, _OUTPUT) or is_of_tqdm(type(value))


def is_of_tqdm(cls: type) -> bool:
    return module_of(cls).partition(".")[0] == "tqdm" and hasattr(cls, "set_postfix")


def _reduced_iterator(value: Any) -> tuple[Any, ...] | None:
    """Return the result of ``__reduce__`` of an iterator of Python's own; None for other objects.

    Only for types whose ``__reduce__`` runs no other code and does not advance them.
    """
    if type(value).__module__ not in ("builtins", "itertools", "collections", "_collections"):
        return None
    if not hasattr(type(value), "__next__") or isinstance(value, types.GeneratorType):
        return None
    try:
        with warnings.catch_warnings():
            # Python 3.12 and 3.13 announce that the iterators of itertools lose this method in 3.14.
            warnings.simplefilter("ignore", DeprecationWarning)
            reduced = value.__reduce__()
    except TypeError:
        return None
    return reduced if isinstance(reduced, tuple) else None


def _of_iterator(value: Any, depth: int = 0) -> Any:
    if codec.is_json_leaf(value) or depth > _DEEPEST:
        return value
    if isinstance(value, tuple):
        return tuple(_of_iterator(part, depth + 1) for part in value)
    reduced = _reduced_iterator(value)
    if reduced is None:
        return value
    if type(value).__name__.startswith(("dict", "odict", "set")):
        # The iterator makes a new list of the items that are left.
        return tuple(reduced[1][0])
    return _of_iterator(reduced, depth + 1)


def _of_frame(obj: Any) -> Any:
    frame = frame_of(obj)
    if frame is None:
        return None
    # A loop returns to the same position. Its counter is among the frame's values; its iterator
    # is on the frame's stack, which only the garbage collector shows.
    referents = [v for v in gc.get_referents(obj) if v is not frame]
    return frame.f_lasti, tuple(_of_iterator(value) for value in referents)


def _of_file(file: Any) -> Any:
    of_process = (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    if file.closed or file in of_process or not file.seekable():
        return file.closed
    try:
        return file.tell()
    except (OSError, ValueError):  # a text file in an iteration
        return codec.MISSING


def _of_table(obj: Any) -> Any:
    keys, values = (np.asarray(array) for array in obj.export())
    pairs = zip(keys.tolist(), [str(v) for v in values.tolist()], strict=True)
    return tuple(sorted(pairs, key=repr))


def _of_dataset_iterator(obj: Any) -> Any:
    try:
        state = gen_dataset_ops.serialize_iterator(obj._iterator_resource, external_state_policy=2)
    except tf.errors.FailedPreconditionError:
        return codec.MISSING
    return bytes(tf.io.serialize_tensor(state).numpy())


def _of_weak(obj: Any) -> Any:
    """Return the content of a mapping or a set, with its weak references."""
    data = vars(obj)["data"]
    return tuple(sorted(data, key=id)) if isinstance(data, set) else tuple(data.items())


class _Digest:
    """File that keeps the digest of what is written, and refuses more than ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.digest = xxhash.xxh3_128()

    def write(self, data: Any) -> None:
        self.left -= memoryview(data).nbytes
        if self.left < 0:
            raise pickle.PicklingError("too large")
        self.digest.update(data)

    def add_array(self, buffer: pickle.PickleBuffer) -> None:
        self.digest.update(buffer.raw())


def _pickled(obj: object, most: int = sys.maxsize) -> str | None:
    """Return the digest of an object's pickle, which is never loaded; None if it has none."""
    taken = _Digest(most)
    try:
        pickle.Pickler(taken, 5, buffer_callback=taken.add_array).dump(obj)
    except Exception:
        # Pickling calls methods of the object's parts, which may raise anything.
        return None
    return taken.digest.hexdigest()


def hides_state(cls: type) -> bool:
    """Return whether objects of ``cls`` may have state besides attributes, because a base is written in C."""

    def is_in_c(base: type) -> bool:
        if issubclass(base, BaseException) or base in (object, threading.local):
            return False
        if not base.__flags__ & HEAP or base.__flags__ & IMMUTABLE:
            return True
        # Cython can make heap types, as Python does.
        return "__reduce_cython__" in vars(base)

    return any(map(is_in_c, cls.__mro__))


def is_buffer(obj: object) -> bool:
    """Return whether ``obj`` is writable memory, such as a `bytearray` or `array.array`."""
    try:
        with memoryview(obj) as view:  # type: ignore[arg-type]
            return not view.readonly and view.c_contiguous
    except TypeError:
        return False


def opaque(obj: object) -> Kind:
    """Return the kind of an object written in C, whose changes its pickle shows."""
    description = f"a {class_name(type(obj))}, whose content no API can read"
    return Kind((), description, "", _of_content, stable=False)


def _of_content(obj: Any) -> str | None:
    """Return the digest of an object's pickle without its attributes, which have their own holder."""
    attributes = fields_of(obj)
    if not attributes:
        return _pickled(obj, _MOST_PICKLED)
    try:
        reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        # The method is the library's, and may raise anything: then nothing of the object can be compared.
        return None

    def stripped(state: Any) -> Any:
        if isinstance(state, tuple):
            return tuple(map(stripped, state))
        if isinstance(state, dict):
            return {
                name: value
                for name, value in state.items()
                if attributes.get(name, codec.MISSING) is not value
            }
        return state

    return _pickled(stripped(reduced) if isinstance(reduced, tuple) else reduced, _MOST_PICKLED)


def _of_reader(obj: Any) -> Any:
    """Return what is readable of an iterator written in C: its pickle, or its attributes and what it refers to."""
    content = _of_content(obj)
    referents = [
        *fields_of(obj).values(),
        *(v for v in gc.get_referents(obj) if not isinstance(v, type | dict)),
    ]
    parts = tuple(
        value if codec.is_json_leaf(value) else _of_iterator(value) for value in referents
    )
    return codec.MISSING if content is None and not parts else (content, parts)


_ITERATOR = Kind(
    (),
    "an iterator",
    "keep a list and an index into it (values[index % len(values)]) instead of an iterator",
    _of_iterator,
)
READER = Kind(
    (),
    "an iterator of a library, whose position no API can restore",
    "make a new one where it is used",
    _of_reader,
    stable=False,
)
_PANDAS = Kind(
    (),
    "a frame or series of pandas",
    "collect the values in a list or in a dict of lists, and make the frame when training has ended",
    lambda frame: _pickled(frame) or codec.MISSING,
)
_OBJECTS = Kind((), *codec.OBJECT_ARRAY, lambda array: tuple(array.flat))
SET = Kind((), *codec.SETS, lambda obj: (set.__sizeof__(obj), *set.__iter__(obj)))
"""A set, by its order of iteration and the size of its hash table."""

BUFFER = Kind(
    (),
    "a buffer of bytes (bytearray, array.array, ctypes)",
    "keep a NumPy array",
    lambda buffer: codec.digest_of(np.frombuffer(memoryview(buffer).tobytes(), np.uint8)),
)
_BY_CLASS = (
    Kind(
        (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable),
        "a mutable lookup table of TensorFlow",
        "keep the values in a tf.Variable, or in a dict",
        _of_table,
    ),
    Kind(
        (tf.queue.QueueBase,),
        "a TensorFlow queue whose elements no API can read",
        "use collections.deque",
        lambda queue: 0 if int(queue.size()) == 0 else codec.MISSING,
    ),
    Kind(
        (iterator_ops.OwnedIterator,),
        "an iterator over a tf.data.Dataset",
        "make a new iterator where it is used",
        _of_dataset_iterator,
        entered=False,
    ),
    Kind(
        (io.StringIO, io.BytesIO),
        "a stream in memory",
        "keep the texts in a list",
        lambda stream: None if stream.closed else (stream.getvalue(), stream.tell()),
        entered=False,
    ),
    Kind(
        (io.IOBase,),
        "an open file that was closed, written to or read during training",
        "open it before the training and only write to it, or open it in the function that reads or writes it, or read "
        "all of it before the training",
        _of_file,
        entered=False,
    ),
    Kind(
        (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
        "a generator",
        "keep the values that it continues from in attributes, and compute the next one in a method; give an image "
        "iterator of Keras itself as the data, Data(train=iterator)",
        _of_frame,
    ),
    Kind(
        (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
        "a mapping or set with weak references",
        "use a dict, and delete the entries that are not needed any more",
        _of_weak,
    ),
    Kind(
        (contextvars.ContextVar,),
        "a context variable",
        "keep the value in an attribute or in a variable of the module",
        lambda variable: (variable.get(codec.MISSING),),
    ),
    Kind(
        (np.random.SeedSequence,),
        "a seed sequence that has spawned others",
        "seed each generator by its number: np.random.default_rng([seed, number])",
        lambda seeds: seeds.n_children_spawned,
    ),
)
KINDS = (_ITERATOR, READER, _PANDAS, _OBJECTS, BUFFER, *_BY_CLASS)
"""All kinds, for the documentation."""


def kind_of(obj: Any) -> Kind | None:
    """Return the kind of an object whose changes are refused; None for other objects."""
    cls = type(obj)
    for kind in _BY_CLASS:
        if isinstance(obj, kind.classes):
            return kind
    if module_of(cls).partition(".")[0] == "pandas" and cls.__name__ in ("DataFrame", "Series"):
        return _PANDAS
    if isinstance(obj, np.ndarray) and obj.dtype == object:
        return _OBJECTS
    return None if _reduced_iterator(obj) is None else _ITERATOR
