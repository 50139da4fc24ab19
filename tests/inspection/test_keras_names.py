"""Every private name that the walks go by is one of the installed Keras."""

import keras
import numpy as np
from keras.src.models.functional import Functional

from sweeper.inspection import keras_names
from sweeper.inspection.code import assigned_by

_OF_SWEEPER = frozenset({"training_step"})


def names_there_are():
    """Return the names of attributes, methods and assignments of Keras's classes and of built objects."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        gradient_accumulation_steps=2,
        use_ema=True,
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    callback = keras.callbacks.Callback()
    model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0, callbacks=[callback])
    model.predict(np.zeros((4, 2)), verbose=0)
    own = [model, model._functional, optimizer, callback]
    found = set()
    for each in [*own, *model.layers, *model.metrics]:
        found |= {*vars(each), *dir(type(each))}
    for cls in (keras.Model, Functional, keras.layers.Layer, keras.optimizers.Optimizer):
        found |= assigned_by(cls, library=True)
    return found


def all_names():
    found = {}
    for group, value in vars(keras_names).items():
        if group.isupper() and group not in ("IN_TF_CHECKPOINTS", "TRACKING_PREFIXES"):
            found |= dict.fromkeys([value] if isinstance(value, str) else value, group)
    return found


def test_every_private_name_is_one_of_the_installed_keras():
    gone = set(all_names()) - names_there_are() - _OF_SWEEPER
    assert not gone, {name: all_names()[name] for name in gone}


def test_control_a_name_that_keras_does_not_have_is_seen(monkeypatch):
    monkeypatch.setattr(keras_names, "COMPILED", frozenset({"_compile_losses"}))
    assert set(all_names()) - names_there_are() >= {"_compile_losses"}
