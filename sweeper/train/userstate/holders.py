"""Holders of objects: reading, comparison and restore in place of their contents.

No code of the user is run: attributes are read and written without properties and ``__setattr__``,
containers by methods of their built-in classes. The initial contents are stored by reference, so
comparing an unchanged object is cheap.

Variables of closures, modules, classes, the environment or contexts may be unbound. Only those that the
reached code uses, or that the user's own class has, are changed.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, ClassVar

import numpy as np

from sweeper.inspection.sorts import delete_field, fields_of, list_in_wrapper, set_field
from sweeper.train.codec.form import MISSING, UnplaceableError, same

Contents = tuple[list[Any], list[Any]]
"""Keys and values, in order."""

NAMED = "named"
ORDERED = "ordered"
KEYED = "keyed"


class Holder:
    """An object with state, and its contents at the start of training.

    Attributes:
        path: Path of the object for the user; unique, and the same in every process.
        obj: The object.
    """

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
    """A holder of other objects, by keys.

    Attributes:
        shape: Form of the contents: by name, in an order, or by keys in an order.
        part: The user's word for a named part; empty for an object with one part.
        keys: Initial keys.
        values: Initial values.
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
        if not all(map(is_, values, self.values)) and not all(map(same, values, self.values)):
            return True
        return not all(map(is_, keys, self.keys)) and not all(map(same, keys, self.keys))

    def reset(self) -> None:
        self.write(self.keys, self.values)


class Attributes(Structure):
    """The attributes of an object.

    Args:
        ignored: Names that are not the user's.
        watched: The only names that are compared; None for all.
    """

    __slots__ = ("as_before", "ignored", "watched")
    shape = NAMED

    def __init__(
        self,
        obj: Any,
        path: str,
        ignored: frozenset[str] = frozenset(),
        watched: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(obj, path)
        self.ignored = ignored
        self.watched = watched
        self.as_before: tuple[list[str], Sequence[Any]] | None = None
        """All names and the compared values when the object was last found unchanged: if both are
        identical, it is unchanged."""

    def _fields(self) -> dict[str, Any]:
        obj = self.obj
        return obj.__dict__ if type(obj) is types.FunctionType else fields_of(obj)

    def changed(self) -> bool:
        fields, before = self._fields(), self.as_before
        if before is not None:
            names, values = before
            # Fast path: a model of 200 layers has 12,000 attributes.
            if [*fields] == names and all(map(is_, self._compared_values(fields), values)):
                return False
        if super().changed():
            return True
        self.as_before = _shared_names(tuple(fields)), [*self._compared_values(fields)]
        return False

    def _compared_values(self, fields: dict[str, Any]) -> Iterable[Any]:
        """Return the values to compare while the names are the same."""
        return fields.values() if self.watched is None else map(fields.get, self.watched)

    def reset(self) -> None:
        self.as_before = None
        super().reset()

    def read(self) -> Contents:
        fields = self._fields()
        if self.watched is not None:
            more = [n for n in fields if n not in self.ignored] if self.ignored else []
            names = [*self.watched, *more]
            return names, [fields.get(name, MISSING) for name in names]
        if not self.ignored:
            return list(fields), list(fields.values())
        names = [name for name in fields if name not in self.ignored]
        return names, [fields[name] for name in names]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        now, _ = self.read()
        for name in now:
            if name not in keys:
                delete_field(self.obj, name)
        for name, value in zip(keys, values, strict=True):
            if value is MISSING:
                delete_field(self.obj, name)
            else:
                set_field(self.obj, name, value)


@functools.cache
def _shared_names(names: tuple[str, ...]) -> list[str]:
    """Return the names as a list that is shared by objects with equal names, and must not be changed."""
    return list(names)


class ListItems(Structure):
    """The items of a list, a deque or an array of objects."""

    __slots__ = ("kind",)

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.kind: Any = next(k for k in (list, deque, np.ndarray) if isinstance(obj, k))

    def changed(self) -> bool:
        obj, began = self.obj, self.values
        if type(obj) is list and len(obj) == len(began) and all(map(is_, obj, began)):
            return False
        return super().changed()

    def read(self) -> Contents:
        if self.kind is np.ndarray:
            return [], list(self.obj.ravel())
        stored = list_in_wrapper(self.obj)
        return [], list(self.kind.__iter__(self.obj if stored is None else stored))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        if self.kind is np.ndarray:
            flat = np.empty(len(values), object)
            for index, value in enumerate(values):
                flat[index] = value
            self.obj[...] = flat.reshape(self.obj.shape)
            return
        if self.kind is deque:
            deque.clear(self.obj)
            deque.extend(self.obj, values)
            return
        stored = list_in_wrapper(self.obj)
        if stored is not None:
            stored[:] = values
        list.__setitem__(self.obj, slice(None), list(values))


class DictItems(Structure):
    """The items of a dict, of any of its kinds."""

    __slots__ = ()
    shape = KEYED

    def read(self) -> Contents:
        return list(dict.keys(self.obj)), list(dict.values(self.obj))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        kind: Any = OrderedDict if isinstance(self.obj, OrderedDict) else dict
        kind.clear(self.obj)
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(self.obj, key, value)


class SetItems(Structure):
    """The members of a set, in its order of iteration, and the size of its hash table."""

    __slots__ = ("copy", "size")

    def begin(self) -> None:
        super().begin()
        self.size = set.__sizeof__(self.obj)
        self.copy = set.copy(self.obj)

    def changed(self) -> bool:
        return set.__sizeof__(self.obj) != self.size or super().changed()

    def read(self) -> Contents:
        return [], list(set.__iter__(self.obj))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        set.clear(self.obj)
        set.update(self.obj, values)

    def reset(self) -> None:
        # The table of a set is copied if it has the same size; that for a dict's keys is allocated at once.
        for source in (self.copy, self.values, dict.fromkeys(self.values)):
            set.clear(self.obj)
            set.update(self.obj, source)
            if not self.changed():
                return
        msg = "a set had another order of iteration, which cannot be restored"
        raise UnplaceableError(msg)


class Cell(Structure):
    """A variable of an enclosing function."""

    __slots__ = ()
    shape = NAMED
    part = ""

    def read(self) -> Contents:
        try:
            return ["value"], [self.obj.cell_contents]
        except ValueError:
            return ["value"], [MISSING]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        if values[0] is MISSING:
            del self.obj.cell_contents
        else:
            self.obj.cell_contents = values[0]


class ModuleVariables(Structure):
    """Variables of a user's module that the reached code uses."""

    __slots__ = ("names",)
    shape = NAMED
    part = "variable"

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        self.names: dict[str, None] = {}

    def read(self) -> Contents:
        own = self.obj if isinstance(self.obj, dict) else vars(self.obj)
        return list(self.names), [own.get(name, MISSING) for name in self.names]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        own = self.obj if isinstance(self.obj, dict) else vars(self.obj)
        for name, value in zip(keys, values, strict=True):
            if value is not MISSING:
                own[name] = value
            else:
                own.pop(name, None)


class ClassAttributes(Structure):
    """Attributes of a user's class, without those of its bases."""

    __slots__ = ()
    shape = NAMED

    def read(self) -> Contents:
        own = type.__dict__["__dict__"].__get__(self.obj)
        names = [name for name in own if not name.startswith(("__", "_abc_"))]
        return names, [own[name] for name in names]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for name in self.read()[0]:
            if name not in keys:
                type.__delattr__(self.obj, name)
        own = type.__dict__["__dict__"].__get__(self.obj)
        for name, value in zip(keys, values, strict=True):
            if own.get(name, MISSING) is not value:
                type.__setattr__(self.obj, name, value)


class Environment(Structure):
    """The process's environment variables."""

    __slots__ = ("stored",)
    shape = NAMED

    def begin(self) -> None:
        super().begin()
        self.stored = dict(self.obj._data)

    def changed(self) -> bool:
        # The stored bytes, because reading a variable decodes it.
        return bool(self.obj._data != self.stored)

    def read(self) -> Contents:
        return list(self.obj.keys()), list(self.obj.values())

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for name in set(self.obj) - set(keys):
            del self.obj[name]
        for name, value in zip(keys, values, strict=True):
            if self.obj.get(name) != value:
                self.obj[name] = value
