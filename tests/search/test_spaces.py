"""Distributions and values go into Optuna's form and come back the same."""

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import distribution_to_json

from sweeper.errors import ParameterError
from sweeper.search.spaces import (
    from_internal,
    from_text,
    same_choice,
    to_internal,
    to_optuna,
    to_text,
)
from sweeper.spec.space import Categorical, FloatRange, IntRange

CHOICES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3)


@given(st.lists(CHOICES, min_size=1, max_size=6), st.data())
def test_every_choice_comes_back_in_value_and_type(choices, data):
    distribution = Categorical(tuple(choices))
    value = data.draw(st.sampled_from(choices))
    internal = to_internal("x", distribution, value)
    assert same_choice(from_internal(from_text(to_text(distribution)), internal), value)


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.data())
def test_every_float_comes_back_bit_for_bit(one, other, data):
    distribution = FloatRange(min(one, other), max(one, other))
    value = data.draw(st.floats(distribution.low, distribution.high))
    internal = to_internal("x", distribution, value)
    assert from_internal(from_text(to_text(distribution)), internal) == value


@given(st.integers(-50, 50), st.integers(0, 100), st.integers(1, 9))
def test_steps_end_where_optunas_do_and_without_its_warning(low, size, step):
    distribution = to_optuna(IntRange(low, low + size, step=step))
    assert distribution == optuna.distributions.IntDistribution(
        low, low + size // step * step, step=step
    )
    assert to_optuna(from_text(distribution_to_json(distribution))) == distribution


def test_a_float_step_ends_where_optunas_does_and_types_make_two_distributions():
    with pytest.warns(UserWarning, match="not divisible"):
        expected = optuna.distributions.FloatDistribution(0.0, 1.0, step=0.3)
    assert to_optuna(FloatRange(0.0, 1.0, step=0.3)) == expected
    # Python calls these two equal.
    assert Categorical((0, 1)) == Categorical((False, True))
    assert to_text(Categorical((0, 1))) != to_text(Categorical((False, True)))
    assert to_text(FloatRange(0, 1)) == to_text(FloatRange(0.0, 1.0))


@pytest.mark.parametrize(
    ("distribution", "value"),
    [
        (FloatRange(0, 1), 1.5),
        (FloatRange(0, 1), math.nan),
        (FloatRange(0, 1), "0.5"),
        (FloatRange(0, 1), True),
        (FloatRange(0, 1, step=0.25), 0.3),
        (IntRange(0, 4), 2.5),
        (IntRange(0, 2**60), 2**53 + 1),
        (Categorical((1, 2)), True),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(distribution, value):
    with pytest.raises(ParameterError, match="'x' has the value"):
        to_internal("x", distribution, value)
