"""A grid's points are the trials' numbers in one fixed order."""

from __future__ import annotations

import itertools

import pytest

from sweeper.errors import DefinitionError, ParameterError
from sweeper.search.sampling import open_search
from sweeper.search.spaces import Grid, check_grid, grid_point, grid_size
from sweeper.search.spec import SamplerSpec
from sweeper.spec.space import Categorical, FloatRange, IntRange

GRID: Grid = {"rate": [0.1, 0.01], "units": [8, 16, 32], "kind": ["relu", None]}


def test_the_grid_is_complete_in_row_major_order() -> None:
    points = [tuple(grid_point(GRID, n).values()) for n in range(grid_size(GRID))]
    assert points == list(itertools.product(*GRID.values()))
    assert list(grid_point(GRID, 5)) == ["rate", "units", "kind"]


@pytest.mark.parametrize("number", [-1, 12])
def test_a_number_beyond_the_grid_has_no_point(number: int) -> None:
    with pytest.raises(DefinitionError, match="12 points"):
        grid_point(GRID, number)


def test_more_trials_than_points_are_refused_when_the_study_is_defined() -> None:
    check_grid(GRID, 12)
    with pytest.raises(DefinitionError, match=r"trials=13.*12 points.*set trials=12"):
        check_grid(GRID, 13)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (None, "needs grid="),
        ({}, "needs grid="),
        ({"x": []}, r"grid\['x'\] is \[\]"),
        ({"x": "abc"}, "expected a list"),
        ({"x": [1, 2, 1]}, "contains 1 twice"),
        ({"x": [object()]}, "values must be"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused_by_name(grid: object, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        check_grid(grid, 1)  # type: ignore[arg-type]


def test_equal_values_of_two_types_are_two_points() -> None:
    check_grid({"x": [1, True, 1.0]}, 3)


def test_a_trial_takes_its_points_values_in_the_suggested_type() -> None:
    session = open_search(SamplerSpec("grid", seed=0, grid={"rate": [1, 2], "flag": [True]}), 1)
    value = session.suggest("rate", FloatRange(0, 2))
    assert (value, type(value)) == (2.0, float)
    assert session.suggest("flag", Categorical((False, True))) is True


@pytest.mark.parametrize(
    ("name", "distribution", "message"),
    [
        ("rate", FloatRange(0.2, 1.0), r"'rate' has the value 0\.1"),
        ("rate", IntRange(0, 1), r"'rate' has the value 0\.1"),
        ("units", IntRange(0, 100, step=3), "'units' has the value 8"),
        ("units", Categorical(("8",)), "'units' has the value 8"),
        ("kind", FloatRange(0, 1), "'kind' has the value 'relu'"),
        ("depth", IntRange(1, 2), r"only 'rate', 'units', 'kind'; add 'depth'"),
    ],
)
def test_a_value_outside_what_is_suggested_is_refused_by_name(
    name: str, distribution: FloatRange | IntRange | Categorical, message: str
) -> None:
    session = open_search(SamplerSpec("grid", seed=0, grid=GRID), 0)
    with pytest.raises(ParameterError, match=message):
        session.suggest(name, distribution)
