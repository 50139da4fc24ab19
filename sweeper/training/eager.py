"""Creating the variables of a model that runs eagerly, so that a checkpoint can be restored.

A traced step creates every variable before training begins. A step that runs eagerly creates them
when it first runs: a resumed training takes one step for that, and what the step changed is then
restored with everything else.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

__all__ = ["take_one_step"]


def take_one_step(model: keras.Model, batch: Any, batch_size: int) -> None:
    """Run the model's ``train_step`` once, for the variables that it creates.

    Args:
        model: A compiled model that runs eagerly.
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays.
        batch_size: Samples to take of them.
    """

    def first(array: Any) -> Any:
        return None if array is None else tf.convert_to_tensor(array[:batch_size])

    tensors = tf.nest.map_structure(first, batch)
    model.distribute_strategy.run(model.train_step, args=(tensors,))
