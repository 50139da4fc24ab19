"""The guard refuses exactly what two trials share, however models are put together and wherever an object is kept."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import threading
import types
import weakref
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.errors import IndependenceError
from sweeper.guard.guard import Guard, visits_from
from sweeper.inspection import walk as walking
from sweeper.inspection.walk import ObjectPath

UNITS = 3
CHANGING = ("dense", "statistics", "nested", "own")
KINDS = (*CHANGING, "dropout", "frozen", "flatten", "vocabulary")


class Own(keras.layers.Layer):
    """A layer that keeps its parts where Keras does not look."""

    def __init__(self, name):
        super().__init__(name=name)
        self.parts = types.SimpleNamespace(inner=[keras.layers.Dense(UNITS, name=f"{name}_inner")])
        self.table = {"seeds": weakref.ref(self), "numbers": (1, 2)}

    def call(self, x):
        return self.parts.inner[0](x)


def make(kind, index):
    name = f"{kind}_{index}"
    if kind == "dense":
        return keras.layers.Dense(UNITS, name=name)
    if kind == "dropout":
        return keras.layers.Dropout(0.1, name=name)
    if kind == "statistics":
        return keras.layers.BatchNormalization(center=False, scale=False, name=name)
    if kind == "nested":
        return keras.Sequential(
            [keras.Input((UNITS,)), keras.layers.Dense(UNITS, name=f"{name}_inner")], name=name
        )
    if kind == "own":
        return Own(name)
    if kind == "frozen":
        layer = keras.layers.Dense(UNITS, name=name, trainable=False)
        layer.build((None, UNITS))
        return layer
    if kind == "flatten":
        return keras.layers.Flatten(name=name)
    layer = keras.layers.Normalization(name=name, mean=[0.0] * UNITS, variance=[1.0] * UNITS)
    layer.build((None, UNITS))
    return layer


@dataclass(frozen=True)
class Case:
    """Kinds of layers; which of them both models have; and what else both have."""

    layers: list[tuple[str, bool]]
    optimizer: bool
    callback: bool
    functional: bool
    twice: bool = field(default=False)


cases = st.builds(
    Case,
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def build(layers, optimizer, case):
    x = inputs = keras.Input((UNITS,))
    if case.functional:
        for layer in layers:
            x = layer(x)
            if case.twice:
                x = layer(x)
        model = keras.Model(inputs, x)
    else:
        model = keras.Sequential([inputs, *layers])
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def shared(what, first, second):
    """Have one trial make ``first`` and the next ``second``; return the names that the guard refuses."""
    made = []
    for make_part in (first, second):
        with Guard(warn=made.append, process="inline") as guard:
            try:
                guard.check(what, make_part())
            except IndependenceError as error:
                return [sharing.name for sharing in error.sharings]
    return []


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cases)
def test_the_guard_refuses_exactly_what_two_trials_share(case):
    keras.backend.clear_session(free_memory=False)
    made = {}

    def part(key, make_it, *, both):
        """One part for both trials, or one for each."""
        if not both or key not in made:
            made[key] = make_it()
        return made[key]

    def model():
        layers = [
            part(index, functools.partial(make, kind, index), both=both)
            for index, (kind, both) in enumerate(case.layers)
        ]
        rate = part("rate", lambda: keras.optimizers.SGD(name="rate"), both=case.optimizer)
        return build(layers, rate, case)

    def callbacks():
        stop = part("stop", keras.callbacks.EarlyStopping, both=case.callback)
        return [stop]

    expected = [
        f"{kind}_{index}"
        for index, (kind, both) in enumerate(case.layers)
        if both and kind in CHANGING
    ]
    expected += ["rate"] * case.optimizer
    found = shared("model", model, model)
    assert sorted(found) == sorted(expected)
    found = shared("callbacks", callbacks, callbacks)
    assert found == ["EarlyStopping"] * case.callback


@pytest.mark.parametrize(
    ("path", "hide"),
    [
        ("x[0][0]", lambda thing: [[thing]]),
        ("x['a']", lambda thing: {"a": thing}),
        ("x['a']", lambda thing: types.MappingProxyType({"a": thing})),
        ("an element of x", lambda thing: {thing}),
        ("x[1]", lambda thing: collections.deque([1, thing])),
        ("x[0]", lambda thing: np.array([thing, None], dtype=object)),
        ("x.a.b", lambda thing: types.SimpleNamespace(a=types.SimpleNamespace(b=thing))),
        ("x", weakref.ref),
        ("argument 0 of the partial x", lambda thing: functools.partial(print, thing)),
        ("argument 'end' of the partial x", lambda thing: functools.partial(print, end=thing)),
        ("closure variable 'thing' of x", lambda thing: lambda: thing),
        ("default argument 'given' of x", lambda thing: lambda given=thing: given),
        ("default argument 'given' of x", lambda thing: lambda *, given=thing: given),
        ("cache of x", lambda thing: cached(thing, functools.cache)),
        ("cache of x", lambda thing: cached(thing, functools.lru_cache(maxsize=2))),
        ("the Holder that x is bound to → held", lambda thing: Holder(thing).method),
        ("x.slot", lambda thing: Slotted(slot=thing)),
        ("x.held", lambda thing: Raising(held=thing)),
        ("x[0]", lambda thing: itertools.cycle([thing])),
        ("closure variable 'thing' of x", lambda thing: (thing for _ in range(2))),
        ("x", lambda thing: context(kept=thing)),
        ("x.held", lambda thing: local(kept=thing)),
        ("x['k']", lambda thing: weakref.WeakValueDictionary(k=thing)),
    ],
)
def test_an_object_is_found_wherever_it_is_kept(path, hide):
    metric = keras.metrics.Mean(name="hidden")
    visits, _ = visits_from([(ObjectPath("x"), hide(metric))])
    assert [visit.path.text for visit in visits if visit.obj is metric] == [path]


_waiting = []


def taken(_key):
    return _waiting.pop()


def cached(thing, decorate):
    _waiting.append(thing)
    function = decorate(taken)
    function(1)
    return function


def context(kept):
    variable = contextvars.ContextVar("variable")
    variable.set(kept)
    return variable


def local(kept):
    made = threading.local()
    made.held = kept
    return made


class Holder:
    def __init__(self, held):
        self.held = held

    def method(self):
        return self.held


class Slotted:
    __slots__ = ("slot", "unset")

    def __init__(self, slot):
        self.slot = slot


class Raising:
    """Answers every question wrongly, or not at all."""

    def __init__(self, held):
        self.__dict__["held"] = held

    def __eq__(self, other):
        return True

    def __hash__(self):
        raise TypeError

    def __bool__(self):
        raise ValueError

    def __len__(self):
        raise ValueError

    def __iter__(self):
        raise ValueError

    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def __class__(self):
        return keras.Model

    @property
    def held_property(self):
        raise RuntimeError


def test_a_cycle_ends_and_depth_is_no_limit():
    metric = keras.metrics.Mean(name="deep")
    ring = [metric]
    for _ in range(5000):
        ring = [ring]
    ring.append(ring)
    visits, cut = visits_from([(ObjectPath("x"), ring)])
    assert metric in [visit.obj for visit in visits]
    assert not cut


def test_a_walk_that_would_not_end_is_cut_and_the_guard_says_so(monkeypatch):
    monkeypatch.setattr(walking, "MOST", 100)
    warnings = []
    with Guard(warn=warnings.append) as guard:
        guard.check("tracked", {"x": [[index] for index in range(1000)]})
    (warning,) = warnings
    assert "the guard did not inspect the others" in warning
