"""Seeds of a trial, and seeding of all generators.

A trial's randomness is a pure function of (study seed, trial number). Each use has a named child
of it, so that a factory which draws one more number changes nothing for the others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

IMPORT_SEED = 0
"""Seeds the import of a study's module, in whichever process that happens: what the module draws
at its top level is then the same for every trial, and the same when the study is resumed."""

_earlier: list[Any] = []
"""Keras's earlier global generators: a dataset's function that was traced with one fails once it is freed."""


@dataclass(frozen=True, slots=True)
class TrialSeeds:
    """The seeds of one trial: ``numpy.random.SeedSequence([study_seed, number])`` and children."""

    study_seed: int
    number: int

    @property
    def root(self) -> int:
        """Return the trial's seed, below 2**32, which `Trial.seed` and the records show."""
        return int(np.random.SeedSequence([self.study_seed, self.number]).generate_state(1)[0])

    def child(self, name: str) -> int:
        """Return the seed, below 2**32, of the use called ``name`` (model, data, callbacks, …)."""
        return int(self.sequence(name).generate_state(1)[0])

    def sequence(self, name: str) -> np.random.SeedSequence:
        """Return the seed sequence of the use called ``name``, for a separate NumPy generator."""
        key = zlib.crc32(name.encode())
        return np.random.SeedSequence([self.study_seed, self.number], spawn_key=(key,))


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's, TensorFlow's and Keras's global generators with ``seed``."""
    import keras

    from sweeper.train.randomness.generators import global_seed_generator

    before = global_seed_generator()
    if before is not None:
        _earlier.append(before)
    keras.utils.set_random_seed(seed)
