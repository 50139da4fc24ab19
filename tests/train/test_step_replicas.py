"""Losses of a step add up over replicas to those of one replica with the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import two_replicas

from sweeper import TrainingStep
from sweeper.gradients import clip_by_global_norm

X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
W = np.linspace(0.5, 2.0, 16).astype("float32")


def trained(strategy: Any, parts: list[tuple[int, int]], reduction: str) -> Any:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        dense = keras.layers.Dense(1, kernel_regularizer="l2")
        model = keras.Sequential([keras.Input((6,)), dense])
        step = TrainingStep(
            optimizer=keras.optimizers.Adam(0.1),
            loss=keras.losses.MeanSquaredError(reduction=reduction),
            metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
            gradients=[clip_by_global_norm(0.5)],
        )
        step.bind(model)
        step.optimizer.build(model.trainable_variables)

    def part(context: Any) -> Any:
        begin, end = parts[context.replica_id_in_sync_group]
        return tuple(tf.constant(a[begin:end]) for a in (X, Y, W))

    @tf.function(autograph=False)
    def run(batch: Any) -> None:
        strategy.run(step.train_step, args=(batch,))

    for _ in range(3):
        run(strategy.experimental_distribute_values_from_function(part))
    logs = {name: float(value) for name, value in model.get_metrics_result().items()}
    return dense.kernel.numpy(), dense.bias.numpy(), logs


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_replicas_with_equal_and_unequal_parts_train_as_one_with_the_whole_batch(
    reduction: str,
) -> None:
    kernel, bias, logs = trained(tf.distribute.get_strategy(), [(0, 16)], reduction)
    for parts in ([(0, 8), (8, 16)], [(0, 13), (13, 16)]):
        other_kernel, other_bias, other_logs = trained(two_replicas(), parts, reduction)
        np.testing.assert_allclose(other_kernel, kernel, rtol=1e-5)
        np.testing.assert_allclose(other_bias, bias, rtol=1e-5)
        np.testing.assert_allclose(other_logs["loss"], logs["loss"], rtol=1e-5)
        np.testing.assert_allclose(other_logs["mae"], logs["mae"], rtol=1e-5)
