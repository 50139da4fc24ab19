"""Seeds of a trial, and seeding of all generators.

A trial's randomness is a pure function of (study seed, trial number). Each purpose has a named child
seed, so a factory that draws more numbers does not affect the others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

IMPORT_SEED = 0
"""Seed for importing a study's module in any process: numbers that the module draws at its top level
are the same for all trials and after a resume."""

_earlier: list[Any] = []
"""References to Keras's earlier global generators, which traced functions of datasets need."""


@dataclass(frozen=True, slots=True)
class TrialSeeds:
    """The seeds of one trial: ``numpy.random.SeedSequence([study_seed, number])`` and children."""

    study_seed: int
    number: int

    @property
    def root(self) -> int:
        """Return the trial's seed, below 2**32, which `Trial.seed` and the records show."""
        return int(self._sequence().generate_state(1)[0])

    def child(self, name: str) -> int:
        """Return the seed, below 2**32, for the purpose ``name`` (model, data, callbacks, …)."""
        return int(self.sequence(name).generate_state(1)[0])

    def sequence(self, name: str) -> np.random.SeedSequence:
        """Return the seed sequence for the purpose ``name``."""
        return self._sequence(zlib.crc32(name.encode()))

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        # Verbs that only read import this module, and need no NumPy.
        import numpy as np

        return np.random.SeedSequence([self.study_seed, self.number], spawn_key=key)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's, TensorFlow's and Keras's global generators with ``seed``."""
    import keras

    from sweeper.train.randomness.generators import global_seed_generator

    earlier = global_seed_generator()
    if earlier is not None:
        _earlier.append(earlier)
    keras.utils.set_random_seed(seed)
