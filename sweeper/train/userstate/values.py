"""Holders of objects whose state is one value: arrays, generators, variables, positions, caches.

Each has a token, which is compared, and captures and restores its state in place.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection.walk import cached_values
from sweeper.train.codec import (
    Json,
    NotPlainError,
    Tensors,
    decode,
    digest_of,
    encode,
    form_of,
    put_array,
    set_state_of_generator,
    state_of_generator,
    take_array,
)
from sweeper.train.replica_values import assign_replicas, hold_replicas, replicas_of
from sweeper.train.userstate.holders import Holder

SMALL = 1 << 16
"""Maximum size in bytes of a value that is copied for `Holder.reset`."""


class Value(Holder):
    """A holder whose contents are one value."""

    __slots__ = ("began",)

    def token(self) -> Any:
        """Return a value that is equal as long as the object is unchanged."""
        raise NotImplementedError

    def begin(self) -> None:
        self.began = self.token()

    def changed(self) -> bool:
        return bool(self.token() != self.began)

    def reset(self) -> None:
        """Do nothing: no copy is recorded."""

    def capture(self, tensors: Tensors, key: str) -> Json:
        """Return the current value; arrays go into ``tensors`` under names that begin with ``key``."""
        raise NotImplementedError

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        """Return a description of the mismatch of ``saved``; None if it fits."""
        del saved, tensors
        return None

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Array(Value):
    """A NumPy array of any dtype but Python objects."""

    __slots__ = ("copy",)

    def token(self) -> Any:
        return digest_of(np.ascontiguousarray(self.obj).view(np.ndarray))

    def begin(self) -> None:
        super().begin()
        self.copy = self.obj.copy() if self.obj.nbytes <= SMALL else None

    def changed(self) -> bool:
        return bool(self.obj.flags.writeable) and super().changed()

    def reset(self) -> None:
        if self.copy is not None and self.obj.flags.writeable:
            self.obj[...] = self.copy

    def capture(self, tensors: Tensors, key: str) -> Json:
        return put_array(self.obj, tensors, key)

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        was, now = form_of(take_array(saved, tensors)), form_of(self.obj)
        return None if was == now else f"was an array, {was}, and is {now} now"

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self.obj[...] = take_array(saved, tensors)


class Generator(Value):
    """A random generator of NumPy or Python."""

    __slots__ = ()

    def token(self) -> Any:
        return state_of_generator(self.obj)

    def changed(self) -> bool:
        return pickle.dumps(self.token()) != pickle.dumps(self.began)

    def reset(self) -> None:
        set_state_of_generator(self.obj, self.began)

    def capture(self, tensors: Tensors, key: str) -> Json:
        return encode(state_of_generator(self.obj), key, tensors)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        set_state_of_generator(self.obj, decode(saved, tensors))


class Variable(Value):
    """A Keras or TensorFlow variable: its value, and whether it is trained.

    Attributes:
        covered: Whether another component of the checkpoint has its value.
    """

    __slots__ = ("copy", "covered")

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.covered = False

    def token(self) -> Any:
        trained = getattr(self.obj, "_trainable", None)
        if self.covered or not _has_value(self.obj):
            return trained
        return trained, *map(_digest_of_tensor, self._values())

    def changed(self) -> bool:
        if self.covered:
            return bool(getattr(self.obj, "_trainable", None) != self.began)
        return super().changed()

    def begin(self) -> None:
        super().begin()
        values = [] if self.covered or not _has_value(self.obj) else self._values()
        small = sum(np.asarray(value).nbytes for value in values) <= SMALL
        self.copy = [np.array(value) for value in values] if small else []

    def reset(self) -> None:
        for each, value in zip(replicas_of(self.obj), self.copy, strict=False):
            each.assign(value)
        trained = self.began[0] if isinstance(self.began, tuple) else self.began
        if trained is not None and getattr(self.obj, "_trainable", None) != trained:
            self.obj._trainable = trained

    def capture(self, tensors: Tensors, key: str) -> Json:
        saved: dict[str, Json] = {"trainable": getattr(self.obj, "_trainable", None)}
        if not self.covered:
            if self.obj.dtype == tf.string:
                saved["text"] = encode(np.asarray(self._values()[0]).tolist(), key, tensors)
            else:
                hold_replicas(self.obj, key, tensors)
                saved["t"] = key
        return saved

    def _values(self) -> list[Any]:
        """Return the variable's value on each replica."""
        return [each.read_value() for each in replicas_of(self.obj)]

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        if "t" not in saved or self.covered:
            return None
        array = tensors.get(saved["t"])
        if array is None:
            return f"the tensor {saved['t']!r} is missing"
        was, now = form_of(array), form_of(self.obj)
        return None if was == now else f"was a variable, {was}, and is {now} now"

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        if saved["trainable"] is not None and hasattr(self.obj, "_trainable"):
            self.obj._trainable = saved["trainable"]
        if "text" in saved:
            self.obj.assign(decode(saved["text"], tensors))
        elif "t" in saved and not self.covered:
            assign_replicas(self.obj, saved["t"], tensors)


def _has_value(variable: Any) -> bool:
    """Return whether the variable is initialized; in a stateless scope, Keras's are not."""
    return not isinstance(variable, keras.Variable) or variable._value is not None


def _digest_of_tensor(value: Any) -> str:
    array = np.asarray(value)
    return repr(array.tolist()) if array.dtype.kind == "O" else digest_of(array)


class Cache(Value):
    """A cache of `functools`, whose results can be computed again unless their inputs have changed."""

    __slots__ = ()

    def token(self) -> Any:
        return tuple(map(id, cached_values(self.obj)))

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors
        what = (
            "a cache of functools whose function reads a value that training has changed, so it "
            "would contain other results in a resumed trial; keep the results in your own dict"
        )
        raise NotPlainError(key, self.obj, what)
