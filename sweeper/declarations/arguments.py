"""Checks of single arguments of a study, and their defaults."""

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from sweeper.errors import DefinitionError
from sweeper.support.shown import shown_value

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind", bound=type)


def named_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """Make ``call`` refuse unknown arguments, with the most similar known one, and calls in which one is missing.

    The signature is unchanged, also for type checkers. A function that passes further arguments on
    (``**options``) is returned as it is.
    """
    signature = inspect.signature(call)
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return call
    names = [name for name in parameters if name != "self"]

    def problem(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        for name in kwargs:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names)}"
                return f"got an unknown argument {name!r}; {hint}"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            verb = "is" if str(error).startswith("missing") else "got"
            return f"{verb} {error}; it takes {', '.join(names)}"
        return ""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if found := problem(args, kwargs):
            is_class = call.__name__ == "__init__"
            called = type(args[0]).__name__ if is_class else call.__qualname__
            error = DefinitionError(f"{called}(…) {found}")
            error.of_study = True  # names in code are the same for every trial
            raise error
        return call(*args, **kwargs)

    return checked


def with_named_arguments(kind: Kind) -> Kind:
    """Make a class and its public methods refuse unknown arguments; see `named_arguments`."""
    for name, call in list(vars(kind).items()):
        if inspect.isfunction(call) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, named_arguments(call))
    return kind


def usable_cores() -> int:
    """Return the number of cores that this process may use, which are those that TensorFlow uses."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_factory(value: Any, name: str, form: str, *, optional: bool = False) -> Any:
    """Return ``value``, a function of a trial, whose form the error shows as ``form``."""
    if optional and value is None:
        return None
    modules = [kind.__module__ for kind in type(value).__mro__]
    of_keras = any(module.startswith("keras.") for module in modules)
    if callable(value) and not of_keras:
        return value
    hint = f"; if a function returned it, write {name}=FUNCTION without the call"
    if of_keras:
        hint = (
            "; Keras objects are changed in place by training, so two trials would share this one: "
            f"write a function that builds it, {name}=lambda trial: …"
        )
    elif any(module.startswith("tensorflow.python.distribute.") for module in modules):
        hint = (
            "; a strategy belongs to one process, and every trial has its own: write a function that "
            f"makes it, {name}=lambda trial: …"
        )
    problem = "is no factory" if of_keras else "cannot be called"
    raise DefinitionError(
        f"{name}= takes a function, {form}, and {shown_value(value)} {problem}{hint}"
    )


def checked_choice(value: Any, name: str, choices: Sequence[str], meaning: str = "") -> Any:
    """Return ``value`` if it is one of ``choices``; ``meaning`` explains the argument in the error."""
    if not isinstance(value, str) or value not in choices:
        expected = ", ".join(map(repr, choices))
        raise DefinitionError(
            f"{name}={shown_value(value)}; it is one of {expected}{meaning and f': {meaning}'}"
        )
    return value


def checked_whole(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, and refuse it otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DefinitionError(
            f"{name}={shown_value(value)}; it must be a whole number, at least {least}"
        )
    return value
