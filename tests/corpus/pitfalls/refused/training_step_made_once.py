"""One training step for all trials."""

import keras
import numpy as np
from small_study import study_of

from sweeper import Data, TrainingStep

STEP = TrainingStep(optimizer=keras.optimizers.SGD(0.1), loss="mse")


def build_model(trial):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


def build_step(trial):
    return STEP


def load_data(trial):
    x = np.random.default_rng(trial.seed).normal(size=(32, 8)).astype("float32")
    return Data(train=(x, x[:, :2]))


study = study_of(build_model, step=build_step, data=load_data)
