"""Between our plain data and Optuna's: distributions, their stored text, and finished trials.

Text is compared, not objects: Python holds ``True == 1 == 1.0``, so Optuna's own comparison would
call ``[0, 1]`` and ``[False, True]`` the same choices.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.errors import ParameterError
from sweeper.records.results import Params
from sweeper.spec.space import Categorical, CategoricalChoice, Distribution, FloatRange, IntRange

_OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True, slots=True)
class Observation:
    """A finished trial as a sampler sees it.

    Attributes:
        value: The first objective; None unless the trial is complete, or was pruned after an epoch.
        intermediate: The objective after each epoch, by the epoch's number from 0.
        values: All objectives in order, where the study has several.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    params: Params
    distributions: Mapping[str, Distribution]
    value: float | None
    intermediate: Mapping[int, float]
    values: tuple[float, ...] | None = None


def to_optuna(distribution: Distribution) -> BaseDistribution:
    """Return Optuna's distribution of the same values.

    An upper bound that no whole number of steps reaches is lowered to the last value that one
    does, as Optuna does it, but without its warning.

    Raises:
        ParameterError: Optuna refuses the distribution.
    """
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
        msg = f"{distribution}: {error}; change the range that the factory suggests"
        raise ParameterError(msg) from error


def from_optuna(distribution: BaseDistribution) -> Distribution:
    """Return our distribution of the same values.

    Raises:
        ParameterError: It is of a kind that sweeper never stores.
    """
    if isinstance(distribution, FloatDistribution):
        return FloatRange(
            distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    if isinstance(distribution, IntDistribution):
        return IntRange(
            distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(tuple(distribution.choices))
    msg = (
        f"the database contains a {type(distribution).__name__}; expected a float, int or "
        "categorical distribution. Another tool wrote it: open the study with that tool"
    )
    raise ParameterError(msg)


def to_text(distribution: Distribution) -> str:
    """Return the JSON under which Optuna stores the distribution."""
    return distribution_to_json(to_optuna(distribution))


def from_text(text: str) -> Distribution:
    """Return the distribution that ``to_text`` (or Optuna) wrote."""
    return from_optuna(json_to_distribution(text))


def to_internal(name: str, distribution: Distribution, value: CategoricalChoice) -> float:
    """Return the float under which Optuna stores ``value``: itself, or its choice's index.

    Raises:
        ParameterError: ``value`` is not one of the distribution's, or would not come back exactly.
    """
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
    """Return the value that ``to_internal`` turned into ``internal``."""
    if isinstance(distribution, Categorical):
        return distribution.choices[int(internal)]
    return int(internal) if isinstance(distribution, IntRange) else internal


def same_choice(one: CategoricalChoice, other: CategoricalChoice) -> bool:
    """Return whether two choices are equal in value and in type; NaN equals NaN."""
    return type(one) is type(other) and json.dumps(one) == json.dumps(other)


def check_alike(name: str, distribution: Distribution, earlier: Distribution, number: int) -> None:
    """Check that a trial may ask for a parameter that trial ``number`` asked for before.

    Optuna's rule: the same kind, the same ``log``, the same choices; bounds may differ.

    Raises:
        ParameterError: Either differs; both distributions are named.
    """
    if isinstance(distribution, Categorical) or isinstance(earlier, Categorical):
        alike = to_text(distribution) == to_text(earlier)
    else:
        alike = type(distribution) is type(earlier) and distribution.log == earlier.log
    if not alike:
        msg = (
            f"parameter {name!r} is {earlier} in trial {number} and {distribution} here; use the "
            "same kind and choices in every trial, or another name"
        )
        raise ParameterError(msg)


def to_frozen_trial(observation: Observation) -> FrozenTrial:
    """Return the trial as Optuna's samplers take it."""
    return create_trial(
        state=_OPTUNA_STATES[observation.state],
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
