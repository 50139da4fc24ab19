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


def take_one_step(model: keras.Model, train_step: Callable[[Any], Any], batch: Any) -> None:
    """Run ``train_step`` once, for the variables that it creates.

    Args:
        model: A compiled model that runs eagerly.
        train_step: Its own, or a `TrainingStep`'s.
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays.
    """

    def tensor(array: Any) -> Any:
        composite = isinstance(array, tf.SparseTensor | tf.RaggedTensor)
        return array if array is None or composite else tf.convert_to_tensor(array)

    tensors = tf.nest.map_structure(tensor, batch)
    on_replicas = replicated(model, train_step)
    if on_replicas is not None:
        on_replicas(tensors)
        return
    model.distribute_strategy.run(train_step, args=(tensors,))
