"""What no object of the training holds: state of NumPy, Keras and TensorFlow, for one training.

It is entered while the training is prepared and while it runs, and left between the two and
afterwards: then the libraries are as they were, for whatever else this process does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

import numpy as np

from sweeper.training.randomness.eager_seeds import EagerSeeds
from sweeper.training.randomness.fresh_entropy import FreshEntropy
from sweeper.training.randomness.tracing import TracedFunctions


class HiddenState:
    """The parts, entered and left together.

    Args:
        sequence: A seed sequence of the trial's.
        tell: See `FreshEntropy`.
    """

    def __init__(
        self, sequence: np.random.SeedSequence, tell: Callable[[str], None] | None = None
    ) -> None:
        self.fresh_entropy = FreshEntropy(sequence, "training", tell)
        self.eager_seeds = EagerSeeds()
        self.traced_functions = TracedFunctions()
        self._entered: list[ExitStack] = []

    @property
    def components(self) -> tuple[FreshEntropy | EagerSeeds, ...]:
        """Those with state, in the order in which it is captured and restored."""
        return (self.fresh_entropy, self.eager_seeds)

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            for part in (*self.components, self.traced_functions):
                entering.enter_context(part)
            self._entered.append(entering.pop_all())
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().close()
