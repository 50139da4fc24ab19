"""Parts made once: a tf.Module around a layer, a Sequential that is yet to be built, and a weight."""

import keras
import numpy as np
import tensorflow as tf
from small_study import compiled, study_of


class Trunk(tf.Module):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(8, name="dense")

    def __call__(self, x):
        return self.dense(x)


TRUNK = Trunk()
DROPPING = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5)], name="dropping")
BIAS = keras.Variable(np.zeros(8), name="offset")


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = TRUNK
        self.dropping = DROPPING
        self.bias = BIAS
        self.head = keras.layers.Dense(2)

    def call(self, x, training=False):
        return self.head(self.dropping(self.trunk(x) + self.bias, training=training))


def build_model(trial):
    return compiled(Network())


study = study_of(build_model)
