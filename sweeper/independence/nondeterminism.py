"""Which calls in the user's code give something else every time, by name and line.

That a study does not repeat is found by running it twice, never here: reading code proves nothing.
This module only names the likely culprit in the code of the factory, callback or layer that was
seen to differ. Names are resolved to the very objects that they stand for where the code runs, so
``from time import time as now`` is found, and a method of the user's own that is called ``time``
is not.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import functools
import inspect
import os
import random
import secrets
import textwrap
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sweeper.independence.findings import Line, Suspect
from sweeper.independence.lines import unwrapped
from sweeper.inspection.callables import closure_of
from sweeper.inspection.frames import is_users

_CHANGES = frozenset({"add", "append", "clear", "extend", "insert", "pop", "setdefault", "update"})
"""Methods that change a list, set or dict."""

_MOST_FUNCTIONS = 400
"""So many functions are read for one owner, at most."""

_CALLS: tuple[tuple[str, Any], ...] = (
    ("time.time", time.time),
    ("time.time_ns", time.time_ns),
    ("time.monotonic", time.monotonic),
    ("time.monotonic_ns", time.monotonic_ns),
    ("time.perf_counter", time.perf_counter),
    ("time.perf_counter_ns", time.perf_counter_ns),
    ("time.process_time", time.process_time),
    ("time.process_time_ns", time.process_time_ns),
    ("time.thread_time", time.thread_time),
    ("time.ctime", time.ctime),
    ("time.localtime", time.localtime),
    ("time.gmtime", time.gmtime),
    ("time.strftime", time.strftime),
    ("os.urandom", os.urandom),
    ("os.getpid", os.getpid),
    ("os.times", os.times),
    ("os.listdir (its order is the file system's)", os.listdir),
    ("os.scandir (its order is the file system's)", os.scandir),
    ("uuid.uuid1", uuid.uuid1),
    ("uuid.uuid4", uuid.uuid4),
    ("secrets.token_bytes", secrets.token_bytes),
    ("secrets.token_hex", secrets.token_hex),
    ("secrets.randbits", secrets.randbits),
    ("secrets.randbelow", secrets.randbelow),
    ("secrets.choice", secrets.choice),
    ("random.SystemRandom", random.SystemRandom),
    ("threading.get_ident", threading.get_ident),
    ("id (an address)", builtins.id),
    ("hash (of a string, another one in every process)", builtins.hash),
    ("set (strings in it have another order in every process)", builtins.set),
    ("frozenset (strings in it have another order in every process)", builtins.frozenset),
)
_METHODS = {
    (dt.datetime, "now"): "datetime.now",
    (dt.datetime, "utcnow"): "datetime.utcnow",
    (dt.datetime, "today"): "datetime.today",
    (dt.date, "today"): "date.today",
}
_UNSEEDED: tuple[tuple[str, Any], ...] = (
    ("np.random.default_rng() without a seed", np.random.default_rng),
    ("np.random.SeedSequence() without entropy", np.random.SeedSequence),
    ("np.random.PCG64() without a seed", np.random.PCG64),
    ("np.random.RandomState() without a seed", np.random.RandomState),
    ("random.Random() without a seed", random.Random),
    ("random.seed() without a seed", random.seed),
    ("np.random.seed() without a seed", np.random.seed),
)
_WEAK = frozenset(
    {builtins.id, builtins.hash, builtins.set, builtins.frozenset, os.listdir, os.scandir}
)
"""Mostly harmless: named only where nothing else is found."""


_SPLITS = {
    **dict.fromkeys(
        ("train_test_split", "ShuffleSplit", "StratifiedShuffleSplit", "GroupShuffleSplit"),
        "random_state",
    ),
    **dict.fromkeys(("KFold", "StratifiedKFold", "resample"), "random_state"),
    **dict.fromkeys(
        (
            "audio_dataset_from_directory",
            "image_dataset_from_directory",
            "split_dataset",
            "text_dataset_from_directory",
        ),
        "seed",
    ),
    **dict.fromkeys(
        ("choice", "permutation", "permuted", "random_split", "sample", "shuffle"),
        "",
    ),
}
"""Calls that split or order samples at random, by name, and the argument that is their seed."""

_OF_THE_SYSTEM = ("os.urandom", "uuid.", "secrets.", "random.SystemRandom")
"""Beginnings of calls that give what no seed can, and nothing can replace."""


def suspects(*owners: Any) -> tuple[Suspect, ...]:
    """The suspicious calls in functions, classes or objects of the user's own, and what they call.

    Args:
        owners: Functions, or classes or objects whose classes' methods are read. What a library
            wrote is not.

    Returns:
        The likeliest only: where something reads a clock or the system's randomness, a hash is not
        worth a word.
    """
    strong: list[Suspect] = []
    weak: list[Suspect] = []
    for function in _reached(owners):
        for call, node, is_weak in _calls(function):
            line = Line(function.code.co_filename, function.first_line + node.lineno - 1)
            (weak if is_weak else strong).append(Suspect(call, line, function.name))
    return tuple(dict.fromkeys(strong or weak))


def system_randomness(*owners: Any) -> tuple[Suspect, ...]:
    """Where the user's own code asks the operating system for random numbers.

    Args:
        owners: See `suspects`.
    """
    return tuple(s for s in suspects(*owners) if s.call.startswith(_OF_THE_SYSTEM))


def random_splits(*owners: Any) -> tuple[Suspect, ...]:
    """Return the calls in the user's own code that may split or order samples at random.

    Args:
        owners: See `suspects`.
    """
    found = []
    for function in _reached(owners):
        for node in ast.walk(function.tree):
            if isinstance(node, ast.Call) and (call := _split(node)):
                line = Line(function.code.co_filename, function.first_line + node.lineno - 1)
                found.append(Suspect(call, line, function.name))
    return tuple(dict.fromkeys(found))


def _split(node: ast.Call) -> str:
    """Return what to call a random split; an empty string for any other call, or one with a seed."""
    name = ast.unparse(node.func).rpartition(".")[2]
    seed = _SPLITS.get(name)
    if seed is None:
        return ""
    given = next((keyword.value for keyword in node.keywords if keyword.arg == seed), None)
    if isinstance(given, ast.Constant) and given.value is not None:
        return ""
    if not seed:
        return name
    if given is None or isinstance(given, ast.Constant):
        return f"{name} without {seed}"
    return f"{name}({seed}={ast.unparse(given)})"


def kept_outside(*owners: Any) -> tuple[Suspect, ...]:
    """Module variables that methods of the user's own change: state that no checkpoint holds.

    Args:
        owners: See `suspects`.
    """
    found = []
    for function in _reached(owners):
        own = set(function.code.co_varnames) | set(function.code.co_cellvars)
        for node in ast.walk(function.tree):
            for name, number in _changed(node):
                if name not in own and name in function.function.__globals__:
                    line = Line(function.code.co_filename, function.first_line + number - 1)
                    found.append(Suspect(f"the module variable {name!r}", line, function.name))
    return tuple(dict.fromkeys(found))


def _changed(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a statement assigns to, or into, and where."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CHANGES
    ):
        targets = [node.func]
    for target in targets:
        inner = target
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id, inner.lineno


class _Function:
    """A function of the user's, its source as a tree, and what its names stand for."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.code = function.__code__
        self.name = function.__qualname__
        lines, first = inspect.getsourcelines(function)
        self.first_line = max(first, 1)
        self.tree = ast.parse(textwrap.dedent("".join(lines)))
        self._names = {**vars(builtins), **function.__globals__, **dict(closure_of(function))}
        self._imported()

    def resolve(self, node: ast.expr) -> Any:
        """The object that an expression of names and dots stands for, or None."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            # Only modules and classes: an attribute of an object may be a property, and run.
            if inspect.ismodule(owner) or inspect.isclass(owner):
                return inspect.getattr_static(owner, node.attr, None) or getattr(
                    owner, node.attr, None
                )
        return None

    def _imported(self) -> None:
        """What is imported inside the function, as far as it is loaded already."""
        import sys

        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._names[alias.asname or name] = sys.modules.get(name)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                module = sys.modules.get(node.module)
                for alias in node.names:
                    self._names[alias.asname or alias.name] = getattr(module, alias.name, None)


def _reached(owners: Iterable[Any]) -> Iterator[_Function]:
    """The functions of the owners, and those of the user's that they call, each once."""
    waiting = [f for owner in owners for f in _functions(owner)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        raw = waiting.pop(0)
        if id(raw.__code__) in seen or not is_users(raw.__code__.co_filename):
            continue
        seen.add(id(raw.__code__))
        try:
            function = _Function(raw)
        except (OSError, SyntaxError, TypeError, ValueError):
            continue
        yield function
        for node in ast.walk(function.tree):
            if isinstance(node, ast.Call):
                waiting += _functions(function.resolve(node.func))
                waiting += [f for a in node.args for f in _functions(_passed(function, a))]


def _passed(function: _Function, node: ast.expr) -> Any:
    """A function that is passed on, as to ``Dataset.map``; other arguments are no owners."""
    found = unwrapped(function.resolve(node))
    return found if inspect.isfunction(found) else None


def _functions(owner: Any) -> list[Any]:
    owner = unwrapped(owner)
    if owner is None or inspect.ismodule(owner):
        return []
    if inspect.isfunction(owner):
        return [owner]
    if isinstance(owner, functools.partial | staticmethod | classmethod):
        return _functions(owner.func if isinstance(owner, functools.partial) else owner.__func__)
    found = []
    for cls in (owner if isinstance(owner, type) else type(owner)).__mro__:
        for member in vars(cls).values():
            for part in (member, getattr(member, "fget", None), getattr(member, "func", None)):
                function = unwrapped(getattr(part, "__func__", part))
                if inspect.isfunction(function) and is_users(function.__code__.co_filename):
                    found.append(function)
    return found


def _calls(function: _Function) -> Iterator[tuple[str, ast.Call, bool]]:
    for node in ast.walk(function.tree):
        if isinstance(node, ast.Call):
            called = function.resolve(node.func)
            call = _of_a_class(function, node) or _known(called, node)
            if call is not None:
                yield call, node, any(called is each for each in _WEAK)


def _of_a_class(function: _Function, node: ast.Call) -> str | None:
    """Class methods of the clock's are made anew at every look, so they go by name."""
    if not isinstance(node.func, ast.Attribute):
        return None
    owner = function.resolve(node.func.value)
    return next(
        (call for (cls, name), call in _METHODS.items() if owner is cls and node.func.attr == name),
        None,
    )


def _known(called: Any, node: ast.Call) -> str | None:
    if called is None:
        return None
    without = not node.args and not node.keywords
    table = (*_CALLS, *_UNSEEDED) if without else _CALLS
    return next((call for call, known in table if _same(called, known)), None)


def _same(called: Any, known: Any) -> bool:
    """Identity, or, for bound methods of one hidden generator, their function and owner's."""
    if called is known:
        return True
    return (
        inspect.ismethod(called)
        and inspect.ismethod(known)
        and called.__func__ is known.__func__
        and called.__self__ is known.__self__
    )
