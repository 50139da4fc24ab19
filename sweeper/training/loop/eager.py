"""Creating the variables of a model that runs eagerly, so that a checkpoint can be restored.

A traced step creates every variable before training begins. A step that runs eagerly creates them
when it first runs: a resumed training takes one step for that, and what the step changed is then
restored with everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sweeper.training.replicas.step import replicated
from sweeper.training.sources.arrays import is_ragged


def take_one_step(
    model: keras.Model, train_step: Callable[[Any], Any], batch: Any, batch_size: int
) -> None:
    """Run ``train_step`` once, for the variables that it creates.

    Args:
        model: A compiled model that runs eagerly.
        train_step: Its own, or a `TrainingStep`'s.
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays.
        batch_size: Samples to take of them.
    """

    def first(array: Any) -> Any:
        if array is None or is_ragged(array):
            return None if array is None else array[:batch_size]
        return tf.convert_to_tensor(array[:batch_size])

    tensors = tf.nest.map_structure(first, batch)
    on_replicas = replicated(model, train_step)
    if on_replicas is not None:
        on_replicas(tensors)
        return
    model.distribute_strategy.run(train_step, args=(tensors,))
