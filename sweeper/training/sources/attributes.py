"""What the user's own data object changes in itself, such as an order that ``on_epoch_end`` draws.

A data object mostly holds what never changes, often all the samples; putting that into every
checkpoint would be absurd. So each attribute is fingerprinted when the object is fresh, and only
those whose fingerprint has changed are captured. A fresh object of a resumed trial has the others
already, because the data factory made them from the same seed.
"""

from __future__ import annotations

import enum
import functools
import json
import random
import re
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.encoding import Json, NotPlainError, Tensors, decode, encode

__all__ = ["OwnState"]

_UNCHANGING = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    PurePath,
    enum.Enum,
    np.dtype,
    tf.DType,
    range,
    slice,
    re.Pattern,
    np.ufunc,
)


class OwnState:
    """The state of one data object: its ``get_state()``, or the attributes that have changed.

    Args:
        owner: The object, as fresh as the data factory and a first look at its batches left it.
        told: What the user calls it, for errors.
        ignored: Names of attributes that are not the user's.
        changes: Whether the object has code that is there to change it. An attribute that cannot
            be captured is then refused, and otherwise told through ``notice``.
        notice: See ``changes``.

    Raises:
        UncapturableError: An attribute that no checkpoint can hold, and that may change.
    """

    def __init__(
        self,
        owner: Any,
        *,
        told: str,
        ignored: frozenset[str],
        changes: bool,
        notice: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._told = told
        self._ignored = ignored
        self._changes = changes
        self._opaque: set[str] = set()
        self._by_methods = callable(getattr(owner, "get_state", None)) and callable(
            getattr(owner, "set_state", None)
        )
        self._fresh = {} if self._by_methods else self.digests()
        for name in sorted(self._opaque):
            notice(
                f"{told}: attribute {name!r} is {_what(getattr(owner, name))}, which a checkpoint "
                "cannot hold; it is taken to stay as it is. If training changes it, give "
                f"{type(owner).__qualname__} get_state(self) and set_state(self, state)"
            )

    def digests(self) -> dict[str, str]:
        """A fingerprint of every attribute; of what ``get_state`` gives, where there is one."""
        if self._by_methods:
            tensors: Tensors = {}
            return {"get_state": _digest(self._own(tensors, ""), tensors)}
        found = {}
        for name, value in self._attributes():
            tensors = {}
            encoded = self._encode(name, value, name, tensors, copy=False)
            if name not in self._opaque:
                found[name] = _digest(encoded, tensors)
        return found

    def capture(self, path: str, tensors: Tensors) -> Json:
        """What has changed; arrays are copied into ``tensors``, under names below ``path``.

        Raises:
            UncapturableError: An attribute has come to hold what no checkpoint can.
        """
        if self._by_methods:
            return {"state": self._own(tensors, path)}
        saved: dict[str, Json] = {}
        now = self.digests()
        for name, value in self._attributes():
            if name in now and self._fresh.get(name) != now[name]:
                saved[name] = self._encode(name, value, f"{path}/{name}", tensors, copy=True)
        gone = sorted(set(self._fresh) - set(now))
        return {"changed": saved, "gone": gone}

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Bring back what `capture` found to have changed.

        Raises:
            RestoreError: An attribute does not fit.
        """
        if "state" in saved:
            if not self._by_methods:
                msg = f"{self._told} was captured by get_state(), and has no such method now"
                raise RestoreError(msg)
            self._owner.set_state(decode(saved["state"], tensors))
            return
        for name in saved["gone"]:
            if hasattr(self._owner, name):
                delattr(self._owner, name)
        for name, entry in saved["changed"].items():
            fresh = getattr(self._owner, name, None)
            try:
                _put(self._owner, name, entry, tensors, fresh)
            except (AttributeError, TypeError, ValueError) as error:
                msg = f"{self._told}, attribute {name!r}: {error}"
                raise RestoreError(msg) from None

    def _own(self, tensors: Tensors, path: str) -> Json:
        try:
            return encode(self._owner.get_state(), f"{path}/state", tensors)
        except NotPlainError as error:
            msg = (
                f"{self._told}: get_state() returned something that a checkpoint cannot hold: "
                f"{error}; return numbers, strings, arrays and containers of these"
            )
            raise UncapturableError(msg) from None

    def _attributes(self) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in vars(self._owner).items()
            if name not in self._ignored and not isinstance(value, _UNCHANGING)
        ]

    def _encode(self, name: str, value: Any, path: str, tensors: Tensors, *, copy: bool) -> Json:
        try:
            return _take(value, path, tensors, copy=copy)
        except NotPlainError as error:
            if not self._changes:
                self._opaque.add(name)
                return None
            kind = type(self._owner).__qualname__
            msg = (
                f"{self._told}: attribute {name!r} is {error.what}, which a checkpoint cannot "
                f"hold, and {kind} changes itself between epochs; give {kind} two methods, "
                "get_state(self), which returns plain values, arrays or containers of these, and "
                "set_state(self, state), which takes them back"
            )
            raise UncapturableError(msg) from None


def _take(value: Any, path: str, tensors: Tensors, *, copy: bool) -> Json:
    """`encode`, and the generators, layers and arrays of strings that data objects hold."""
    if isinstance(value, np.random.Generator):
        return {"numpy": encode(value.bit_generator.state, path, tensors)}
    if isinstance(value, np.random.RandomState):
        return {"legacy": encode(value.get_state(legacy=False), path, tensors)}
    if isinstance(value, random.Random):
        return {"python": encode(value.getstate(), path, tensors)}
    if isinstance(value, keras.layers.Layer | keras.random.SeedGenerator):
        variables = [value.state] if hasattr(value, "state") else list(value.variables)
        return {"variables": encode(variables, path, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return {"strings": encode(value.tolist(), path, tensors), "dtype": str(value.dtype)}
    return {"value": encode(value, path, tensors, copy=copy)}


def _put(owner: Any, name: str, saved: Json, tensors: Mapping[str, Any], fresh: Any) -> None:
    if "numpy" in saved:
        fresh.bit_generator.state = decode(saved["numpy"], tensors)
    elif "legacy" in saved:
        fresh.set_state(decode(saved["legacy"], tensors))
    elif "python" in saved:
        fresh.setstate(decode(saved["python"], tensors))
    elif "variables" in saved:
        variables = [fresh.state] if hasattr(fresh, "state") else list(fresh.variables)
        decode(saved["variables"], tensors, variables)
    elif "strings" in saved:
        setattr(owner, name, np.array(decode(saved["strings"], tensors), dtype=saved["dtype"]))
    else:
        setattr(owner, name, decode(saved["value"], tensors, fresh))


def _digest(encoded: Json, tensors: Mapping[str, Any]) -> str:
    # A container's names of tensors depend on the path alone, so they add nothing that differs.
    digest = xxhash.xxh3_128(json.dumps(encoded).encode())
    for name, value in tensors.items():
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _what(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
