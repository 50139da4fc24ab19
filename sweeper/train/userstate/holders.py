"""Holders of objects: reading, comparison and restore in place of their contents.

No code of the user is run: attributes are read and written without properties and ``__setattr__``,
containers by methods of their built-in classes. The initial contents are stored by reference, so
comparing an unchanged object is cheap.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Sequence
from operator import is_
from typing import Any, ClassVar

from sweeper.inspection.sorts import delete_field, fields_of, list_in_wrapper, set_field
from sweeper.train.codec import MISSING, UnplaceableError, base_of, same

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
            if name not in keys and value is not MISSING:
                self.drop(name)
        now = self.fields()
        for name, value in zip(keys, values, strict=True):
            if value is MISSING:
                self.drop(name)
            elif now.get(name, MISSING) is not value:
                self.put(name, value)


class Attributes(Named):
    """The attributes of an object.

    Attributes:
        ignored: Names that are not compared.
        noted: Names and values of all attributes when the object was last found unchanged.
    """

    __slots__ = ("ignored", "noted")

    def __init__(self, obj: Any, path: str, ignored: frozenset[str] = frozenset()) -> None:
        super().__init__(obj, path)
        self.ignored = ignored

    def begin(self) -> None:
        super().begin()
        self._note(self._all())

    def changed(self) -> bool:
        # Fast path: a model of 200 layers has 12,000 attributes.
        now = self._all()
        names, values = self.noted
        if [*now] == names and all(map(is_, now.values(), values)):
            return False
        if super().changed():
            return True
        self._note(now)
        return False

    def _note(self, fields: dict[str, Any]) -> None:
        self.noted = [*fields], [*fields.values()]

    def reset(self) -> None:
        super().reset()
        self._note({})

    def _all(self) -> dict[str, Any]:
        obj = self.obj
        return obj.__dict__ if type(obj) is types.FunctionType else fields_of(obj)

    def fields(self) -> dict[str, Any]:
        if not self.ignored:
            return self._all()
        return {name: value for name, value in self._all().items() if name not in self.ignored}

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

    def changed(self) -> bool:
        obj, began = self.obj, self.values
        if type(obj) is list and len(obj) == len(began) and all(map(is_, obj, began)):
            return False
        return super().changed()

    def read(self) -> Contents:
        stored = list_in_wrapper(self.obj)
        return [], list(self.kind.__iter__(self.obj if stored is None else stored))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        stored = list_in_wrapper(self.obj)
        if stored is not None:
            stored[:] = values
        self.kind.clear(self.obj)
        self.kind.extend(self.obj, values)


class DictItems(Structure):
    """The items of a dict, of any of its kinds."""

    __slots__ = ()
    shape = KEYED

    def read(self) -> Contents:
        return list(dict.keys(self.obj)), list(dict.values(self.obj))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        kind: Any = base_of(type(self.obj))
        kind.clear(self.obj)
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(self.obj, key, value)


class SetItems(Structure):
    """The members of a set, in its order of iteration, and the size of its hash table."""

    __slots__ = ("size",)

    def begin(self) -> None:
        super().begin()
        self.size = set.__sizeof__(self.obj)

    def changed(self) -> bool:
        return set.__sizeof__(self.obj) != self.size or super().changed()

    def read(self) -> Contents:
        return [], list(set.__iter__(self.obj))

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Empty the set; only an empty one is captured."""
        del keys, values
        set.clear(self.obj)

    def reset(self) -> None:
        msg = "a set, whose order of iteration cannot be restored"
        raise UnplaceableError(msg)


class Cell(Named):
    """A variable of an enclosing function."""

    __slots__ = ()
    part = ""

    def fields(self) -> dict[str, Any]:
        try:
            return {"value": self.obj.cell_contents}
        except ValueError:
            return {"value": MISSING}

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
        return {name: self.obj.get(name, MISSING) for name in names}

    def put(self, name: str, value: Any) -> None:
        self.obj[name] = value

    def drop(self, name: str) -> None:
        self.obj.pop(name, None)


class ClassAttributes(Named):
    """Attributes of a user's class, without those of its bases."""

    __slots__ = ()

    def fields(self) -> dict[str, Any]:
        own = type.__dict__["__dict__"].__get__(self.obj)
        return {name: own[name] for name in own if not name.startswith(("__", "_abc_"))}

    def put(self, name: str, value: Any) -> None:
        type.__setattr__(self.obj, name, value)

    def drop(self, name: str) -> None:
        type.__delattr__(self.obj, name)
