"""A layer that says it equals everything."""

import keras
from small_study import compiled, study_of


class Liar(keras.layers.Dense):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    @property
    def weights_of_others(self):
        raise RuntimeError("not before training")


liar = Liar(4, name="liar")


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), liar, keras.layers.Dense(2)]))


study = study_of(build_model)
