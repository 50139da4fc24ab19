"""Metrics at the top of the file, as guides to custom training steps write them."""

import keras
import numpy as np
import tensorflow as tf
from small_study import study_of

from sweeper import Data

loss_tracker = keras.metrics.Mean(name="loss")
mae_metric = keras.metrics.MeanAbsoluteError(name="mae")


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.mean_squared_error(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        loss_tracker.update_state(loss)
        mae_metric.update_state(y, y_pred)
        return {"loss": loss_tracker.result(), "mae": mae_metric.result()}

    @property
    def metrics(self):
        return [loss_tracker, mae_metric]


def build_model(trial):
    inputs = keras.Input((8,))
    model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="adam")
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)), numbers.normal(size=(32, 1))))


study = study_of(build_model, data=load_data)
