"""Points of a grid by trial number, in one fixed order: row-major, the last parameter fastest.

Trial n takes point n whatever ran before it, so the grid is complete after exactly `grid_size`
trials on any number of workers, and a trial that failed leaves no hole that another one fills.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sweeper.errors import DefinitionError, ParameterError
from sweeper.records.results import Params
from sweeper.search.spaces import from_internal, same_choice, to_internal
from sweeper.spec.space import CategoricalChoice, Distribution

Grid = Mapping[str, Sequence[CategoricalChoice]]


def grid_size(grid: Grid) -> int:
    """Return the number of points: the product of the numbers of values."""
    return math.prod(len(values) for values in grid.values())


def check_grid(grid: Grid | None, trials: int) -> None:
    """Check, when a study is defined, that its grid has a point for each of ``trials`` trials.

    Raises:
        DefinitionError: There is no grid, a parameter has no values or one of them twice, or the
            grid has fewer points than ``trials``.
    """
    if not grid:
        msg = 'sampler="grid" needs grid={"name": [values, …]}, which was not given'
        raise DefinitionError(msg)
    for name, values in grid.items():
        _check_values(name, values)
    points = grid_size(grid)
    if trials > points:
        shape = " x ".join(f"{name}: {len(values)}" for name, values in grid.items())
        msg = (
            f"trials={trials}, but the grid has {points} points ({shape}); "
            f"set trials={points} or add values"
        )
        raise DefinitionError(msg)


def grid_point(grid: Grid, number: int) -> Params:
    """Return the values of trial ``number``, numbered from 0.

    Raises:
        DefinitionError: The grid has no such point.
    """
    if not 0 <= number < grid_size(grid):
        msg = (
            f"trial {number} has no point in a grid of {grid_size(grid)} points; "
            "lower the number of trials or add values to the grid"
        )
        raise DefinitionError(msg)
    point: dict[str, CategoricalChoice] = {}
    rest = number
    for name in reversed(list(grid)):
        rest, index = divmod(rest, len(grid[name]))
        point[name] = grid[name][index]
    return {name: point[name] for name in grid}


def grid_value(grid: Grid, number: int, name: str, distribution: Distribution) -> CategoricalChoice:
    """Return trial ``number``'s value of ``name``, as the suggested distribution gives it.

    An int in the grid becomes a float where a float is suggested.

    Raises:
        ParameterError: The grid lacks ``name``, or the value is not one of the distribution's.
        DefinitionError: The grid has no such point.
    """
    point = grid_point(grid, number)
    if name not in point:
        msg = (
            f"the trial suggests {name!r}, but the grid has only {', '.join(map(repr, grid))}; "
            f"add {name!r} to grid=, or do not suggest it"
        )
        raise ParameterError(msg)
    return from_internal(distribution, to_internal(name, distribution, point[name]))


def _check_values(name: str, values: Sequence[CategoricalChoice]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        msg = f"grid[{name!r}] is {values!r}; expected a list of at least one value"
        raise DefinitionError(msg)
    for index, value in enumerate(values):
        if not isinstance(value, CategoricalChoice):
            msg = (
                f"grid[{name!r}] contains {value!r}, a {type(value).__name__}; values must be "
                "None, bools, ints, floats or strings"
            )
            raise DefinitionError(msg)
        if any(same_choice(value, earlier) for earlier in values[:index]):
            msg = f"grid[{name!r}] contains {value!r} twice; leave one out"
            raise DefinitionError(msg)
