"""The walk finds exactly what two builds share, however models are put together."""

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
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.guard.owned import outermost, owned_among, visit_all
from sweeper.guard.owned import visits_from as walk
from sweeper.inspection import walk as walking
from sweeper.inspection.sorts import Sort
from sweeper.inspection.walk import ObjectPath

UNITS = 3
CHANGING = ("dense", "dropout", "statistics", "nested", "own")
KINDS = (*CHANGING, "frozen", "flatten", "vocabulary")


def owned_by(**parts):
    return owned_among(visit_all(**parts))


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
    metric: bool
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
    st.booleans(),
)


def build(layers, optimizer, metric, case):
    x = inputs = keras.Input((UNITS,))
    if case.functional:
        for layer in layers:
            x = layer(x)
            if case.twice:
                x = layer(x)
        model = keras.Model(inputs, x)
    else:
        model = keras.Sequential([inputs, *layers])
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae", metric])
    return model


def shared(first, second):
    """The outermost objects that two trainings own, as the first has them."""
    return outermost({key: each for key, each in first.items() if key in second})


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cases)
def test_the_walk_finds_exactly_what_two_builds_share(case):
    keras.backend.clear_session(free_memory=False)
    first = [make(kind, index) for index, (kind, _) in enumerate(case.layers)]
    second = [
        first[index] if both else make(kind, index)
        for index, (kind, both) in enumerate(case.layers)
    ]
    optimizers = [keras.optimizers.SGD(name="rate") for _ in range(2)]
    metrics = [keras.metrics.MeanSquaredError(name="error") for _ in range(2)]
    callbacks = [keras.callbacks.EarlyStopping() for _ in range(2)]
    one = build(first, optimizers[0], metrics[0], case)
    other = build(
        second,
        optimizers[0 if case.optimizer else 1],
        metrics[0 if case.metric else 1],
        case,
    )
    found = shared(
        owned_by(model=one, callbacks=callbacks[:1]),
        owned_by(model=other, callbacks=callbacks[:1] if case.callback else callbacks[1:]),
    )
    expected = [
        layer.name
        for layer, (kind, both) in zip(first, case.layers, strict=True)
        if both and kind in CHANGING
    ]
    expected += ["rate"] * case.optimizer + ["error"] * case.metric
    expected += ["EarlyStopping"] * case.callback
    assert sorted(each.name for each in found) == sorted(expected)


def test_a_walk_that_stops_at_layers_lists_misses_what_a_layer_keeps_elsewhere(monkeypatch):
    layer = Own("own")
    layer.build((None, UNITS))

    def both():
        models = [keras.Sequential([keras.Input((UNITS,)), layer]) for _ in range(2)]
        return shared(*(owned_by(extra={"parts": model.layers[0].parts}) for model in models))

    assert [each.name for each in both()] == ["own_inner"]
    monkeypatch.delitem(walking._OTHERS, Sort.OBJECT)
    assert both() == []


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
    visited = walk([(ObjectPath("x"), hide(metric))])
    assert [v.path.text for v in visited.visits if v.obj is metric] == [path]


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
    assert metric in [each.obj for each in owned_by(extra={"x": ring}).values()]


def test_a_walk_that_would_not_end_says_that_it_was_cut(monkeypatch):
    monkeypatch.setattr(walking, "MOST", 100)
    visited = walk([(ObjectPath("x"), [[index] for index in range(1000)])])
    assert visited.cut
    assert len(visited.visits) == 100


def test_two_objects_that_say_they_are_equal_are_not_shared():
    class Same(keras.metrics.Mean):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    assert shared(owned_by(extra={"a": Same()}), owned_by(extra={"b": Same()})) == []


def test_a_shared_part_is_reported_once_by_its_outermost_object():
    inner = keras.layers.Dense(UNITS, name="inner")
    outer = keras.Sequential([keras.Input((UNITS,)), inner], name="outer")
    models = [keras.Sequential([keras.Input((UNITS,)), outer]) for _ in range(2)]
    models[0].compile(optimizer="adam", loss="mse", metrics=["mae"])
    (sharing,) = shared(*(owned_by(model=model) for model in models))
    assert (sharing.kind, sharing.name) == ("model", "outer")
    assert sharing.path == "model.layers[0]"
    owned = owned_by(model=models[0])
    paths = [each.path for each in owned.values()]
    assert "model.layers[0] 'outer' → layers[0] 'inner' → kernel" in paths
    assert [each.kind for each in outermost(owned)] == ["model"]
    assert all(each.inside is None or each.inside in owned for each in owned.values())


def test_optimizer_slots_are_the_optimizers_and_tensorflows_variables_and_generators_are_found():
    model = keras.Sequential(
        [keras.Input((UNITS,)), keras.layers.Dense(1, name="head")], name="sequential"
    )
    model.compile(optimizer=keras.optimizers.SGD(momentum=0.9), loss="mse")
    model.optimizer.build(model.trainable_variables)
    owned = owned_by(model=model)
    slots = {id(v): owned[id(v)] for v in model.optimizer.variables}
    assert {each.inside for each in slots.values()} == {id(model.optimizer)}
    assert "model.optimizer.sequential_head_kernel_momentum" in [
        each.path for each in slots.values()
    ]
    assert owned[id(model.layers[0].kernel)].path == "model.layers[0] 'head' → kernel"

    class Step(keras.Model):
        def __init__(self):
            super().__init__()
            self.noise = tf.random.Generator.from_seed(1)
            self.scale = tf.Variable(1.0, name="scale")

    model = Step()
    owned = owned_by(model=model)
    assert owned[id(model.noise)].path == "model.noise"
    assert owned[id(model.scale)].path == "model.scale"


def test_what_training_cannot_change_is_nobodys_own():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    loss = keras.losses.Huber()
    frozen = keras.layers.BatchNormalization(trainable=False)
    frozen.build((None, UNITS))
    owned = owned_by(extra={"model": [schedule, loss, np.zeros(3), frozen, tf.constant(1)]})
    assert list(owned.values()) == []
    frozen.trainable = True
    assert [each.kind for each in owned_by(extra={"x": [frozen]}).values()][:1] == ["layer"]
    # A weight that only a function uses belongs to no training.
    weight = keras.Variable(np.zeros(3), name="weight")
    assert owned_by(extra={"f": lambda: weight + 1}) == {}
    assert [o.name for o in owned_by(extra={"x": [weight]}).values()] == ["weight"], "the control"
