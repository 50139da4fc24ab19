"""Random state outside of a training's objects: in NumPy, Keras, TensorFlow and its eager ops.

`HiddenState` is entered while the training is prepared and while it runs. In between and afterwards
it is left, and the libraries are unchanged for other code of the process.

TensorFlow caches the kernel of an eager random operation with a seed. The kernel's position in its
stream cannot be read or set, so a resumed process would draw the first numbers again. Therefore no
kernel is used twice. The first call of an operation with a pair of seeds gets these seeds, and so the
usual numbers; call k gets seeds derived from the pair and k. The numbers of calls are captured.

The seeds are replaced in the functions of the operations, which ``tf.random``, ``tf.image`` and ``tf.nn`` call,
and in those of ``tf.raw_ops``. Operations without a seed are unchanged, because TensorFlow
draws a new seed for each call (`sweeper.train.randomness.generators.TensorFlowRandom`).
``tf.random.set_seed`` restarts all streams, as in TensorFlow.

A stateful random operation in a graph (``tf.random.normal``, ``tf.nn.dropout``, ``tf.image.random_*``) is traced as
one call of a ``tf.random.Generator``, whose state is a variable and so in every checkpoint. The generator starts
with the kernel's seeds: normal, truncated normal and uniform operations give the same numbers as the kernel. A
generator is identified by the traced function and by its number in it. A function that is traced again, for
another shape, uses the same generators, so a resumed training may trace in another order.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Self

import numpy as np
import tensorflow as tf

# The counter of eager random ops, and what graphs hold, have no public names.
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph

from sweeper.train.codec import Json, Tensors, decode, encode
from sweeper.train.component import Component
from sweeper.train.randomness import interception
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.tracing import TracedFunctions

_SEEDS = 1 << 31
"""Upper bound of derived seeds, the same as for users' seeds in TensorFlow."""


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


class _Local(threading.local):
    """State of a thread: the functions that it is tracing, innermost last, each with the numbers of its draws.

    ``drawn`` is the last seed that TensorFlow drew, until an operation uses it.
    """

    def __init__(self) -> None:
        self.functions: list[tuple[str, Iterator[int]]] = []
        self.datasets = 0
        self.drawn: int | None = None


class RandomOperations(interception.Interception, Component):
    """Component of random operations, which are replaced while it is entered: seeds of eager ones, generators in graphs."""

    name = "eager_operations"

    def __init__(self) -> None:
        super().__init__(self._replaced)
        self._calls: Counter[tuple[str, int, int]] = Counter()
        self._counted_from: Any = None
        """TensorFlow's generator of seeds; ``tf.random.set_seed`` replaces it."""
        self._local = _Local()
        self.generators: dict[str, Any] = {}
        self._initial: dict[str, tuple[int, int, int]] = {}
        self._waiting: dict[str, Any] = {}
        """Restored states of generators whose functions are not traced yet."""

    def _replaced(self) -> interception.Replacements:
        yield interception.DRAWN_SEED, self._recording_seed(interception.DRAWN_SEED.current)
        for op, function in interception.RANDOM_FUNCTIONS.items():
            yield function, self._drawing(op, self._seeded(op, function.current))
        for op, function in interception.RAW_RANDOM_FUNCTIONS.items():
            yield function, self._seeded(op, function.current)
        yield interception.DATASET_FUNCTION, self._marking(interception.DATASET_FUNCTION.current)

    def capture(self, tensors: Tensors) -> Json:
        self._restart_after_new_seed()
        states = {name: generator.state.numpy() for name, generator in self.generators.items()}
        states |= self._waiting
        return {
            "calls": [[*call, number] for call, number in self._calls.items()],
            "graphs": encode(dict(sorted(states.items())), f"{self.name}/graphs", tensors),
        }

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._counted_from = _seed_source()
        self._calls.clear()
        for op, seed, seed2, calls in saved["calls"]:
            self._calls[op, seed, seed2] = calls
        self._waiting = decode(saved["graphs"], tensors)
        for name, generator in self.generators.items():
            generator.reset(self._waiting.pop(name, self._initial[name]))

    def _recording_seed(self, original: Callable[[], int]) -> Callable[[], int]:
        def recording() -> int:
            seed = int(original())
            self._local.drawn = seed % (_SEEDS - 1)
            return seed

        return recording

    def _seeded(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(*arguments: Any, seed: Any = 0, seed2: Any = 0, **options: Any) -> Any:
            if context.executing_eagerly():
                seed, seed2 = self._seeds(op, int(seed or 0), int(seed2 or 0))
            return original(*arguments, seed=seed, seed2=seed2, **options)

        return seeded

    def _seeds(self, op: str, seed: int, seed2: int) -> tuple[int, int]:
        fresh = self._local.drawn
        self._local.drawn = None
        if seed2 == fresh or not (seed or seed2):
            return seed, seed2
        self._restart_after_new_seed()
        calls = self._calls[op, seed, seed2]
        self._calls[op, seed, seed2] = calls + 1
        if not calls:
            return seed, seed2
        return _derived(seed, seed2, calls)

    def _restart_after_new_seed(self) -> None:
        if self._counted_from is not _seed_source():
            self._counted_from = _seed_source()
            self._calls.clear()

    @contextmanager
    def tracing(self, function: Any) -> Iterator[None]:
        """Context manager for tracing ``function``, which counts its draws."""
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", "")
        self._local.functions.append((f"{module}.{name}", count()))
        try:
            yield
        finally:
            self._local.functions.pop()

    def _marking(self, make: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``make``, which traces a dataset's function; no operation is replaced in it."""

        def marking(*arguments: Any, **options: Any) -> None:
            self._local.datasets += 1
            try:
                make(*arguments, **options)
            finally:
                self._local.datasets -= 1

        return marking

    def _drawing(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
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
        tracing = self._local
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
        function, draws = self._local.functions[-1]
        key = f"{function}/{next(draws)}"
        generator = self.generators.get(key)
        if generator is None:
            self._initial[key] = initial = (0, seed2, seed)
            state = np.array(self._waiting.pop(key, initial), np.int64)
            # Outside of the traced graph, which must not own the variable.
            with tf.init_scope():
                generator = tf.random.Generator.from_state(state, "philox")
            self.generators[key] = generator
        _keep(generator)
        return generator


def _keep(generator: Any) -> None:
    """Let the graphs that use a generator reference it, because they reference variables weakly."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        graph.sweeper_generators = [*getattr(graph, "sweeper_generators", ()), generator]
        graph = graph.outer_graph


def _derived(seed: int, seed2: int, calls: int) -> tuple[int, int]:
    # A SeedSequence takes no negative numbers, and seeds may be negative.
    sequence = np.random.SeedSequence([seed % (1 << 64), seed2 % (1 << 64), calls])
    first, second = (int(word) % _SEEDS for word in sequence.generate_state(2))
    return first, second + 1  # never (0, 0), which means the system's entropy


def _seed_source() -> Any:
    return getattr(context.context(), "_rng", None)


class HiddenState:
    """The parts of the hidden state, entered and left together; see `FreshEntropy` for the arguments."""

    def __init__(
        self, sequence: np.random.SeedSequence, notify: Callable[[str], None] | None = None
    ) -> None:
        self.fresh_entropy = FreshEntropy(sequence, "training", notify)
        self.operations = RandomOperations()
        self.traced_functions = TracedFunctions(self.operations.tracing)

    @property
    def components(self) -> tuple[FreshEntropy | RandomOperations, ...]:
        """Return the parts with state, in the order of capture and restore."""
        return (self.fresh_entropy, self.operations)

    def __enter__(self) -> Self:
        for part in (*self.components, self.traced_functions):
            part.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        for part in (self.traced_functions, *reversed(self.components)):
            part.__exit__(*exception)
