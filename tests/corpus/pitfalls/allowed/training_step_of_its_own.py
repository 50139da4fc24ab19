"""A training step whose optimizers, metrics and variables are each trial's."""

import keras
import numpy as np
from small_study import study_of

from sweeper import Data, TrainingStep
from sweeper.gradients import clip_by_global_norm, nan_to_zero

PROCESSORS = [nan_to_zero, clip_by_global_norm(1.0)]


class Step(TrainingStep):
    def __init__(self, trial):
        super().__init__(optimizer=keras.optimizers.SGD(0.1), loss="mse", gradients=PROCESSORS)
        self.of_head = keras.optimizers.Adam(0.01)
        self.norm = keras.metrics.Mean("norm")
        self.beta = keras.Variable(0.0, trainable=False)

    def update(self, gradients, variables, values):
        self.of_head.apply_gradients(zip(gradients, variables, strict=True))


def build_model(trial):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


def load_data(trial):
    x = np.random.default_rng(trial.seed).normal(size=(32, 8)).astype("float32")
    return Data(train=(x, x[:, :2]))


study = study_of(build_model, step=Step, data=load_data)
