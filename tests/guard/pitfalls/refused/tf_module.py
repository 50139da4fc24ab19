"""A tf.Module made once, around a layer."""

import keras
import tensorflow as tf
from small_study import compiled, study_of


class Trunk(tf.Module):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, name="trunk")

    def __call__(self, x):
        return self.dense(x)


TRUNK = Trunk()


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = TRUNK
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.trunk(x))


def build_model(trial):
    return compiled(Network())


study = study_of(build_model)
