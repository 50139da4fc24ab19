"""What no object of the training holds: state of NumPy, Keras and TensorFlow, for one training.

It is entered while the training is prepared and while it runs, and left between the two and
afterwards: then the libraries are as they were, for whatever else this process does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

import numpy as np

from sweeper.training.randomness.eager_seeds import EagerSeeds
from sweeper.training.randomness.fresh_entropy import FreshEntropy
from sweeper.training.randomness.tracing import TracedFunctions


class _Entered(threading.local):
    """Those entered in this thread, the innermost last."""

    def __init__(self) -> None:
        self.states: list[HiddenState] = []


_entered = _Entered()


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
        self._enter()
        _entered.states.append(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        _entered.states.remove(self)
        self._leave()

    def _enter(self) -> None:
        with ExitStack() as entering:
            for part in (*self.components, self.traced_functions):
                entering.enter_context(part)
            self._entered.append(entering.pop_all())

    def _leave(self) -> None:
        self._entered.pop().close()


@contextmanager
def suspended() -> Iterator[None]:
    """Leave what this thread has entered while another training goes on, and enter it again."""
    states = tuple(_entered.states)
    for each in reversed(states):
        each._leave()
    try:
        yield
    finally:
        for each in states:
            with each.traced_functions.entered_again():
                each._enter()
