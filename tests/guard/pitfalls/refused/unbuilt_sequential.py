"""A Sequential that is built by the first model that uses it, made once."""

import keras
from small_study import compiled, study_of

trunk = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5)], name="trunk")


class Net(keras.Model):
    def __init__(self):
        super().__init__(name="net")
        self.trunk = trunk
        self.head = keras.layers.Dense(2)

    def call(self, x, training=False):
        return self.head(self.trunk(x, training=training))


def build_model(trial):
    return compiled(Net())


study = study_of(build_model)
