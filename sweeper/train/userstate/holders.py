"""Holders of objects: reading, comparison and restore in place of their contents.

No code of the user is run: attributes are read and written without properties and ``__setattr__``,
containers by methods of their built-in classes. The initial contents are stored by reference, so
comparing an unchanged object is cheap. An object whose state is one value (an array, a generator, a variable, a
cache) has a token, which is compared.
"""

import pickle
import types
from collections import deque
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection.sorts import delete_field, fields_of, list_in_wrapper, set_field
from sweeper.inspection.walk import cached_values
from sweeper.train import codec

Contents = tuple[list[Any], list[Any]]
"""Keys and values, in order."""

NAMED = "named"
ORDERED = "ordered"
KEYED = "keyed"


class Holder:
    """An object with state, its contents at the start of training, and its unique path, equal in every process."""

    __slots__ = ("obj", "path")

    def __init__(self, obj: Any, path: str) -> None:
        self.obj = obj
        self.path = path

    def begin(self) -> None:
        """Record the current contents as the initial ones."""
        raise NotImplementedError

    def changed(self) -> bool:
        """Return whether the contents differ from the initial ones."""
        raise NotImplementedError

    def reset(self) -> None:
        """Restore the initial contents, as far as they are recorded."""
        raise NotImplementedError


class Structure(Holder):
    """A holder of other objects, with its initial ``keys`` and ``values``.

    ``part`` is the user's word for a named part; empty for an object with one part.
    """

    __slots__ = ("keys", "values")
    shape: ClassVar[str] = ORDERED
    part: ClassVar[str] = "attribute"

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.keys: list[Any] = []
        self.values: list[Any] = []

    def read(self) -> Contents:
        raise NotImplementedError

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self.keys, self.values = self.read()

    def changed(self) -> bool:
        keys, values = self.read()
        if len(values) != len(self.values) or len(keys) != len(self.keys):
            return True
        if not all(map(is_, values, self.values)) and not all(map(codec.same, values, self.values)):
            return True
        return not all(map(is_, keys, self.keys)) and not all(map(codec.same, keys, self.keys))

    def reset(self) -> None:
        self.write(self.keys, self.values)


class Named(Structure):
    """A holder of named values, each of which can be set and deleted alone."""

    __slots__ = ()
    shape = NAMED

    def fields(self) -> dict[str, Any]:
        """Return the values by name; `MISSING` for a variable that is not bound."""
        raise NotImplementedError

    def put(self, name: str, value: Any) -> None:
        raise NotImplementedError

    def drop(self, name: str) -> None:
        """Delete the value of ``name``, if there is one."""
        raise NotImplementedError

    def read(self) -> Contents:
        fields = self.fields()
        return list(fields), list(fields.values())

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for name, value in list(self.fields().items()):
            if name not in keys and value is not codec.MISSING:
                self.drop(name)
        current = self.fields()
        for name, value in zip(keys, values, strict=True):
            if value is codec.MISSING:
                self.drop(name)
            elif current.get(name, codec.MISSING) is not value:
                self.put(name, value)


class Attributes(Named):
    """The attributes of an object, without the ``ignored`` names."""

    __slots__ = ("ignored",)

    def __init__(self, obj: Any, path: str, ignored: frozenset[str] = frozenset()) -> None:
        super().__init__(obj, path)
        self.ignored = ignored

    def fields(self) -> dict[str, Any]:
        obj = self.obj
        attributes = obj.__dict__ if type(obj) is types.FunctionType else fields_of(obj)
        return {n: value for n, value in attributes.items() if n not in self.ignored}

    def put(self, name: str, value: Any) -> None:
        set_field(self.obj, name, value)

    def drop(self, name: str) -> None:
        delete_field(self.obj, name)


class ListItems(Structure):
    """The items of a list or a deque."""

    __slots__ = ("kind",)

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.kind: Any = deque if isinstance(obj, deque) else list

    def read(self) -> Contents:
        wrapped = list_in_wrapper(self.obj)
        return [], list(self.kind.__iter__(self.obj if wrapped is None else wrapped))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        wrapped = list_in_wrapper(self.obj)
        if wrapped is not None:
            wrapped[:] = values
        self.kind.clear(self.obj)
        self.kind.extend(self.obj, values)


class DictItems(Structure):
    """The items of a dict, of any of its kinds."""

    __slots__ = ()
    shape = KEYED

    def read(self) -> Contents:
        return list(dict.keys(self.obj)), list(dict.values(self.obj))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        kind: Any = codec.base_of(type(self.obj))
        kind.clear(self.obj)
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(self.obj, key, value)


class Cell(Named):
    """A variable of an enclosing function."""

    __slots__ = ()
    part = ""

    def fields(self) -> dict[str, Any]:
        try:
            return {"value": self.obj.cell_contents}
        except ValueError:
            return {"value": codec.MISSING}

    def put(self, name: str, value: Any) -> None:
        del name
        self.obj.cell_contents = value

    def drop(self, name: str) -> None:
        del name
        del self.obj.cell_contents


class MappingVariables(Named):
    """Variables of a user's module that the reached code uses, or all of the process's environment."""

    __slots__ = ("names", "whole")
    part = "variable"

    def __init__(self, obj: Any, path: str, *, whole: bool = False) -> None:
        super().__init__(obj, path)
        self.names: dict[str, None] = {}
        self.whole = whole

    def fields(self) -> dict[str, Any]:
        names = list(self.obj) if self.whole else self.names
        return {name: self.obj.get(name, codec.MISSING) for name in names}

    def put(self, name: str, value: Any) -> None:
        self.obj[name] = value

    def drop(self, name: str) -> None:
        self.obj.pop(name, None)


_CACHES_OF_CLASSES = (
    "__",
    "_abc_",
    "_value2member_map_",
    "_hashable_values_",
    "_unhashable_values_",
)
"""Beginnings of the names in a class that are Python's own: caches of abstract classes and of enumerations."""


class ClassAttributes(Named):
    """Attributes of a user's class, without those of its bases."""

    __slots__ = ()

    def fields(self) -> dict[str, Any]:
        attributes = type.__dict__["__dict__"].__get__(self.obj)
        return {
            name: attributes[name] for name in attributes if not name.startswith(_CACHES_OF_CLASSES)
        }

    def put(self, name: str, value: Any) -> None:
        type.__setattr__(self.obj, name, value)

    def drop(self, name: str) -> None:
        type.__delattr__(self.obj, name)


SMALL = 1 << 16
"""Maximum size in bytes of a value that is copied for `Holder.reset`."""


class Value(Holder):
    """A holder whose contents are one value."""

    __slots__ = ("initial",)

    def token(self) -> Any:
        """Return a value that is equal as long as the object is unchanged."""
        raise NotImplementedError

    def begin(self) -> None:
        self.initial = self.token()

    def changed(self) -> bool:
        return bool(self.token() != self.initial)

    def reset(self) -> None:
        """Do nothing: no copy is recorded."""

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        """Return the current value; arrays go into ``tensors`` under names that begin with ``key``."""
        raise NotImplementedError

    def mismatch(self, saved: codec.Json, tensors: Mapping[str, Any]) -> str | None:
        """Return a description of the mismatch of ``saved``; None if it fits."""
        del saved, tensors
        return None

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Array(Value):
    """A NumPy array of any dtype but Python objects."""

    __slots__ = ("copy",)

    def token(self) -> Any:
        digest = codec.digest_of(np.ascontiguousarray(self.obj).view(np.ndarray))
        if isinstance(self.obj, np.ma.MaskedArray):
            return digest, codec.digest_of(np.ma.getmaskarray(self.obj)), repr(self.obj.fill_value)
        return digest

    def begin(self) -> None:
        super().begin()
        self.copy = self.obj.copy() if self.obj.nbytes <= SMALL else None

    def changed(self) -> bool:
        return bool(self.obj.flags.writeable) and super().changed()

    def reset(self) -> None:
        if self.copy is not None and self.obj.flags.writeable:
            self._assign(self.copy)

    def _assign(self, values: Any) -> None:
        if not isinstance(self.obj, np.ma.MaskedArray):
            self.obj[...] = values
            return
        self.obj.data[...] = values.data
        hard = self.obj.hardmask
        # A hard mask would keep what it has masked.
        self.obj.soften_mask()
        self.obj.mask = np.ma.getmaskarray(values)
        if hard:
            self.obj.harden_mask()
        self.obj.fill_value = values.fill_value

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        return codec.put_array(self.obj, tensors, key)

    def mismatch(self, saved: codec.Json, tensors: Mapping[str, Any]) -> str | None:
        saved_form = codec.form_of(codec.take_array(saved, tensors))
        form = codec.form_of(self.obj)
        return None if saved_form == form else f"was an array, {saved_form}, and is {form} now"

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        self._assign(codec.take_array(saved, tensors))


class Generator(Value):
    """A random generator of NumPy or Python."""

    __slots__ = ()

    def token(self) -> Any:
        return codec.state_of_generator(self.obj)

    def changed(self) -> bool:
        return pickle.dumps(self.token()) != pickle.dumps(self.initial)

    def reset(self) -> None:
        codec.set_state_of_generator(self.obj, self.initial)

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        return codec.encode(codec.state_of_generator(self.obj), key, tensors)

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        codec.set_state_of_generator(self.obj, codec.decode(saved, tensors))


class Variable(Value):
    """A variable: its value, unless ``covered`` by another component of the checkpoint, and whether it is trained."""

    __slots__ = ("copy", "covered")

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.covered = False

    def token(self) -> Any:
        trainable = getattr(self.obj, "_trainable", None)
        if self.covered or not _has_value(self.obj):
            return trainable
        return trainable, *map(_digest_of_tensor, self._values())

    def begin(self) -> None:
        super().begin()
        values = [] if self.covered or not _has_value(self.obj) else self._values()
        small = sum(np.asarray(value).nbytes for value in values) <= SMALL
        self.copy = [np.array(value) for value in values] if small else []

    def reset(self) -> None:
        for replica, value in zip(codec.replicas_of(self.obj), self.copy, strict=False):
            replica.assign(value)
        trainable = self.initial[0] if isinstance(self.initial, tuple) else self.initial
        if trainable is not None and getattr(self.obj, "_trainable", None) != trainable:
            # A tf.Variable has no public setter.
            self.obj._trainable = trainable

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        saved: dict[str, codec.Json] = {"trainable": getattr(self.obj, "_trainable", None)}
        if not self.covered:
            if self.obj.dtype == tf.string:
                saved["text"] = codec.encode(np.asarray(self._values()[0]).tolist(), key, tensors)
            else:
                codec.hold_replicas(self.obj, key, tensors)
                saved["t"] = key
        return saved

    def _values(self) -> list[Any]:
        return [replica.read_value() for replica in codec.replicas_of(self.obj)]

    def mismatch(self, saved: codec.Json, tensors: Mapping[str, Any]) -> str | None:
        if "t" not in saved or self.covered:
            return None
        array = tensors.get(saved["t"])
        if array is None:
            return f"the tensor {saved['t']!r} is missing"
        saved_form = codec.form_of(array)
        form = codec.form_of(self.obj)
        return None if saved_form == form else f"was a variable, {saved_form}, and is {form} now"

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        if saved["trainable"] is not None and hasattr(self.obj, "_trainable"):
            self.obj._trainable = saved["trainable"]
        if "text" in saved:
            self.obj.assign(codec.decode(saved["text"], tensors))
        elif "t" in saved and not self.covered:
            codec.assign_replicas(self.obj, saved["t"], tensors)


def _has_value(variable: Any) -> bool:
    """Return whether the variable is initialized; in a stateless scope, Keras's are not."""
    return not isinstance(variable, keras.Variable) or variable._value is not None


def _digest_of_tensor(value: Any) -> str:
    array = np.asarray(value)
    return repr(array.tolist()) if array.dtype.kind == "O" else codec.digest_of(array)


class Cache(Value):
    """A cache of `functools`, whose results can be computed again unless their inputs have changed."""

    __slots__ = ()

    def token(self) -> Any:
        return tuple(map(id, cached_values(self.obj)))

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        del tensors
        description = (
            "a cache of functools whose function reads a value that training has changed, so it "
            "would contain other results in a resumed trial; keep the results in your own dict"
        )
        raise codec.NotPlainError(key, self.obj, description)
