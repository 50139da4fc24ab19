"""Values that only an object's own interface tells: where it stands, or what is inside it.

Iterators, files, tables, queues and caches. Where there is no way to write one down, or none to put
it back, a change is refused by name.
"""

from __future__ import annotations

import gc
import io
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

from sweeper.inspection.walk import cached_values, frame_of
from sweeper.train.codec import Json, NotPlainError, Tensors, decode, encode
from sweeper.train.codec.form import MISSING, is_plain
from sweeper.train.userstate.holders.values import Value


class IteratorState(Value):
    """An iterator of a container, or of `itertools`; one that has gone on is made again."""

    __slots__ = ()

    def token(self) -> Any:
        return _token_of(self.thing, 0)


def _token_of(value: Any, depth: int) -> Any:
    if is_plain(value) or depth > _DEEPEST:
        return value
    if isinstance(value, tuple):
        return tuple(_token_of(each, depth + 1) for each in value)
    if type(value) is list:
        return ("list", tuple(map(id, value)))
    reduced = reduced_iterator(value)
    return id(value) if reduced is None else _token_of(reduced, depth + 1)


_DEEPEST = 12


def reduced_iterator(value: Any) -> tuple[Any, ...] | None:
    """Return what makes the iterator again: a function, its arguments, and a state; None for others.

    Only types of Python's own are asked, which answer without running anything or going on.
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


class Frame(Value):
    """A generator or coroutine: where its frame stands, and with which values.

    No interface could bring that back.
    """

    __slots__ = ()

    def token(self) -> Any:
        frame = frame_of(self.thing)
        if frame is None:
            return None
        # A loop comes back to the same position. What it counts by is among the frame's values, and
        # an iterator that it goes over lies on the frame's stack, which no attribute shows.
        held = [v for v in gc.get_referents(self.thing) if v is not frame]
        return frame.f_lasti, tuple(_token_of(value, 0) for value in held)

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        what = "a generator that has advanced"
        raise NotPlainError(key, self.thing, what)


class File(Value):
    """An open file: where it is read, or all that a stream in memory holds."""

    __slots__ = ()

    def token(self) -> Any:
        if self.thing.closed:
            return "closed"
        if isinstance(self.thing, io.StringIO | io.BytesIO):
            return self.thing.getvalue(), self.thing.tell()
        if self.thing in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            return "output"
        try:
            return self.thing.tell()
        except (OSError, ValueError):
            # A text file that is being iterated over tells no position, and one of a pipe has none.
            return _raw_position(self.thing)

    def capture(self, tensors: Tensors, key: str) -> Json:
        at = self.token()
        if isinstance(at, tuple) and at[0] != "raw":
            return {"content": encode(at[0], key, tensors), "at": at[1]}
        if not isinstance(at, int):
            raise NotPlainError(key, self.thing, "a file that was closed or read during training")
        if not self.thing.readable() or self.thing.writable():
            what = (
                "a file that was written to; if nothing reads it, exempt it: "
                "trial.output_only(file)"
            )
            raise NotPlainError(key, self.thing, what)
        return {"at": at}

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        if "content" in saved:
            self.thing.seek(0)
            self.thing.truncate()
            self.thing.write(decode(saved["content"], tensors))
        self.thing.seek(saved["at"])


def _raw_position(file: Any) -> Any:
    raw = getattr(getattr(file, "buffer", None), "raw", None)
    try:
        return ("raw", raw.tell(), file.buffer.tell()) if raw is not None else None
    except (OSError, ValueError):
        return None


class LookupTable(Value):
    """A mutable lookup table of TensorFlow's."""

    __slots__ = ()

    def token(self) -> Any:
        keys, values = (np.asarray(each) for each in self.thing.export())
        pairs = zip(keys.tolist(), [str(v) for v in values.tolist()], strict=True)
        return tuple(sorted(pairs, key=repr))

    def capture(self, tensors: Tensors, key: str) -> Json:
        keys, values = (np.asarray(each) for each in self.thing.export())
        return encode([keys.tolist(), values.tolist()], key, tensors)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        keys, values = decode(saved, tensors)
        there = self.thing.export()[0]
        self.thing.remove(there)
        if keys:
            self.thing.insert(
                tf.constant(keys, self.thing.key_dtype), tf.constant(values, self.thing.value_dtype)
            )


class Queue(Value):
    """A queue of TensorFlow's, which tells how much is in it and not what."""

    __slots__ = ()

    def token(self) -> Any:
        size = int(self.thing.size())
        return 0 if size == 0 else MISSING

    def changed(self) -> bool:
        return self.token() is MISSING or self.token() != self.began

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        what = "a TensorFlow queue whose elements no API can read; use collections.deque"
        raise NotPlainError(key, self.thing, what)


class DatasetIterator(Value):
    """An iterator over a ``tf.data.Dataset`` that the user's code draws from."""

    __slots__ = ()

    def token(self) -> Any:
        try:
            return self._serialized()
        except tf.errors.FailedPreconditionError:
            return MISSING

    def changed(self) -> bool:
        return self.token() is MISSING or super().changed()

    def capture(self, tensors: Tensors, key: str) -> Json:
        token = self.token()
        if token is MISSING:
            what = (
                "an iterator over a dataset with Python functions, whose position TensorFlow cannot "
                "save; make a new one where it is used"
            )
            raise NotPlainError(key, self.thing, what)
        # Comparisons know by this name what also says how far tf.data had read ahead.
        name = f"{key}/iterator"
        tensors[name] = np.frombuffer(token, np.uint8)
        return {"t": name}

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        state = tf.io.parse_tensor(np.asarray(tensors[saved["t"]]).tobytes(), tf.variant)
        gen_dataset_ops.deserialize_iterator(self.thing._iterator_resource, state)

    def _serialized(self) -> bytes:
        state = gen_dataset_ops.serialize_iterator(
            self.thing._iterator_resource, external_state_policy=2
        )
        return bytes(tf.io.serialize_tensor(state).numpy())


class Cache(Value):
    """A cache of `functools`: what it keeps can be worked out again, unless that has changed."""

    __slots__ = ()

    def token(self) -> Any:
        return tuple(map(id, cached_values(self.thing)))

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        what = (
            "a cache of functools whose function reads a value that training has changed, so it "
            "would contain other results in a resumed trial; keep the results in your own dict"
        )
        raise NotPlainError(key, self.thing, what)
