"""Lines of the user's code: of a factory, a class, an error or an argument.

Imports no Keras: `sweeper check` looks lines up in the command's own process.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeper.inspection.sources import is_users
from sweeper.replay.reports import Line

_CACHED = functools._lru_cache_wrapper


def unwrapped(obj: Any) -> Any:
    """Return the function inside partials, bound methods and decorators; a class or object unchanged."""
    for _ in range(32):
        if isinstance(obj, functools.partial):
            obj = obj.func
        elif inspect.ismethod(obj):
            obj = obj.__func__
        elif isinstance(obj, types.FunctionType | _CACHED) and hasattr(obj, "__wrapped__"):
            obj = obj.__wrapped__
        else:
            return obj
    return obj


def line_of(obj: Any) -> Line | None:
    """Return the line of a function, a class or an object's class; None for a library's."""
    obj = unwrapped(obj)
    if inspect.isfunction(obj):
        code = obj.__code__
        return Line(code.co_filename, code.co_firstlineno) if _known(code.co_filename) else None
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
    found = None
    for frame, line in _frames(error.__traceback__):
        if is_users(frame):
            found = Line(frame, line)
    return found


def line_of_argument(file: str, study: str, argument: str) -> Line | None:
    """Return the line of ``argument=…`` in this study's call of ``Study``, or of the call.

    None if the file has no such call.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Study"
    ]
    named = [call for call in calls if study in map(_name_given, call.keywords)]
    for call in named or calls:
        given = {keyword.arg: keyword.value.lineno for keyword in call.keywords}
        return Line(file, given.get(argument, call.lineno))
    return None


def _name_given(keyword: ast.keyword) -> object:
    value = keyword.value
    return value.value if keyword.arg == "name" and isinstance(value, ast.Constant) else None


def _frames(trace: types.TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _known(file: str) -> bool:
    """Return whether ``file`` is the user's and its lines are known, as for a notebook's cell."""
    return is_users(file) or (not Path(file).exists() and bool(linecache.getlines(file)))
