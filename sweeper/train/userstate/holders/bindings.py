"""Names that are bound outside of objects: closures, modules, classes, the environment, contexts.

Holders like those of objects' contents; here a name may be unbound, and no others than those that
the reached code uses, or that the user's own class has, are touched.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

from sweeper.train.codec.form import MISSING
from sweeper.train.userstate.holders.objects import NAMED, Contents, Structure


class Cell(Structure):
    """A variable of an enclosing function."""

    __slots__ = ()
    shape = NAMED

    def read(self) -> Contents:
        try:
            return ["value"], [self.thing.cell_contents]
        except ValueError:
            return ["value"], [MISSING]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        if values[0] is MISSING:
            del self.thing.cell_contents
        else:
            self.thing.cell_contents = values[0]


class ModuleVariables(Structure):
    """Variables of a module of the user's that the reached code uses."""

    __slots__ = ("names",)
    shape = NAMED

    def __init__(self, thing: Any, path: str) -> None:
        super().__init__(thing, path)
        self.names: dict[str, None] = {}

    def read(self) -> Contents:
        own = self.thing if isinstance(self.thing, dict) else vars(self.thing)
        return list(self.names), [own.get(name, MISSING) for name in self.names]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        own = self.thing if isinstance(self.thing, dict) else vars(self.thing)
        for name, value in zip(keys, values, strict=True):
            if value is not MISSING:
                own[name] = value
            else:
                own.pop(name, None)


class ClassAttributes(Structure):
    """Attributes that a class of the user's holds itself."""

    __slots__ = ()
    shape = NAMED

    def read(self) -> Contents:
        own = type.__dict__["__dict__"].__get__(self.thing)
        names = [name for name in own if not name.startswith(("__", "_abc_"))]
        return names, [own[name] for name in names]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for name in self.read()[0]:
            if name not in keys:
                type.__delattr__(self.thing, name)
        own = type.__dict__["__dict__"].__get__(self.thing)
        for name, value in zip(keys, values, strict=True):
            if own.get(name, MISSING) is not value:
                type.__setattr__(self.thing, name, value)


class Environment(Structure):
    """The process's environment variables."""

    __slots__ = ("stored",)
    shape = NAMED

    def begin(self) -> None:
        super().begin()
        self.stored = dict(self.thing._data)

    def changed(self) -> bool:
        # As it is stored: reading a variable decodes it.
        return bool(self.thing._data != self.stored)

    def read(self) -> Contents:
        return list(self.thing.keys()), list(self.thing.values())

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for name in set(self.thing) - set(keys):
            del self.thing[name]
        for name, value in zip(keys, values, strict=True):
            if self.thing.get(name) != value:
                self.thing[name] = value


class ContextValue(Structure):
    """Value of a context variable in this context."""

    __slots__ = ()
    shape = NAMED

    def read(self) -> Contents:
        variable: contextvars.ContextVar[Any] = self.thing
        return ["value"], [variable.get(MISSING)]

    def write(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        del keys
        if values[0] is not MISSING:
            self.thing.set(values[0])
