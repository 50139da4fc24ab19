"""The metrics of a custom training step, made in the model's __init__."""

import keras
import numpy as np
import tensorflow as tf
from small_study import study_of

from sweeper import Data


class CustomModel(keras.Model):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.mean_squared_error(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def build_model(trial):
    inputs = keras.Input((8,))
    model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="adam")
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)), numbers.normal(size=(32, 1))))


study = study_of(build_model, data=load_data)
