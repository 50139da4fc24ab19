"""How fast should a network learn that trains on two devices at once?

The 1,797 handwritten digits that ship with scikit-learn, on two replicas: here two logical CPU
devices, so that it runs on any machine; on one with GPUs `two_replicas` would name these. Every
replica takes half of each batch, and has the moving statistics of its batch normalization for itself,
so they are captured, and resumed, replica by replica::

    sweeper run studies/two_replicas.py
"""

from __future__ import annotations

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Every, Study, TrainingStep, Trial, gradients

PER_REPLICA = 32
"""Samples that a replica takes of each batch."""


def two_replicas(_trial: Trial) -> tf.distribute.Strategy:
    """Two logical devices of the CPU; gradients are added up on the first, in a fixed order."""
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def build_model(trial: Trial) -> keras.Model:
    """Dense layers with batch normalization and dropout."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def build_step(_trial: Trial) -> TrainingStep:
    """Keras's own step, with the gradients of both replicas clipped by their common norm."""
    return TrainingStep(gradients=[gradients.clip_by_global_norm(1.0)])


def load_data(_trial: Trial) -> Data:
    """Pixels scaled to 0..1, a quarter for validation, in batches for all replicas together."""
    pixels, digits = load_digits(return_X_y=True)
    x, x_validation, y, y_validation = train_test_split(
        pixels / 16.0, digits, test_size=0.25, random_state=0, stratify=digits
    )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    # The replicas share every batch equally, also the last one.
    equal = len(x) - len(x) % replicas
    x, y = x[:equal], y[:equal]
    return Data(
        train=(x, y), validation=(x_validation, y_validation), batch_size=PER_REPLICA * replicas
    )


study = Study(
    name="two-replicas",
    model=build_model,
    step=build_step,
    data=load_data,
    strategy=two_replicas,
    objective="val_accuracy",
    direction="maximize",
    epochs=8,
    trials=4,
    checkpoint_every=Every(epochs=1, steps=10),
    sampler="grid",
    grid={"learning_rate": [1e-3, 3e-3, 1e-2, 3e-2]},
    concurrency=2,
    threads=1,
    seed=0,
)
