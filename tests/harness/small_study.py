"""Study around the factories of a pitfall: small data, one epoch, two trials."""

import keras
import numpy as np

from sweeper import Data, Study


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


def compiled(model):
    """Compile the model for these data, and return it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    return model


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def study_of(model, data=load_data, **others):
    """Return the study of these factories."""
    shape = {"objective": "loss", "epochs": 1, "trials": 2, "audit": "off"}
    return Study(name="small", model=model, data=data, **shape, **others)
