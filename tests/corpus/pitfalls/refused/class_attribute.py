"""A layer in a class's body is one layer for all its instances."""

import keras
from small_study import compiled, study_of


class Net(keras.Model):
    trunk = keras.layers.Dense(4, name="trunk")

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.trunk(x))


def build_model(trial):
    model = Net()
    model.build((None, 8))
    return compiled(model)


study = study_of(build_model)
