"""Random layers in a Sequential at the top of the file, which nothing has built yet: it never gets weights."""

import keras
import numpy as np
from small_study import study_of

from sweeper import Data

augmentation = keras.Sequential(
    [keras.layers.RandomFlip("horizontal"), keras.layers.RandomContrast(0.3)], name="augmentation"
)


class Augmented(keras.Model):
    def __init__(self, before):
        super().__init__()
        self.before = before
        self.head = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])

    def call(self, x, training=False):
        return self.head(self.before(x, training=training))


def build_model(trial):
    model = Augmented(augmentation)
    model.compile("sgd", "mse")
    return model


def load_data(trial):
    return Data(train=(np.ones((8, 4, 4, 3), "float32"), np.ones(8, "float32")))


study = study_of(build_model, data=load_data)
