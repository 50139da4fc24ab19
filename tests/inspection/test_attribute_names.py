"""Names of attributes that the walks go by: Keras's own, and those a user's class gives measured times."""

import importlib
import sys
from textwrap import dedent

import keras
import numpy as np
import pytest
from generate_what_is_captured import CALLBACKS
from keras.src.models.functional import Functional

from sweeper.inspection import keras_names
from sweeper.inspection.code import assigned_by
from sweeper.inspection.measured import measured_names
from sweeper.train.userstate.walk import HANDLES

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
    objects = [model, model._functional, optimizer, callback]
    names = set()
    for instance in [*objects, *model.layers, *model.metrics]:
        names |= {*vars(instance), *dir(type(instance))}
    for cls in (keras.Model, Functional, keras.layers.Layer, keras.optimizers.Optimizer):
        names |= assigned_by(cls, library=True)
    return names


def all_names():
    groups = {}
    for group, value in vars(keras_names).items():
        if group.isupper() and group not in ("IN_TF_CHECKPOINTS", "TRACKING_PREFIXES"):
            groups |= dict.fromkeys([value] if isinstance(value, str) else value, group)
    return groups


def test_every_private_name_is_one_of_the_installed_keras():
    gone = set(all_names()) - names_there_are() - _OF_SWEEPER
    assert not gone, {name: all_names()[name] for name in gone}


def test_control_a_name_that_keras_does_not_have_is_seen(monkeypatch):
    monkeypatch.setattr(keras_names, "COMPILED", frozenset({"_compile_losses"}))
    assert set(all_names()) - names_there_are() >= {"_compile_losses"}


@pytest.mark.parametrize("name", CALLBACKS)
def test_every_attribute_in_the_table_of_callbacks_is_one_that_keras_assigns(name):
    cls = getattr(keras.callbacks, name)
    names = {*CALLBACKS[name][0], *HANDLES.get(cls, ())}
    assert names <= assigned_by(cls, library=True)


CLASSES = """
    import datetime
    import time
    from time import perf_counter as now

    class Clock:
        def time(self):
            return 3

    class Measures:
        def begin(self):
            self.began = now()
            self.count = 1

        def end(self, logs):
            import time as clock
            took = clock.time() - self.began
            self.rounded.append(round(took, 1))
            logs["seconds"] = took
            self.state["took"], self.other = took, 3
            self.day = datetime.date.today()

        def since(self):
            return time.monotonic()

    class Inherits(Measures):
        pass

    class CallsItsOwn:
        clock = Clock()

        def end(self):
            self.count = self.clock.time()
            self.text = "time.time()"

        @property
        def clocked(self):
            raise RuntimeError
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "users_clocks.py").write_text(dedent(CLASSES))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("users_clocks")
    del sys.modules["users_clocks"]


def test_what_a_clock_reaches_is_named_and_what_it_does_not_is_not(module):
    names = measured_names(module.Measures)
    assert names >= {"began", "rounded", "seconds", "took", "day", "since"}
    assert not names & {"count", "begin", "end"}
    assert measured_names(module.Inherits) == names
    assert measured_names(module.CallsItsOwn) == frozenset(), "a method called time is no clock"
    assert measured_names(dict) == frozenset()
