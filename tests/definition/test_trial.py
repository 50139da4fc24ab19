"""What a factory asks its trial, and what it is told."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from sweeper import Trial
from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.errors import ParameterError, UncapturableError


class Asked:
    def __init__(self, answer):
        self.answer = answer
        self.questions = []

    def __call__(self, name, distribution):
        self.questions.append((name, distribution))
        return self.answer


def new_trial(answer=1):
    asked = Asked(answer)
    return Trial(number=3, seed=5, directory=Path("/files"), ask=asked), asked


def test_each_question_is_asked_as_it_was_put():
    trial, asked = new_trial()
    trial.suggest_float("f", 0, 1, step=0.5)
    trial.suggest_float("log", 1e-3, 1, log=True)
    trial.suggest_int("i", np.int64(1), 9, step=2)
    trial.suggest_categorical("c", ["a", 1, None])
    assert asked.questions == [
        ("f", FloatRange(0.0, 1.0, step=0.5)),
        ("log", FloatRange(1e-3, 1.0, log=True)),
        ("i", IntRange(1, 9, step=2)),
        ("c", Categorical(("a", 1, None))),
    ]
    assert type(asked.questions[2][1].low) is int


def test_a_parameter_asked_for_again_has_its_value_without_a_question():
    trial, asked = new_trial(0.25)
    assert trial.suggest_float("x", 0, 1) == trial.suggest_float("x", 0.0, 1.0) == 0.25
    assert len(asked.questions) == 1
    assert trial.params == {"x": 0.25}
    with pytest.raises(TypeError):
        trial.params["x"] = 2


@pytest.mark.parametrize(
    "suggest",
    [
        lambda t: t.suggest_float("x", 0, 2),
        lambda t: t.suggest_float("x", 0, 1, step=0.1),
        lambda t: t.suggest_int("x", 0, 1),
        lambda t: t.suggest_categorical("x", [0, 1]),
    ],
)
def test_a_parameter_asked_for_again_in_another_range_is_refused(suggest):
    trial, asked = new_trial(0.25)
    trial.suggest_float("x", 0, 1)
    with pytest.raises(ParameterError, match=r"'x' was suggested as .* and now as .*another name"):
        suggest(trial)
    assert len(asked.questions) == 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.suggest_int("x", 1, 2.5), "must be whole numbers"),
        (lambda t: t.suggest_int("x", "1", 2), "must be whole numbers"),
        (lambda t: t.suggest_int("x", 0, 8, log=True), "above 0"),
        (lambda t: t.suggest_float("x", 2, 1), "low=2.0 is above high=1.0"),
        (lambda t: t.suggest_float("x", 0, float("inf")), "must be finite"),
        (lambda t: t.suggest_categorical("x", []), "choices is empty"),
        (lambda t: t.suggest_categorical("x", [print]), "look up the object"),
        (lambda t: t.suggest_float("", 0, 1), "at least one character"),
        (lambda t: t.suggest_float(1, 0, 1), "must be a string"),
    ],
)
def test_an_impossible_question_is_refused_before_it_is_asked(ask, message):
    trial, asked = new_trial()
    with pytest.raises(ParameterError, match=message):
        ask(trial)
    assert asked.questions == []


def test_a_trial_tracks_an_object_under_a_name_of_its_own():
    trial, _ = new_trial()
    step = trial.track("step", tf.Variable(0, trainable=False))
    assert trial.track("step", step) is step
    assert dict(trial.tracked) == {"step": step}
    with pytest.raises(UncapturableError, match=r"track\('step', …\) was called for two objects"):
        trial.track("step", tf.Variable(1))


@pytest.mark.parametrize("value", [5, [1], {"a": 1}, "x", None, np.zeros(3), object()])
def test_what_cannot_be_tracked_is_refused_with_its_name(value):
    with pytest.raises(UncapturableError, match=r"track\('my_step', …\) was given a .*tf.Variable"):
        new_trial()[0].track("my_step", value)
