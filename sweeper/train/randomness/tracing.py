"""Functions that TensorFlow traces: those with hidden random state are refused.

A stateful random operation in a graph keeps its position in its kernel, where no API reads or sets it. Those that
`sweeper.train.randomness.hidden_state` does not replace by generators are refused: those in functions that were
traced before the training started or are loaded from a ``SavedModel``, and kinds that no generator replaces. A function
is checked before it first runs, so no kernel has drawn by then. A function that is traced and never run, as Keras does
for shapes, is not refused. `sweeper.train.sources.tfdata` checks the functions of a ``tf.data`` pipeline.

Listeners get the variables that a trace captures, and the Python function, whose values become
constants in the graph.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

# It finds the user's function in TensorFlow's wrappers.
from tensorflow.python.util import tf_decorator

from sweeper.errors import UncapturableError
from sweeper.inspection.sources import outward, users_line
from sweeper.train.randomness.interception import (
    CALL,
    STATEFUL_RANDOM,
    TRACE,
    Interception,
    Replacements,
)
from sweeper.train.randomness.sums import ordered_sums


@dataclass(frozen=True, slots=True)
class Trace:
    """A newly traced function, without TensorFlow's decorators, its ``FuncGraph``, and the variables that it uses."""

    function: Any
    graph: Any
    variables: tuple[Any, ...]


class TracedFunctions(Interception):
    """Observer of TensorFlow's tracing and running of functions, while it is entered."""

    def __init__(self, within: Callable[[Any], AbstractContextManager[Any]] = nullcontext) -> None:
        super().__init__(self._replaced)
        self._within = within
        """Returns the context in which a function is traced."""
        self._listeners: list[Callable[[Trace], None]] = []
        self._judged: set[bytes] = set()

    def on_trace(self, listener: Callable[[Trace], None]) -> None:
        self._listeners.append(listener)

    def _replaced(self) -> Replacements:
        trace = TRACE.current
        call = CALL.current

        def tracing(name: Any, python_func: Any, *arguments: Any, **options: Any) -> Any:
            function = tf_decorator.unwrap(python_func)[1]
            with self._within(function):
                graph = trace(name, python_func, *arguments, **options)
            # The public `variables` raises if one of them was deleted meanwhile.
            variables = (
                variable
                for reference in graph._weak_variables
                if (variable := reference()) is not None
            )
            traced = Trace(function, graph, tuple(variables))
            for listener in self._listeners:
                listener(traced)
            return graph

        def calling(function: Any, *arguments: Any) -> Any:
            # A call inside a graph is checked with the function that makes it, when that first runs.
            if function.name not in self._judged and function._bound_context.executing_eagerly():
                refuse_hidden_randomness(function.graph, f"the function {function.graph.name}")
                self._judged.add(function.name)
            return call(function, *arguments)

        return (TRACE, tracing), (CALL, calling), *ordered_sums()


def refuse_hidden_randomness(graph: Any, label: str) -> None:
    """Refuse a function with a random operation whose state is in its kernel, or in one that it calls."""
    for op in _random_operations(graph, set()):
        traceback = [(frame.filename, frame.lineno) for frame in op.traceback or ()]
        line = users_line(reversed(traceback))
        if line is None:
            stack = outward(sys._getframe(1))
            line = users_line((frame.f_code.co_filename, frame.f_lineno) for frame in stack)
        raise UncapturableError(
            f"{label} holds the random op {op.type} ({op.name}{f', {line}' if line else ''}), whose "
            "state lives in TensorFlow's kernel where no checkpoint can reach it, so a resumed "
            "trial would draw other numbers; use keras.random with a keras.random.SeedGenerator, "
            "tf.random.stateless_* or a tf.random.Generator"
        )


def _random_operations(graph: Any, visited: set[int]) -> Iterator[Any]:
    visited.add(id(graph))
    for op in graph.get_operations():
        if op.type in STATEFUL_RANDOM:
            yield op
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None and id(inner) not in visited:
            yield from _random_operations(inner, visited)
