"""Losses of a step add up over replicas to those of one replica with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = """
import json, sys
import keras, numpy as np, tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from sweeper import TrainingStep
from sweeper.gradients import clip_by_global_norm

X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
W = np.linspace(0.5, 2.0, 16).astype("float32")


def trained(strategy, parts, reduction):
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

    def part(context):
        begin, end = parts[context.replica_id_in_sync_group]
        return tuple(tf.constant(a[begin:end]) for a in (X, Y, W))

    @tf.function(autograph=False)
    def run(batch):
        return strategy.run(step.train_step, args=(batch,))

    for _ in range(3):
        run(strategy.experimental_distribute_values_from_function(part))
    logs = {m: float(v) for m, v in model.get_metrics_result().items()}
    return [dense.kernel.numpy().tolist(), dense.bias.numpy().tolist(), logs]


found = {}
for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight"):
    one = trained(tf.distribute.get_strategy(), [(0, 16)], reduction)
    # TensorFlow's collective ops would allow one strategy a process.
    adding = tf.distribute.ReductionToOneDevice()
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=adding)
    equal = trained(two, [(0, 8), (8, 16)], reduction)
    unequal = trained(two, [(0, 13), (13, 16)], reduction)
    found[reduction] = [one, equal, unequal]
print(json.dumps(found))
"""


def test_replicas_with_equal_and_unequal_parts_train_as_one_with_the_whole_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    for results in json.loads(done.stdout.splitlines()[-1]).values():
        (kernel, bias, logs), *others = results
        for other_kernel, other_bias, other_logs in others:
            np.testing.assert_allclose(other_kernel, kernel, rtol=1e-5)
            np.testing.assert_allclose(other_bias, bias, rtol=1e-5)
            np.testing.assert_allclose(other_logs["loss"], logs["loss"], rtol=1e-5)
            np.testing.assert_allclose(other_logs["mae"], logs["mae"], rtol=1e-5)
