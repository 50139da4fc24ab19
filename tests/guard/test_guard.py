"""The guard refuses exactly what two trials share, however models are put together and wherever an object is kept."""

import collections
import contextvars
import functools
import gc
import itertools
import sys
import threading
import types
import weakref

import keras
import numpy as np
import pytest
from corpus import PITFALLS, expected, swept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.errors import IndependenceError
from sweeper.guard.guard import AgeBoundary, Guard, visits_from
from sweeper.inspection.walk import ObjectPath

UNITS = 3


class Own(keras.layers.Layer):
    """A layer that keeps its parts where Keras does not look."""

    def __init__(self, name):
        super().__init__(name=name)
        self.parts = types.SimpleNamespace(inner=[keras.layers.Dense(UNITS, name=f"{name}_inner")])
        self.table = {"seeds": weakref.ref(self), "numbers": (1, 2)}

    def call(self, x):
        return self.parts.inner[0](x)


def nested(name):
    inner = keras.layers.Dense(UNITS, name=f"{name}_inner")
    return keras.Sequential([keras.Input((UNITS,)), inner], name=name)


def built(layer):
    layer.build((None, UNITS))
    return layer


CHANGING = {
    "dense": lambda name: keras.layers.Dense(UNITS, name=name),
    "statistics": lambda name: keras.layers.BatchNormalization(
        center=False, scale=False, name=name
    ),
    "nested": nested,
    "own": Own,
}
KINDS = {
    **CHANGING,
    "dropout": lambda name: keras.layers.Dropout(0.1, name=name),
    "frozen": lambda name: built(keras.layers.Dense(UNITS, name=name, trainable=False)),
    "flatten": lambda name: keras.layers.Flatten(name=name),
    "vocabulary": lambda name: built(
        keras.layers.Normalization(name=name, mean=[0.0] * UNITS, variance=[1.0] * UNITS)
    ),
}
"""Layers that training changes, and those that it leaves as they are."""


def build(layers, optimizer, form):
    x = inputs = keras.Input((UNITS,))
    if form == "sequential":
        model = keras.Sequential([inputs, *layers])
    else:
        for layer in layers:
            x = layer(x)
            if form == "layers twice":
                x = layer(x)
        model = keras.Model(inputs, x)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def shared(argument, factory):
    """Have two trials call the factory; return the names that the guard refuses."""
    for _ in range(2):
        with Guard(notify=print, process="inline") as guard:
            try:
                guard.check(argument, factory())
            except IndependenceError as error:
                return [sharing.name for sharing in error.sharings]
    return []


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.booleans()), min_size=1, max_size=5),
    st.sampled_from(["sequential", "layers once", "layers twice"]),
    st.booleans(),
    st.booleans(),
)
def test_the_guard_refuses_exactly_what_two_trials_share(layers, form, optimizer, callback):
    """Each layer's kind, and whether both trials have it; whether they share the other two."""
    keras.backend.clear_session(free_memory=False)
    shared_parts = {}

    def part(key, make, *, both):
        if not both or key not in shared_parts:
            shared_parts[key] = make(key)
        return shared_parts[key]

    def model():
        parts = [
            part(f"{kind}_{index}", KINDS[kind], both=both)
            for index, (kind, both) in enumerate(layers)
        ]
        rate = part("rate", lambda name: keras.optimizers.SGD(name=name), both=optimizer)
        return build(parts, rate, form)

    def callbacks():
        return [part("stop", lambda _: keras.callbacks.EarlyStopping(), both=callback)]

    expected = [
        f"{kind}_{index}" for index, (kind, both) in enumerate(layers) if both and kind in CHANGING
    ]
    assert sorted(shared("model", model)) == sorted(expected + ["rate"] * optimizer)
    assert shared("callbacks", callbacks) == ["EarlyStopping"] * callback


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
        ("x", lambda thing: context(value=thing)),
        ("x.held", lambda thing: local(value=thing)),
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


def context(value):
    variable = contextvars.ContextVar("variable")
    variable.set(value)
    return variable


def local(value):
    storage = threading.local()
    storage.held = value
    return storage


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
    monkeypatch.setattr("sweeper.inspection.walk.MOST", 100)
    warnings = []
    with Guard(notify=warnings.append) as guard:
        guard.check("tracked", {"x": [[index] for index in range(1000)]})
    (warning,) = warnings
    assert "the guard did not inspect the others" in warning


def model(*layers):
    network = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    network.compile(optimizer="sgd", loss="mse")
    return network


def guarded(factory, *, warnings=None):
    warn = [].append if warnings is None else warnings.append
    with Guard(notify=warn, process="inline") as guard:
        built = factory()
        guard.check("model", built, factory)
    return built


def test_what_one_trial_made_is_refused_to_the_next_by_its_holder():
    kept = {}

    def build():
        return model(kept.setdefault("trunk", keras.layers.Dense(3, name="trunk")))

    first = guarded(build)
    with pytest.raises(IndependenceError) as raised:
        guarded(build)
    assert str(raised.value) == (
        "layer 'trunk' is model.layers[0] of this trial and closure variable 'kept' of build → "
        "['trunk']; build it inside build"
    )
    (sharing,) = raised.value.sharings
    assert (sharing.kind, sharing.name) == ("layer", "trunk")
    assert first.layers[0] is kept["trunk"]


def test_what_no_module_of_the_users_leads_to_is_refused_without_a_name(monkeypatch):
    monkeypatch.setattr(
        keras.layers, "shared_by_all", [keras.layers.Dense(3, name="hidden")], raising=False
    )
    with pytest.raises(IndependenceError) as raised:
        guarded(lambda: model(sys.modules["keras"].layers.shared_by_all[0]))
    assert str(raised.value).startswith(
        "layer 'hidden' is model.layers[0] of this trial and an object that existed before "
    )


def test_what_the_trial_tracks_is_guarded():
    shared = keras.optimizers.SGD(name="shared")
    with Guard(notify=print) as guard:
        guard.check("tracked", {"new": keras.Variable(0.0)})
        with pytest.raises(
            IndependenceError, match=r"^optimizer 'shared' is trial.track\('n', …\)"
        ):
            guard.check("tracked", {"n": shared})


def test_a_guard_that_cannot_tell_ages_says_so_and_refuses_nothing():
    old = keras.layers.Dense(3)

    def build():
        gc.freeze()
        return model(old)

    warnings = []
    try:
        guarded(build, warnings=warnings)
    finally:
        gc.unfreeze()
    (warning,) = warnings
    assert warning == (
        "gc.freeze() or gc.unfreeze() was called while the factories ran, so objects that "
        "existed before the trial cannot be distinguished from those that build made; do not "
        "call them in a factory"
    )


@pytest.mark.parametrize("frozen_before", [False, True])
def test_an_age_boundary_tells_old_from_new_and_leaves_nothing_frozen(frozen_before):
    assert gc.get_freeze_count() == 0
    if frozen_before:
        gc.freeze()
    try:
        older = [[]]
        line = AgeBoundary()
        after = [[]]
        assert line.older([older, after, 1, "x"]) == {id(older)}
        line.release()
        assert gc.get_freeze_count() == 0
        assert line.older([older]) == set()
        assert line.ages_unknown
    finally:
        gc.unfreeze()


def test_a_tuple_that_is_being_made_while_trials_are_guarded_is_made():
    """A boundary that referred to all objects would refer to the tuple, which Python then could not grow."""
    assert len(tuple(guarded(model) for _ in range(20))) == 20


def test_inline_the_second_trial_may_not_have_the_firsts_model(tmp_path):
    file = PITFALLS / "refused" / "cached_model.py"
    message = expected(file).removeprefix("trial 1: ").strip()
    trials = swept(file, tmp_path, "inline").trials
    assert [(trial.state, trial.error) for trial in trials] == [
        ("complete", None),
        ("failed", f"IndependenceError: {message}"),
    ]
