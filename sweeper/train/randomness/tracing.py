"""Random operations in the functions that TensorFlow traces: replaced by generators, or refused.

A stateful random operation in a graph (``tf.random.normal``, ``tf.nn.dropout``, ``tf.image.random_*``)
keeps its position in its kernel, where no API reads or sets it. While a training is prepared and runs,
such an operation is traced as one call of a ``tf.random.Generator``, whose state is a variable and so
in every checkpoint. The generator starts with the kernel's seeds: normal, truncated normal and uniform
operations give the same numbers as the kernel.

A generator is identified by the traced function and by its number in it. A function that is traced
again, for another shape, uses the same generators, so a resumed training may trace in another order.

Other random operations are refused: those in functions that were traced before the training began or
are loaded from a ``SavedModel``, and kinds that no generator replaces. A function is checked before it
first runs, so no kernel has drawn by then. A function that is traced and never run, as Keras does for
shapes, is not refused. `sweeper.train.sources.tfdata` checks the functions of a ``tf.data`` pipeline.

Listeners get the variables that a trace captures, and the Python function, whose values become
constants in the graph.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.util import tf_decorator

from sweeper.errors import UncapturableError
from sweeper.inspection.sources import outward, users_line
from sweeper.train.codec import Json, Tensors
from sweeper.train.randomness.interception import (
    CALL,
    DATASET_FUNCTION,
    STATEFUL_RANDOM,
    TRACE,
    Interception,
    Replacements,
)
from sweeper.train.randomness.sums import ordered_sums

_SYMBOLIC = "scratch_graph"
"""Prefix of the names of graphs in which Keras only computes shapes."""


def _integers(generator: Any, shape: Any, minval: Any, maxval: Any) -> Any:
    return generator.uniform(shape, minval, maxval, dtype=tf.convert_to_tensor(minval).dtype)


def _gamma(generator: Any, shape: Any, alpha: Any) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    whole = tf.concat([shape, tf.shape(alpha)], 0)
    return tf.random.stateless_gamma(whole, _seed(generator), alpha, dtype=alpha.dtype)


def _poisson(generator: Any, shape: Any, rate: Any, dtype: Any = tf.int64) -> Any:
    rate = tf.convert_to_tensor(rate)
    whole = tf.concat([shape, tf.shape(rate)], 0)
    return tf.random.stateless_poisson(whole, _seed(generator), rate, dtype=dtype)


def _categorical(
    generator: Any, logits: Any, num_samples: Any, output_dtype: Any = tf.int64
) -> Any:
    return tf.random.stateless_categorical(logits, num_samples, _seed(generator), output_dtype)


def _seed(generator: Any) -> Any:
    return generator.make_seeds(1)[:, 0]


_DRAWN_BY: Mapping[str, Callable[..., Any]] = {
    "Multinomial": _categorical,
    "RandomGamma": _gamma,
    "RandomPoissonV2": _poisson,
    "RandomShuffle": lambda generator, value: tf.random.experimental.stateless_shuffle(
        value, _seed(generator)
    ),
    "RandomStandardNormal": lambda generator, shape, dtype: generator.normal(shape, dtype=dtype),
    "RandomUniform": lambda generator, shape, dtype: generator.uniform(shape, dtype=dtype),
    "RandomUniformInt": _integers,
    "TruncatedNormal": lambda generator, shape, dtype: generator.truncated_normal(
        shape, dtype=dtype
    ),
}
"""Functions that draw instead of an op in a graph."""


class _Tracing(threading.local):
    """Functions that this thread is tracing, innermost last, with the number of draws in each."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.draws: list[int] = []
        self.datasets = 0


class GraphGenerators:
    """The generators of one training, and the functions that draw from them."""

    def __init__(self) -> None:
        self._generators: dict[str, Any] = {}
        self._began: dict[str, tuple[int, int, int]] = {}
        self._waiting: dict[str, Any] = {}
        """Restored states of generators whose functions are not traced yet."""
        self._tracing = _Tracing()

    @contextmanager
    def tracing(self, function: Any) -> Iterator[None]:
        """Context manager for tracing ``function``, which counts its draws."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        self._tracing.functions.append(f"{module}.{name}")
        self._tracing.draws.append(0)
        try:
            yield
        finally:
            self._tracing.functions.pop()
            self._tracing.draws.pop()

    def replaced(self) -> Replacements:
        """Yield the function that traces a dataset's functions, in which no operation is replaced."""
        make = DATASET_FUNCTION.current

        def marking(*arguments: Any, **options: Any) -> None:
            self._tracing.datasets += 1
            try:
                make(*arguments, **options)
            finally:
                self._tracing.datasets -= 1

        yield DATASET_FUNCTION, marking

    def drawing(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that draws from a generator where ``original``, of ``op``, would draw in a graph."""
        draw = _DRAWN_BY.get(op)

        def drawing(
            *arguments: Any, seed: int = 0, seed2: int = 0, name: Any = None, **options: Any
        ) -> Any:
            if draw is None or not (seed or seed2) or not self._may_replace():
                return original(*arguments, seed=seed, seed2=seed2, name=name, **options)
            return draw(self._generator(seed, seed2), *arguments, **options)

        return drawing

    def _may_replace(self) -> bool:
        tracing = self._tracing
        if not tracing.functions or tracing.datasets or tf.distribute.has_strategy():
            return False
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(graph, FuncGraph):
            return False
        while isinstance(graph, FuncGraph):
            if graph.name.startswith(_SYMBOLIC):
                return False
            graph = graph.outer_graph
        return True

    def _generator(self, seed: int, seed2: int) -> Any:
        tracing = self._tracing
        key = f"{tracing.functions[-1]}/{tracing.draws[-1]}"
        tracing.draws[-1] += 1
        generator = self._generators.get(key)
        if generator is None:
            self._began[key] = began = (0, seed2, seed)
            state = np.array(self._waiting.pop(key, began), np.int64)
            with tf.init_scope():
                generator = tf.random.Generator.from_state(state, "philox")
            self._generators[key] = generator
        _keep(generator)
        return generator

    def capture(self, key: str, tensors: Tensors) -> Json:
        """Put the states of all generators into ``tensors`` under ``key``; return their names."""
        states = {name: each.state.numpy() for name, each in self._generators.items()}
        states |= self._waiting
        names = sorted(states)
        if names:
            tensors[key] = np.array([states[name] for name in names], np.int64)
        return names

    def restore(self, names: Json, states: Any) -> None:
        """Restore captured states; a generator that does not exist yet is created with its state."""
        self._waiting = dict(zip(names, np.asarray(states), strict=True)) if names else {}
        for name, generator in self._generators.items():
            generator.reset(self._waiting.pop(name, self._began[name]))

    def __len__(self) -> int:
        return len(self._generators)


def _keep(generator: Any) -> None:
    """Let the graphs that use a generator reference it, because they reference variables weakly."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        graph.sweeper_generators = [*getattr(graph, "sweeper_generators", ()), generator]
        graph = graph.outer_graph


@dataclass(frozen=True, slots=True)
class Trace:
    """A newly traced function, without TensorFlow's decorators, its ``FuncGraph``, and the variables that it uses."""

    function: Any
    graph: Any
    variables: tuple[Any, ...]


class TracedFunctions(Interception):
    """Observer of TensorFlow's tracing and running of functions, while it is entered."""

    def __init__(self, generators: GraphGenerators | None = None) -> None:
        super().__init__(self._replaced)
        self._generators = GraphGenerators() if generators is None else generators
        self._listeners: list[Callable[[Trace], None]] = []
        self._judged: set[bytes] = set()

    def on_trace(self, listener: Callable[[Trace], None]) -> None:
        self._listeners.append(listener)

    def _replaced(self) -> Replacements:
        trace, call = TRACE.current, CALL.current

        def tracing(name: Any, python_func: Any, *arguments: Any, **options: Any) -> Any:
            function = tf_decorator.unwrap(python_func)[1]
            with self._generators.tracing(function):
                graph = trace(name, python_func, *arguments, **options)
            variables = (
                variable for each in graph._weak_variables if (variable := each()) is not None
            )
            traced = Trace(function, graph, tuple(variables))
            for listener in self._listeners:
                listener(traced)
            return graph

        def calling(function: Any, *arguments: Any) -> Any:
            if function.name not in self._judged and function._bound_context.executing_eagerly():
                refuse_hidden_randomness(function.graph, f"the function {function.graph.name}")
                self._judged.add(function.name)
            return call(function, *arguments)

        return (TRACE, tracing), (CALL, calling), *ordered_sums()


def refuse_hidden_randomness(graph: Any, what: str) -> None:
    """Refuse a function with a random operation whose state is in its kernel, or in one that it calls."""
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
