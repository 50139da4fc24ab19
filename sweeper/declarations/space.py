"""Distributions of parameters, as plain data that a trial process can send through a pipe.

The trial process does not import Optuna; `sweeper.search` converts these to Optuna's distributions,
whose rules (bounds included, ``log`` excludes ``step``) they follow.
"""

import math
from dataclasses import dataclass

from sweeper.errors import ParameterError
from sweeper.support.shown import shown_value

CategoricalChoice = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class FloatRange:
    """Floats from ``low`` to ``high``, both included.

    Args:
        low: The least value; with ``log`` it must be above 0.
        high: The greatest value.
        log: Whether the logarithm is drawn uniformly instead of the value.
        step: The distance between neighbouring values, or None for a continuous range.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range("suggest_float", self.low, self.high, log=self.log, step=self.step)


@dataclass(frozen=True, slots=True)
class IntRange:
    """Integers from ``low`` to ``high``, both included, ``step`` apart."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        _check_range("suggest_int", self.low, self.high, log=self.log, step=self.step)


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of ``choices``, which have no order."""

    choices: tuple[CategoricalChoice, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ParameterError("suggest_categorical: choices is empty; give at least one value")
        for choice in self.choices:
            if not isinstance(choice, CategoricalChoice):
                raise ParameterError(
                    f"suggest_categorical: {shown_value(choice)} is a {type(choice).__name__}; choices are "
                    "stored in a database, so each must be None, a bool, an int, a float or a "
                    "str (suggest a name and look up the object by it)"
                )


Distribution = FloatRange | IntRange | Categorical


def _check_range(caller: str, low: float, high: float, *, log: bool, step: float | None) -> None:
    msg = None
    if not (math.isfinite(low) and math.isfinite(high)):
        msg = f"the bounds are {low} and {high}; both must be finite"
    elif low > high:
        msg = f"low={low} is above high={high}; swap them"
    elif log and low <= 0:
        msg = f"log=True needs low above 0, and low={low}"
    elif step is not None and step <= 0:
        msg = f"step={step}; it must be above 0"
    elif log and step is not None and step != 1:
        msg = f"log=True cannot be combined with step={step}; leave one out"
    if msg is not None:
        error = ParameterError(f"{caller}: {msg}")
        # Bounds may come of another parameter, whose value is the trial's.
        error.of_study = False
        raise error
