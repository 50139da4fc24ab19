"""Generators in the place of stateful random operations, in the functions that TensorFlow traces.

A stateful random operation in a graph (``tf.random.normal``, ``tf.nn.dropout``, ``tf.image.random_*``)
keeps the position in its stream in its kernel, where no interface reads or sets it. While a training
is prepared and runs, such an operation is traced as one call of a ``tf.random.Generator`` whose state
is a variable, and thus in every checkpoint. The generator begins where the kernel would: with the same
seeds, normal, truncated normal and uniform operations give the same numbers.

A generator belongs to the function that the operation was traced in and to its turn in it. A function
that is traced again, for another shape, goes on with the same generators, so a resumed training needs
not trace in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import structured_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gen_random_ops

from sweeper.train.codec import Json, Tensors

_MODULE: Any = gen_random_ops
_DATASETS: Any = structured_function.StructuredFunctionWrapper
_FuncGraph: Any = func_graph.FuncGraph
_SYMBOLIC = "scratch_graph"
"""How the graphs begin in which Keras only works out shapes."""


def _normal(generator: Any, shape: Any, dtype: Any) -> Any:
    return generator.normal(shape, dtype=dtype)


def _truncated(generator: Any, shape: Any, dtype: Any) -> Any:
    return generator.truncated_normal(shape, dtype=dtype)


def _uniform(generator: Any, shape: Any, dtype: Any) -> Any:
    return generator.uniform(shape, dtype=dtype)


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


def _shuffled(generator: Any, value: Any) -> Any:
    return tf.random.experimental.stateless_shuffle(value, _seed(generator))


def _seed(generator: Any) -> Any:
    return generator.make_seeds(1)[:, 0]


_DRAWN_BY: Mapping[str, Callable[..., Any]] = {
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
    "random_shuffle": _shuffled,
    "random_standard_normal": _normal,
    "random_uniform": _uniform,
    "random_uniform_int": _integers,
    "truncated_normal": _truncated,
}
"""Functions of ``gen_random_ops`` that are replaced, with what draws in their place."""


class _Tracing(threading.local):
    """Functions that this thread traces, the innermost last, with the number of draws in each."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.draws: list[int] = []
        self.datasets = 0


class GraphGenerators:
    """The generators of one training; operations are replaced while it is entered.

    `capture` and `restore` are called by the component that holds it.
    """

    def __init__(self) -> None:
        self._generators: dict[str, Any] = {}
        self._began: dict[str, tuple[int, int, int]] = {}
        self._waiting: dict[str, Any] = {}
        """Restored states of generators whose functions have yet to be traced."""
        self._tracing = _Tracing()
        self._originals: list[tuple[Any, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        originals = {name: getattr(_MODULE, name) for name in _DRAWN_BY}
        self._originals.append((_DATASETS.__init__, originals))
        for name, original in originals.items():
            setattr(_MODULE, name, self._replacing(original, _DRAWN_BY[name]))
        _DATASETS.__init__ = self._marking(_DATASETS.__init__)
        return self

    def __exit__(self, *_exception: object) -> None:
        _DATASETS.__init__, originals = self._originals.pop()
        for name, original in originals.items():
            setattr(_MODULE, name, original)

    @contextmanager
    def tracing(self, function: Any) -> Iterator[None]:
        """Count the draws inside as those of ``function``, which is being traced."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        self._tracing.functions.append(f"{module}.{name}")
        self._tracing.draws.append(0)
        try:
            yield
        finally:
            self._tracing.functions.pop()
            self._tracing.draws.pop()

    def _marking(self, make: Callable[..., None]) -> Callable[..., None]:
        """Return ``make``, which traces a dataset's function: such operations stay as they are."""

        def marking(*arguments: Any, **options: Any) -> None:
            self._tracing.datasets += 1
            try:
                make(*arguments, **options)
            finally:
                self._tracing.datasets -= 1

        return marking

    def _replacing(self, original: Any, draw: Callable[..., Any]) -> Callable[..., Any]:
        def replacing(
            *arguments: Any, seed: int = 0, seed2: int = 0, name: Any = None, **options: Any
        ) -> Any:
            if not (seed or seed2) or not self._may_replace():
                return original(*arguments, seed=seed, seed2=seed2, name=name, **options)
            return draw(self._generator(seed, seed2), *arguments, **options)

        return replacing

    def _may_replace(self) -> bool:
        tracing = self._tracing
        if not tracing.functions or tracing.datasets or tf.distribute.has_strategy():
            return False
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(graph, _FuncGraph):
            return False
        while isinstance(graph, _FuncGraph):
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
        """Bring back what was captured; a generator that is not there yet begins with it."""
        self._waiting = dict(zip(names, np.asarray(states), strict=True)) if names else {}
        for name, generator in self._generators.items():
            generator.reset(self._waiting.pop(name, self._began[name]))

    def __len__(self) -> int:
        return len(self._generators)


def _keep(generator: Any) -> None:
    """Have the graphs that use a generator keep it: they hold their variables weakly."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, _FuncGraph):
        graph.sweeper_generators = [*getattr(graph, "sweeper_generators", ()), generator]
        graph = graph.outer_graph
