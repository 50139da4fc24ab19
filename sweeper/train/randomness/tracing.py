"""Observation of the functions that TensorFlow traces or runs during a training, and their random ops.

A random operation inside such a function keeps its state in its kernel, where no interface reads
it. Where that is possible, a generator is traced in its place (`sweeper.train.randomness.graph_generators`);
what remains is refused: a function that was traced before the training began or comes out of a
``SavedModel``, a kind of operation that no generator replaces. A function is looked into before it first
runs, so that no kernel has drawn by then; one that is traced and never run, as Keras does for shapes,
harms nothing, and the functions of a ``tf.data`` pipeline are judged where it is read
(`sweeper.train.sources.tfdata`).

What a trace takes in from outside is offered to whoever asks: variables, and the Python function,
whose values are baked into the graph.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import tf_decorator

from sweeper.errors import UncapturableError
from sweeper.inspection.sources import outward, users_line
from sweeper.train.randomness.graph_generators import GraphGenerators

STATEFUL_RANDOM = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
"""Names of ops, in the step of a training or in the functions of a dataset."""


_FUNC_GRAPH: Any = func_graph
_ATOMIC_FUNCTION: Any = atomic_function.AtomicFunction
_VARIABLE: Any = resource_variable_ops.BaseResourceVariable


@dataclass(frozen=True, slots=True)
class Trace:
    """A newly traced function.

    Attributes:
        number: How many were traced before it in this training.
        function: The Python function, without TensorFlow's decorators.
        graph: Its ``FuncGraph``.
        variables: The variables from outside that it uses, in the order of their first use.
    """

    number: int
    function: Any
    graph: Any
    variables: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CapturedVariable:
    """A variable made during the training that a traced function uses.

    Attributes:
        name: ``<number of the trace>/<number of the variable in it>``, the same in every process
            that traces the same functions in the same order.
        variable: The ``tf.Variable``.
    """

    name: str
    variable: Any


class TracedFunctions:
    """Observer of TensorFlow's tracing and running of functions, while it is entered.

    Args:
        generators: Told which function is being traced; by default ones that nobody captures.
    """

    def __init__(self, generators: GraphGenerators | None = None) -> None:
        self._generators = GraphGenerators() if generators is None else generators
        self._listeners: list[Callable[[Trace], None]] = []
        self._traces = 0
        self._made: dict[int, weakref.ref[Any]] = {}
        """Variables made since it was entered, by identity."""
        self._captured: dict[str, weakref.ref[Any]] = {}
        self._judged: set[bytes] = set()
        self._originals: list[tuple[Any, Any, Any]] = []

    def on_trace(self, listener: Callable[[Trace], None]) -> None:
        """Call ``listener`` with every function that is traced from now on."""
        self._listeners.append(listener)

    def captured(self) -> list[CapturedVariable]:
        """Return the variables made during the training that functions use and that still exist."""
        alive = ((name, reference()) for name, reference in self._captured.items())
        return [CapturedVariable(name, each) for name, each in alive if each is not None]

    def __enter__(self) -> Self:
        trace = _FUNC_GRAPH.func_graph_from_py_func
        call = _ATOMIC_FUNCTION.call_flat
        make = _VARIABLE.__init__
        self._originals.append((trace, call, make))
        self._made = {}

        def tracing(name: Any, python_func: Any, *arguments: Any, **options: Any) -> Any:
            with self._generators.tracing(tf_decorator.unwrap(python_func)[1]):
                graph = trace(name, python_func, *arguments, **options)
            self._traced(python_func, graph)
            return graph

        def calling(function: Any, *arguments: Any) -> Any:
            if function.name not in self._judged and function._bound_context.executing_eagerly():
                refuse_hidden_randomness(function.graph, f"the function {function.graph.name}")
                self._judged.add(function.name)
            return call(function, *arguments)

        def making(variable: Any, *arguments: Any, **options: Any) -> None:
            make(variable, *arguments, **options)
            self._made[id(variable)] = weakref.ref(variable)

        _FUNC_GRAPH.func_graph_from_py_func = tracing
        _ATOMIC_FUNCTION.call_flat = calling
        _VARIABLE.__init__ = making
        return self

    def __exit__(self, *_exception: object) -> None:
        trace, call, make = self._originals.pop()
        _FUNC_GRAPH.func_graph_from_py_func = trace
        _ATOMIC_FUNCTION.call_flat = call
        _VARIABLE.__init__ = make

    def _traced(self, python_func: Any, graph: Any) -> None:
        function = tf_decorator.unwrap(python_func)[1]
        shown = Trace(self._traces, function, graph, tuple(_variables(graph)))
        self._traces += 1
        for index, variable in enumerate(shown.variables):
            made = self._made.get(id(variable))
            if made is not None and made() is variable:
                self._captured[f"{shown.number}/{index}"] = made
        for listener in self._listeners:
            listener(shown)


def refuse_hidden_randomness(graph: Any, what: str) -> None:
    """Refuse a function with a random operation whose state is in its kernel.

    Args:
        graph: A ``FuncGraph``; the functions that it calls are looked into as well.
        what: The function, for the error.

    Raises:
        UncapturableError: It has one; its op and name are in the message, and the line of the user's code.
    """
    for op in _random_operations(graph, set()):
        traceback = [(frame.filename, frame.lineno) for frame in op.traceback or ()]
        line = users_line(reversed(traceback))
        if line is None:
            stack = outward(sys._getframe(1))
            line = users_line((frame.f_code.co_filename, frame.f_lineno) for frame in stack)
        msg = (
            f"{what} holds the random op {op.type} ({op.name}{f', {line}' if line else ''}), whose "
            "state lives in TensorFlow's kernel where no checkpoint can reach it, so a resumed "
            "trial would draw other numbers; use keras.random with a keras.random.SeedGenerator, "
            "tf.random.stateless_* or a tf.random.Generator"
        )
        raise UncapturableError(msg)


def _random_operations(graph: Any, seen: set[int]) -> Iterator[Any]:
    seen.add(id(graph))
    for op in graph.get_operations():
        if op.type in STATEFUL_RANDOM:
            yield op
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None and id(inner) not in seen:
            yield from _random_operations(inner, seen)


def _variables(graph: Any) -> list[Any]:
    """Return the existing variables in a stable order, which TensorFlow's own list does not have."""
    used = [variable for each in graph._weak_variables if (variable := each()) is not None]
    turns = {id(external): turn for turn, (external, _) in enumerate(graph.captures)}
    last = len(turns)
    return sorted(used, key=lambda v: (turns.get(id(v.handle), last), v.name))
