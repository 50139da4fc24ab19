"""Reports on the user's code for another process: its lines, factories and callbacks, and the length of an epoch.

Imports no Keras: `sweeper check` looks lines up in the command's own process.
"""

import ast
import functools
import inspect
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.inspection.sources import is_users, is_users_source
from sweeper.records.findings import Line


@dataclass(frozen=True, slots=True)
class UserObject:
    """A factory or a callback, described for another process.

    Attributes:
        name: Its name in messages.
        line: Where it is defined; None for a library's.
        measured: For a callback: the attributes, keys and metrics with measured times.
    """

    name: str
    line: Line | None = None
    measured: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name} ({self.line})"


@dataclass(frozen=True, slots=True)
class UserObjects:
    """Factories that the user wrote, and the callbacks in their order, a library's too."""

    model: UserObject
    data: UserObject
    callbacks: tuple[UserObject, ...] = ()

    @property
    def users(self) -> tuple[str, ...]:
        """Return the callbacks that the user wrote, each with its line."""
        return tuple(dict.fromkeys(f"callback {c}" for c in self.callbacks if c.line is not None))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Length of an epoch of the study, beside that of a shortened trial.

    Attributes:
        steps: Steps of an epoch; None if unknown.
        times: How many times as long it is, by its steps or by its validation.
    """

    steps: int | None
    times: float


def line_of(obj: Any) -> Line | None:
    """Return the line of a function, a class or an object's class; None for a library's."""
    while isinstance(obj, functools.partial | types.MethodType):
        obj = obj.func if isinstance(obj, functools.partial) else obj.__func__
    if isinstance(obj, types.FunctionType | functools._lru_cache_wrapper):
        obj = inspect.unwrap(obj)
    if inspect.isfunction(obj):
        code = obj.__code__
        if not is_users_source(code.co_filename):
            return None
        return Line(code.co_filename, code.co_firstlineno)
    cls = obj if isinstance(obj, type) else type(obj)
    for kind in cls.__mro__:
        try:
            file = inspect.getsourcefile(kind)
            if file is None or not is_users(file):
                continue
            return Line(file, inspect.getsourcelines(kind)[1])
        except (OSError, TypeError):
            continue
    return None


def line_of_error(error: BaseException) -> Line | None:
    """Return the innermost line of the user's code in the error's traceback."""
    lines = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    return next((Line(file, line) for file, line in reversed(lines) if is_users(file)), None)


def line_of_argument(file: str, study: str, argument: str) -> Line | None:
    """Return the line of ``argument=…`` in this study's call of ``Study``, or of the call.

    None if the file has no such call.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    first = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Study":
            arguments = {keyword.arg: keyword.value for keyword in node.keywords}
            line = Line(file, arguments.get(argument, node).lineno)
            name = arguments.get("name")
            if isinstance(name, ast.Constant) and name.value == study:
                return line
            first = first or line
    return first
