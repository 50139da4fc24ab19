"""A schedule that counts its calls."""

import keras
from small_study import study_of


class Counting(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1e-3 / self.calls


counting = Counting()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.SGD(counting),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


study = study_of(build_model)
