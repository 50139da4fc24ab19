"""Objects whose state is a value of their own: arrays, generators, variables, positions, tables.

Each tells its state as a token that is compared, writes it into a checkpoint and takes it back in
place. Where there is a token and no way to write it down, a change is refused by name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.train.codec import (
    Json,
    Tensors,
    assign_replicas,
    decode,
    digest_of,
    encode,
    hold_replicas,
    put_array,
    replicas_of,
    take_array,
)
from sweeper.train.codec.decoder import set_state_of_generator
from sweeper.train.codec.encoder import state_of_generator
from sweeper.train.userstate.holders.objects import Holder

SMALL = 1 << 16
"""Bytes up to which a value is kept to be put back, beside its digest."""


class Value(Holder):
    """A holder whose contents are one value."""

    __slots__ = ("began",)

    def token(self) -> Any:
        """Return what is equal while nothing has changed."""
        raise NotImplementedError

    def begin(self) -> None:
        self.began = self.token()

    def changed(self) -> bool:
        return bool(self.token() != self.began)

    def reset(self) -> None:
        """Nothing is kept that could be put back."""

    def capture(self, tensors: Tensors, key: str) -> Json:
        """Return the value now; arrays go into ``tensors`` under names that begin with ``key``.

        Raises:
            NotPlainError: It has no form that could be brought back.
        """
        raise NotImplementedError

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        """Return what of ``saved`` does not fit, in words; None where all does."""
        del saved, tensors
        return None

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Array(Value):
    """A NumPy array that can be written to, in any type but Python's objects."""

    __slots__ = ("copy",)

    def token(self) -> Any:
        return digest_of(np.ascontiguousarray(self.thing).view(np.ndarray))

    def begin(self) -> None:
        super().begin()
        self.copy = self.thing.copy() if self.thing.nbytes <= SMALL else None

    def changed(self) -> bool:
        return bool(self.thing.flags.writeable) and super().changed()

    def reset(self) -> None:
        if self.copy is not None and self.thing.flags.writeable:
            self.thing[...] = self.copy

    def capture(self, tensors: Tensors, key: str) -> Json:
        return put_array(self.thing, tensors, key)

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        array = take_array(saved, tensors)
        was, now = (
            f"{array.dtype}{list(array.shape)}",
            f"{self.thing.dtype}{list(self.thing.shape)}",
        )
        return None if was == now else f"was an array, {was}, and is {now} now"

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self.thing[...] = take_array(saved, tensors)


class Generator(Value):
    """A random generator of NumPy's or Python's."""

    __slots__ = ()

    def token(self) -> Any:
        return _comparable(state_of_generator(self.thing))

    def reset(self) -> None:
        python = isinstance(self.thing, random.Random)
        set_state_of_generator(self.thing, self.began if python else _arrays_again(self.began))

    def capture(self, tensors: Tensors, key: str) -> Json:
        return encode(state_of_generator(self.thing), key, tensors)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        set_state_of_generator(self.thing, decode(saved, tensors))


class SeedSequence(Value):
    """A seed sequence of NumPy's: how many children it has spawned, which only ever rises."""

    __slots__ = ()

    def token(self) -> Any:
        return self.thing.n_children_spawned

    def capture(self, tensors: Tensors, key: str) -> Json:
        del tensors, key
        return {"spawned": int(self.thing.n_children_spawned)}

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        del tensors
        now = self.thing.n_children_spawned
        shown = f"had spawned {saved['spawned']} children, and has spawned {now} now"
        return shown if now > saved["spawned"] else None

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del tensors
        self.thing.spawn(saved["spawned"] - self.thing.n_children_spawned)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((name, _comparable(value)) for name, value in state.items())
    if isinstance(state, np.ndarray):
        return ("array", state.dtype.str, state.tobytes())
    return state


def _arrays_again(state: Any) -> Any:
    if isinstance(state, tuple) and len(state) == 3 and state[0] == "array":
        return np.frombuffer(state[2], state[1]).copy()
    if isinstance(state, tuple):
        return {name: _arrays_again(value) for name, value in state}
    return state


class Variable(Value):
    """A Keras or TensorFlow variable: its value, and whether it is trained.

    Args:
        covered: Whether another component of the checkpoint has its value.
    """

    __slots__ = ("copy", "covered", "held")

    def __init__(self, thing: Any, path: str, *, covered: bool) -> None:
        super().__init__(thing, path)
        self.covered = covered

    def token(self) -> Any:
        trained = getattr(self.thing, "_trainable", None)
        if self.covered or not _has_value(self.thing):
            return trained
        return trained, *map(_digest_of_tensor, self._values())

    def changed(self) -> bool:
        if self.covered:
            return bool(getattr(self.thing, "_trainable", None) != self.began)
        return super().changed()

    def begin(self) -> None:
        super().begin()
        values = [] if self.covered or not _has_value(self.thing) else self._values()
        small = sum(np.asarray(value).nbytes for value in values) <= SMALL
        self.copy = [np.array(value) for value in values] if small else []

    def reset(self) -> None:
        for each, value in zip(replicas_of(self.thing), self.copy, strict=False):
            each.assign(value)
        trained = self.began[0] if isinstance(self.began, tuple) else self.began
        if trained is not None and getattr(self.thing, "_trainable", None) != trained:
            self.thing._trainable = trained

    def capture(self, tensors: Tensors, key: str) -> Json:
        saved: dict[str, Json] = {"trainable": getattr(self.thing, "_trainable", None)}
        if not self.covered:
            if self.thing.dtype == tf.string:
                saved["text"] = encode(np.asarray(self._values()[0]).tolist(), key, tensors)
            else:
                hold_replicas(self.thing, key, tensors)
                saved["t"] = key
        return saved

    def _values(self) -> list[Any]:
        """Return what the variable holds, on each replica."""
        return [each.read_value() for each in replicas_of(self.thing)]

    def mismatch(self, saved: Json, tensors: Mapping[str, Any]) -> str | None:
        if "t" not in saved or self.covered:
            return None
        array = tensors.get(saved["t"])
        if array is None:
            return f"the tensor {saved['t']!r} is missing"
        was = f"{np.dtype(array.dtype).name}{list(array.shape)}"
        dtype = keras.backend.standardize_dtype(self.thing.dtype)
        now = f"{dtype}{list(self.thing.shape)}"
        return None if was == now else f"was a variable, {was}, and is {now} now"

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        if saved["trainable"] is not None and hasattr(self.thing, "_trainable"):
            self.thing._trainable = saved["trainable"]
        if "text" in saved:
            self.thing.assign(decode(saved["text"], tensors))
        elif "t" in saved and not self.covered:
            assign_replicas(self.thing, saved["t"], tensors)


def _has_value(variable: Any) -> bool:
    """Keras's variables have none before they are initialized, in a stateless scope say."""
    return not isinstance(variable, keras.Variable) or variable._value is not None


def _digest_of_tensor(value: Any) -> str:
    array = np.asarray(value)
    return repr(array.tolist()) if array.dtype.kind == "O" else digest_of(array)
