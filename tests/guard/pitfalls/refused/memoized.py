"""A decorator of one's own that remembers what a function returned."""

import functools

import keras
from small_study import compiled, study_of


def memoize(function):
    results = {}

    @functools.wraps(function)
    def remembered(*arguments):
        if arguments not in results:
            results[arguments] = function(*arguments)
        return results[arguments]

    return remembered


@memoize
def encoder(units):
    return keras.Sequential([keras.layers.Dense(units), keras.layers.Dropout(0.1)], name="encoder")


def build_model(trial):
    units = trial.suggest_categorical("units", [4, 8, 16])
    return compiled(keras.Sequential([keras.Input((8,)), encoder(units), keras.layers.Dense(2)]))


study = study_of(build_model)
