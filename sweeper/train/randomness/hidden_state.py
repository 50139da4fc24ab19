"""Random state outside of a training's objects: in NumPy, Keras, TensorFlow and its eager ops.

`HiddenState` is entered while the training is prepared and while it runs. In between and afterwards
it is left, and the libraries are unchanged for other code of the process.

TensorFlow caches the kernel of an eager random operation with a seed. The kernel's position in its
stream cannot be read or set, so a resumed process would draw the first numbers again. Therefore no
kernel is used twice. The first call of an operation with a pair of seeds gets these seeds, and so the
usual numbers; call k gets seeds derived from the pair and k. The numbers of calls are captured.

The seeds are replaced in the functions of the operations, which ``tf.random``, ``tf.image`` and ``tf.nn`` call,
and in those of ``tf.raw_ops``. Operations without a seed are unchanged, because TensorFlow
draws a new seed for each call (`sweeper.train.randomness.generators.TensorFlowRandom`). For operations
in graphs see `sweeper.train.randomness.tracing`. ``tf.random.set_seed`` restarts all streams, as in
TensorFlow.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from tensorflow.python.eager import context

from sweeper.train.codec import Json, Tensors
from sweeper.train.component import Component
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.interception import (
    DRAWN_SEED,
    RANDOM_FUNCTIONS,
    RAW_RANDOM_FUNCTIONS,
    Interception,
    Replacements,
)
from sweeper.train.randomness.tracing import GraphGenerators, TracedFunctions

_SEEDS = 1 << 31
"""Upper bound of derived seeds, the same as for users' seeds in TensorFlow."""


class EagerSeeds(Interception, Component):
    """Component of the seeds of eager operations, which are replaced while it is entered."""

    name = "eager_operations"

    def __init__(self) -> None:
        super().__init__(self._replaced)
        self.graphs = GraphGenerators()
        """Generators that replace such operations in graphs."""
        self._calls: Counter[tuple[str, int, int]] = Counter()
        self._counted_from: Any = None
        """TensorFlow's generator of seeds; ``tf.random.set_seed`` replaces it."""
        self._drawn = threading.local()
        """The last seed that TensorFlow drew in each thread, until an operation uses it."""

    def _replaced(self) -> Replacements:
        yield DRAWN_SEED, self._recording_seed()
        for op, each in RANDOM_FUNCTIONS.items():
            yield each, self.graphs.drawing(op, self._seeded(op, each.current))
        for op, each in RAW_RANDOM_FUNCTIONS.items():
            yield each, self._seeded(op, each.current)
        yield from self.graphs.replaced()

    def capture(self, tensors: Tensors) -> Json:
        self._restart_after_new_seed()
        calls = [[*call, count] for call, count in self._calls.items()]
        return {"calls": calls, "graphs": self.graphs.capture(f"{self.name}/graphs", tensors)}

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._counted_from = _seed_source()
        self._calls = Counter({(op, *seeds): count for op, *seeds, count in saved["calls"]})
        self.graphs.restore(saved["graphs"], tensors.get(f"{self.name}/graphs"))

    def _recording_seed(self) -> Callable[[], int]:
        original = DRAWN_SEED.current

        def recording() -> int:
            seed = int(original())
            self._drawn.seed = seed % (_SEEDS - 1)
            return seed

        return recording

    def _seeded(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(*arguments: Any, seed: Any = 0, seed2: Any = 0, **options: Any) -> Any:
            if context.executing_eagerly():
                seed, seed2 = self._seeds(op, int(seed or 0), int(seed2 or 0))
            return original(*arguments, seed=seed, seed2=seed2, **options)

        return seeded

    def _seeds(self, op: str, seed: int, seed2: int) -> tuple[int, int]:
        fresh, self._drawn.seed = getattr(self._drawn, "seed", None), None
        if seed2 == fresh or not (seed or seed2):
            return seed, seed2
        self._restart_after_new_seed()
        calls = self._calls[op, seed, seed2]
        self._calls[op, seed, seed2] = calls + 1
        return _derived(seed, seed2, calls) if calls else (seed, seed2)

    def _restart_after_new_seed(self) -> None:
        if self._counted_from is not _seed_source():
            self._counted_from = _seed_source()
            self._calls.clear()


def _derived(seed: int, seed2: int, calls: int) -> tuple[int, int]:
    sequence = np.random.SeedSequence([seed % (1 << 64), seed2 % (1 << 64), calls])
    first, second = (int(word) % _SEEDS for word in sequence.generate_state(2))
    return first, second + 1  # never (0, 0), which means the system's entropy


def _seed_source() -> Any:
    return getattr(context.context(), "_rng", None)


class HiddenState:
    """The parts of the hidden state, entered and left together; see `FreshEntropy` for the arguments."""

    def __init__(
        self, sequence: np.random.SeedSequence, tell: Callable[[str], None] | None = None
    ) -> None:
        self.fresh_entropy = FreshEntropy(sequence, "training", tell)
        self.eager_seeds = EagerSeeds()
        self.traced_functions = TracedFunctions(self.eager_seeds.graphs)
        self._entered: list[ExitStack] = []

    @property
    def components(self) -> tuple[FreshEntropy | EagerSeeds, ...]:
        """Return the parts with state, in the order of capture and restore."""
        return (self.fresh_entropy, self.eager_seeds)

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            for part in (*self.components, self.traced_functions):
                entering.enter_context(part)
            self._entered.append(entering.pop_all())
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().close()
