"""Lines of the user's code: of a factory, a class, an error or an argument.

Imports no Keras: `sweeper check` looks lines up in the command's own process.
"""

import ast
import functools
import inspect
import traceback
import types
from pathlib import Path
from typing import Any

from sweeper.inspection.sources import is_users, is_users_source
from sweeper.records.findings import Line


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
