"""The guard: what it lets pass, what it tells, and what becomes of a refused trial."""

import gc
import sys
import types

import keras
import pytest
from corpus import PITFALLS, forget_modules
from study_files import TWO_STEPS, StudyText
from sweeps import sweep

from sweeper.errors import IndependenceError
from sweeper.guard import guard
from sweeper.guard.guard import AgeBoundary, Guard


def model(*layers):
    made = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    made.compile(optimizer="sgd", loss="mse")
    return made


def guarded(factory, *, warnings=None):
    warn = [].append if warnings is None else warnings.append
    with Guard(warn=warn, process="inline") as guard:
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


def test_what_only_a_running_function_has_is_refused_without_a_name():
    local = keras.layers.Dense(3, name="local")
    hidden = iter([local])
    monkey = types.MethodType(lambda _self: model(local), hidden)
    del hidden
    assert guard.holders_of([object()], [monkey]) == {}
    with pytest.raises(
        IndependenceError, match=r"^layer 'local' is model.layers\[0\] of this trial and "
    ):
        guarded(monkey)


def test_what_the_trial_tracks_is_guarded():
    shared = keras.optimizers.SGD(name="shared")
    with Guard(warn=print, process="inline") as guard:
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
        before = [[]]
        line = AgeBoundary()
        after = [[]]
        assert line.older([before, after, 1, "x"]) == {id(before)}
        line.release()
        assert gc.get_freeze_count() == 0
        assert line.older([before]) == set()
        assert line.ages_unknown
    finally:
        gc.unfreeze()


def test_a_tuple_that_is_being_made_while_trials_are_guarded_is_made():
    """A boundary that referred to all objects would refer to the tuple, which Python then could not grow."""
    assert len(tuple(guarded(model) for _ in range(20))) == 20


THIRD = StudyText(
    name="third",
    head="TRUNK = keras.layers.Dense(1, name='trunk')",
    model="only = TRUNK if trial.number == 2 else keras.layers.Dense(1)\n"
    "model = keras.Sequential([keras.Input((16,)), only])\n"
    "model.compile('sgd', 'mse')\nreturn model",
    data=TWO_STEPS,
    arguments='objective="loss", epochs=1, trials=3, audit="off"',
)


def test_a_refused_trial_is_failed_with_the_message_and_no_traceback(tmp_path):
    file = THIRD.write(tmp_path / "third_is_refused.py")
    first, second, third = sweep(file, tmp_path / "runs", workers=1).trials
    assert (first.state, second.state) == ("complete", "complete")
    assert third.state == "failed"
    (attempt,) = third.attempts
    assert attempt.outcome == "failed"
    assert attempt.error == (
        "IndependenceError: layer 'trunk' is model.layers[0] of this trial and module attribute "
        "third_is_refused.TRUNK; build it inside build_model"
    )


def test_inline_the_second_trial_may_not_have_the_firsts_model(tmp_path, monkeypatch):
    kept = PITFALLS / "refused" / "cached_model.py"
    file = tmp_path / kept.name
    file.write_text(kept.read_text().replace('optimizer="adam"', 'optimizer="sgd"'))
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        swept = sweep(file, tmp_path / "runs", workers=1, isolation="inline")
    finally:
        forget_modules(before, tmp_path)
    message = kept.with_suffix(".txt").read_text().removeprefix("trial 1: ").strip()
    assert [(trial.state, trial.attempts[-1].error) for trial in swept.trials] == [
        ("complete", None),
        ("failed", f"IndependenceError: {message}"),
    ]
