"""Conversion between sweeper's and Optuna's distributions, their stored text, and finished trials.

Distributions are compared by their text: in Python ``True == 1 == 1.0``, so for Optuna's comparison
``[0, 1]`` and ``[False, True]`` are the same choices.

A grid's points are in one fixed order: row-major, the last parameter fastest. Trial n takes point
n, so the grid is complete after exactly `grid_size` trials on any number of workers; the point of a
failed trial is not taken by another.
"""

from __future__ import annotations

import copy
import decimal
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweeper.declarations.space import (
    Categorical,
    CategoricalChoice,
    Distribution,
    FloatRange,
    IntRange,
)
from sweeper.errors import DefinitionError, ParameterError
from sweeper.records.results import Params

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True)
class Observation:
    """A finished trial as a sampler sees it.

    Attributes:
        value: The first objective; None unless the trial is complete or was pruned after an epoch.
        intermediate: The objective after each epoch, by the epoch's number from 0.
        values: All objectives in order, if the study has several.
        redraws: How often its parameters were drawn again.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    params: Params
    distributions: Mapping[str, Distribution]
    value: float | None
    intermediate: Mapping[int, float]
    values: tuple[float, ...] | None = None
    redraws: int = 0


def to_optuna(distribution: Distribution) -> BaseDistribution:
    """Return Optuna's distribution of the same values.

    An upper bound between two steps is lowered to the last value, as in Optuna, but without a
    warning.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    try:
        if isinstance(distribution, FloatRange):
            return FloatDistribution(
                low=distribution.low,
                high=_last_float(distribution),
                log=distribution.log,
                step=distribution.step,
            )
        if isinstance(distribution, IntRange):
            whole_steps = (distribution.high - distribution.low) // distribution.step
            return IntDistribution(
                low=distribution.low,
                high=distribution.low + whole_steps * distribution.step,
                log=distribution.log,
                step=distribution.step,
            )
        return CategoricalDistribution(distribution.choices)
    except ValueError as error:
        raise ParameterError(
            f"{distribution}: {error}; change the range that the factory suggests"
        ) from error


def range_text(distribution: Distribution) -> str:
    """Return a range or choices for a sentence: ``0.001 to 0.1 (log)``."""
    if isinstance(distribution, Categorical):
        return f"one of {', '.join(map(repr, distribution.choices))}"
    step = distribution.step
    notes = ["log"] * distribution.log + [f"step {step}"] * (step not in (None, 1))
    text = f"{distribution.low} to {distribution.high}"
    return f"{text} ({', '.join(notes)})" if notes else text


def to_text(distribution: Distribution) -> str:
    """Return the JSON under which Optuna stores the distribution."""
    from optuna.distributions import distribution_to_json

    return distribution_to_json(to_optuna(distribution))


_KINDS: dict[str, Callable[..., Distribution]] = {
    "FloatDistribution": FloatRange,
    "IntDistribution": IntRange,
    "CategoricalDistribution": lambda choices: Categorical(tuple(choices)),
}


def from_text(text: str) -> Distribution:
    """Return the distribution that ``to_text`` (or Optuna) wrote; refuse a kind that sweeper lacks."""
    description = json.loads(text)
    if description.get("name") not in _KINDS:
        raise ParameterError(
            f"the database contains a {description.get('name')}; expected a float, int or categorical "
            "distribution. Another tool wrote it: open the study with that tool"
        )
    return _KINDS[description["name"]](**description["attributes"])


def to_internal(name: str, distribution: Distribution, value: CategoricalChoice) -> float:
    """Return the float under which Optuna stores ``value``: itself, or its choice's index."""
    if isinstance(distribution, Categorical):
        for index, choice in enumerate(distribution.choices):
            if same_choice(choice, value):
                return float(index)
        raise _outside(name, distribution, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _outside(name, distribution, value)
    if isinstance(distribution, IntRange) and int(float(value)) != value:
        raise _outside(name, distribution, value)
    internal = float(value)
    if not to_optuna(distribution)._contains(internal):
        raise _outside(name, distribution, value)
    return internal


def from_internal(distribution: Distribution, internal: float) -> CategoricalChoice:
    """Return the value that ``to_internal`` converted to ``internal``."""
    if isinstance(distribution, Categorical):
        return distribution.choices[int(internal)]
    return int(internal) if isinstance(distribution, IntRange) else internal


def same_choice(one: CategoricalChoice, other: CategoricalChoice) -> bool:
    """Return whether two choices are equal in value and in type; NaN equals NaN."""
    return type(one) is type(other) and json.dumps(one) == json.dumps(other)


def check_alike(name: str, distribution: Distribution, earlier: Distribution, number: int) -> None:
    """Check that a trial's parameter has the kind of that of the earlier trial ``number``.

    Ranges and choices may differ, because no trial's result depends on them.
    """
    if type(distribution) is not type(earlier):
        raise ParameterError(
            f"parameter {name!r} is {earlier} in trial {number} and {distribution} here; use the "
            "same kind in every trial, or another name"
        )


def in_space(
    trials: Sequence[FrozenTrial], space: Mapping[str, BaseDistribution]
) -> list[FrozenTrial]:
    """Return the trials as if their parameters were from ``space``, without the values outside of it.

    A study's ranges and choices may change, and Optuna's samplers expect one set of choices. Trials
    that need no change are the same objects.
    """
    converted = []
    for trial in trials:
        differing = {n: d for n, d in trial.distributions.items() if space.get(n, d) != d}
        if differing:
            inside = {n for n in differing if _has(space[n], trial.params[n])}
            names = [n for n in trial.params if n not in differing or n in inside]
            distributions = {n: space.get(n, trial.distributions[n]) for n in names}
            params = {n: trial.params[n] for n in names}
            moved = copy.copy(trial)
            moved.params = params
            moved.distributions = distributions
            converted.append(moved)
        else:
            converted.append(trial)
    return converted


def observed_value(distribution: BaseDistribution, value: CategoricalChoice) -> CategoricalChoice:
    """Return an observation's value of a parameter as one of this range.

    Files of text do not distinguish the choices 16 and "16", so a choice also matches by its text.

    Raises:
        ValueError: The value is outside of the range.
    """
    choices = getattr(distribution, "choices", ())
    exact = [choice for choice in choices if same_choice(choice, value)]
    by_text = [choice for choice in choices if str(choice) == str(value)]
    if exact or by_text:
        return (exact or by_text)[0]  # type: ignore[no-any-return]
    internal = distribution.to_internal_repr(value)
    if isinstance(value, bool | str | None) or not distribution._contains(internal):
        raise ValueError(f"{value!r} is not in {distribution}")
    number: int | float = distribution.to_external_repr(internal)
    return number


def _has(distribution: BaseDistribution, value: CategoricalChoice) -> bool:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return any(same_choice(choice, value) for choice in choices)
    return distribution._contains(distribution.to_internal_repr(value))


def to_frozen_trial(observation: Observation) -> FrozenTrial:
    """Return the trial in Optuna's form for samplers."""
    from optuna.trial import TrialState, create_trial

    states = {
        "complete": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    return create_trial(
        state=states[observation.state],
        value=None if observation.values else observation.value,
        values=observation.values or None,
        params=dict(observation.params),
        distributions={n: to_optuna(d) for n, d in observation.distributions.items()},
        intermediate_values=dict(observation.intermediate),
    )


def _last_float(distribution: FloatRange) -> float:
    if distribution.step is None:
        return distribution.high
    low, high, step = (
        decimal.Decimal(str(number))
        for number in (distribution.low, distribution.high, distribution.step)
    )
    if (high - low) % step == 0:
        return distribution.high
    return float((high - low) // step * step + low)


def _outside(name: str, distribution: Distribution, value: object) -> ParameterError:
    return ParameterError(
        f"parameter {name!r} has the value {value!r}, which is outside of the suggested range "
        f"{distribution}; change the value or the range"
    )


Grid = Mapping[str, Sequence[CategoricalChoice]]


def grid_size(grid: Grid) -> int:
    """Return the number of points: the product of the numbers of values."""
    return math.prod(len(values) for values in grid.values())


def check_grid(grid: Grid | None, trials: int) -> None:
    """Check that a grid, if there is one, has a point for each of ``trials`` trials."""
    if grid is not None and trials > (points := grid_size(grid)):
        shape = " x ".join(f"{name}: {len(values)}" for name, values in grid.items())
        raise DefinitionError(
            f"trials={trials}, but the grid has {points} points ({shape}); "
            f"set trials={points} or add values"
        )


def grid_point(grid: Grid, number: int) -> Params:
    """Return the values of trial ``number``, numbered from 0; refuse a number beyond the grid."""
    if not 0 <= number < grid_size(grid):
        raise DefinitionError(
            f"trial {number} has no point in a grid of {grid_size(grid)} points; "
            "lower the number of trials or add values to the grid"
        )
    point: dict[str, CategoricalChoice] = {}
    rest = number
    for name in reversed(list(grid)):
        rest, index = divmod(rest, len(grid[name]))
        point[name] = grid[name][index]
    return {name: point[name] for name in grid}


def grid_value(grid: Grid, number: int, name: str, distribution: Distribution) -> CategoricalChoice:
    """Return trial ``number``'s value of ``name``, with the type of the suggested distribution.

    An int in the grid becomes a float where a float is suggested.
    """
    point = grid_point(grid, number)
    if name not in point:
        raise ParameterError(
            f"the trial suggests {name!r}, but the grid has only {', '.join(map(repr, grid))}; "
            f"add {name!r} to grid=, or do not suggest it"
        )
    return from_internal(distribution, to_internal(name, distribution, point[name]))
