"""Study around the factories of a pitfall: small data, one epoch, two trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from sweeper import Data, Study
from sweeper.definition.trial import Trial


def load_data(trial: Trial) -> Data:
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


def compiled(model: keras.Model) -> keras.Model:
    """Compile the model for these data, and return it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    return model


def study_of(
    model: Callable[..., Any], data: Callable[..., Any] = load_data, **others: Callable[..., Any]
) -> Study:
    """Return the study of these factories."""
    return Study(
        name="small", model=model, data=data, objective="loss", epochs=1, trials=2, **others
    )
