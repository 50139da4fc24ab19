"""Calls of Keras's own ``fit`` and ``evaluate`` of a model, and their replacement while sweeper trains.

A class may override these methods, an object may have its own, and a library may replace those of ``keras.Model``.
What they do before and after Keras's method is part of the training, so the model's method is called as its user or
Keras would call it, and sweeper's loop runs where Keras's would.

Keras has no hook for this. A library holds the function that it replaced, so another function in its place on the class would
not be reached. But Keras wraps its methods to shorten tracebacks, and all calls pass this wrapper, which
calls what a cell of its closure contains. The cell is changed while such a training runs, and other models
and other threads are passed on.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType
from typing import Any, Literal, Protocol

import keras

# Keras exports no name of the class that defines these methods.
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from sweeper.errors import FactoryError
from sweeper.inspection.sorts import class_name

Method = Literal["fit", "evaluate"]


@dataclass(frozen=True)
class KerasMethod:
    """A method of Keras without its wrapper, the wrapper, and the cell from which the wrapper calls it."""

    plain: Callable[..., Any]
    wrapper: Callable[..., Any]
    cell: CellType


@functools.cache
def keras_method(name: Method) -> KerasMethod:
    """Return Keras's own method ``name``.

    Raises:
        FactoryError: It was replaced so that it cannot be reached.
    """
    replacing = wrapper = vars(TensorFlowTrainer)[name]
    file = inspect.getsourcefile(TensorFlowTrainer)
    while wrapper is not None:
        for cell in getattr(wrapper, "__closure__", None) or ():
            code = getattr(cell.cell_contents, "__code__", None)
            if code is not None and (code.co_filename, code.co_name) == (file, name):
                return KerasMethod(cell.cell_contents, wrapper, cell)
        # A replacement may name what it wraps.
        wrapper = getattr(wrapper, "__wrapped__", None)
    raise FactoryError(
        f"the {name} of {TensorFlowTrainer.__module__}.{TensorFlowTrainer.__qualname__} was replaced by "
        f"{getattr(replacing, '__module__', '')}.{getattr(replacing, '__qualname__', replacing)}, through which Keras's own "
        f"is not found; replace keras.Model.{name} instead, or decorate the replacement by functools.wraps"
    )


def is_overridden(model: keras.Model, name: Method) -> bool:
    """Return whether the model's method is another than Keras's own."""
    return getattr(getattr(model, name), "__func__", None) is not keras_method(name).wrapper


def make_step_function(model: keras.Model, kind: Literal["train", "test"]) -> None:
    """Make the model's function of a step, as ``fit`` does, which sweeper's loop does not call.

    Raises:
        FactoryError: The model's own ``make_train_function`` or ``make_test_function`` made another than Keras's.
    """
    maker = f"make_{kind}_function"
    getattr(model, maker)()
    code = getattr(getattr(model, f"{kind}_function"), "__code__", None)
    if code is None or code.co_filename != inspect.getsourcefile(TensorFlowTrainer):
        raise FactoryError(
            f"{shown_method(model, maker)} makes a function of its own, which sweeper would not call: its loop "
            f"calls {kind}_step(); override that"
        )


def shown_method(model: keras.Model, name: str) -> str:
    """Return the name of the model's method for errors."""
    method = getattr(model, name)
    function = getattr(method, "__func__", method)
    qualified = getattr(function, "__qualname__", class_name(type(function)))
    return f"{qualified}, the {name} of model {model.name!r},"


class Substitute(Protocol):
    """Replacement of Keras's method, for some calls."""

    def stands_for(self, model: keras.Model, named: Mapping[str, Any]) -> bool:
        """Return whether a call of the method of ``model``, with these named arguments, calls this."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Do the work of the method, with its arguments."""


_SUBSTITUTES: dict[Method, list[Substitute]] = {"fit": [], "evaluate": []}
_CHANGING = threading.Lock()


@contextmanager
def replacing_keras(name: Method, substitute: Substitute) -> Iterator[None]:
    """Context manager in which Keras's method ``name`` is ``substitute``, for the calls that it stands for."""
    method = keras_method(name)
    substitutes = _SUBSTITUTES[name]

    def dispatch(model: keras.Model, *arguments: Any, **named: Any) -> Any:
        for standing in substitutes:
            if standing.stands_for(model, named):
                return standing(*arguments, **named)
        return method.plain(model, *arguments, **named)

    # Trainings in several threads share the cell, and the last one to end restores it.
    with _CHANGING:
        substitutes.append(substitute)
        method.cell.cell_contents = dispatch
    try:
        yield
    finally:
        with _CHANGING:
            substitutes.remove(substitute)
            if not substitutes:
                method.cell.cell_contents = method.plain
