"""State that libraries keep once in a process, kept separately for each lane.

Lanes of one process run one at a time, each in its own thread. Keras keeps its global seed
generator, its counters of names and its dtype policy by thread; Python's, NumPy's and TensorFlow's
generators and Keras's number settings belong to the process, and are exchanged whenever another
lane goes on. A lane begins with the state in which the process began.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any, Self

import keras
import numpy as np
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

_CONTEXT: Any = context
_GENERATORS: Any = stateful_random_ops
_KERAS: Any = global_state
_TRACKERS = ("GLOBAL_STATE_TRACKER", "GLOBAL_SETTINGS_TRACKER")
"""Keras's state by thread; ``clear_session()`` replaces the first for all threads."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Such state of one lane while the lane does not run."""

    python: Any
    numpy: Any
    seed: Any
    drawing: Any
    generator: Any
    settings: tuple[str, float, str]
    trackers: tuple[Any, ...]

    @classmethod
    def now(cls) -> Self:
        """Return the process's state."""
        tensorflow = _CONTEXT.context()
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),  # noqa: NPY002 - what users use
            seed=tensorflow._seed,
            drawing=getattr(tensorflow, "_rng", None),
            generator=_GENERATORS.global_generator,
            settings=(
                keras.config.floatx(),
                keras.config.epsilon(),
                keras.config.image_data_format(),
            ),
            trackers=tuple(getattr(_KERAS, name) for name in _TRACKERS),
        )

    def put_back(self) -> None:
        """Make this the process's state."""
        tensorflow = _CONTEXT.context()
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002 - what users use
        tensorflow._seed, tensorflow._rng = self.seed, self.drawing
        _GENERATORS.global_generator = self.generator
        floatx, epsilon, data_format = self.settings
        keras.config.set_floatx(floatx)
        keras.config.set_epsilon(epsilon)
        keras.config.set_image_data_format(data_format)
        for name, tracker in zip(_TRACKERS, self.trackers, strict=True):
            setattr(_KERAS, name, tracker)


@dataclass(frozen=True, slots=True)
class KerasOfThread:
    """Keras's state of a thread, as in the thread that imported the study."""

    kept: tuple[dict[str, Any], ...]

    @classmethod
    def now(cls) -> Self:
        """Return this thread's."""
        return cls(tuple(_copied(vars(getattr(_KERAS, name))) for name in _TRACKERS))

    def put(self) -> None:
        """Set it in this thread, which has not used Keras yet."""
        for name, values in zip(_TRACKERS, self.kept, strict=True):
            vars(getattr(_KERAS, name)).update(_copied(values))


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in which counters, such as those of names, are copied too."""
    return {
        name: copy.copy(value) if isinstance(value, dict | list | set) else value
        for name, value in values.items()
    }
