"""Conditions on trials, as ``--where`` takes them: ``lr<0.01``, ``tag=good``."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweeper.errors import UsageError
from sweeper.records.configurations import Training

Selected = TypeVar("Selected", bound=Training)

_FIELDS = ("tag", "state", "value", "number")
"""Names of a condition beside those of parameters, which come first."""

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(r"\s*(.+?)\s*(<=|>=|==|!=|=|<|>)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a trial's parameter, tag, state, value or number with a text."""

    name: str
    sign: str
    text: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Return the condition that ``text`` writes.

        Raises:
            UsageError: It is no comparison.
        """
        parts = _FORM.fullmatch(text)
        if parts is None or not parts[3]:
            raise UsageError(
                f"{text!r} is not a condition; write a name, one of < <= = != >= > and a value, such "
                "as 'learning_rate<0.01' or 'tag=good'"
            )
        return cls(*parts.groups())

    def holds(self, trial: Training) -> bool:
        """Return whether a trial meets the condition; one without that parameter or value does not."""
        if self.name not in trial.params and self.name == "tag":
            return (self.text in trial.tags) != (self.sign == "!=")
        value = trial.params.get(self.name)
        if self.name not in trial.params:
            value = getattr(trial, self.name) if self.name in _FIELDS else None
            if value is None:
                return False
        if self.sign not in _ORDERS:
            return _is_equal(value, self.text) != (self.sign == "!=")
        bound = _number(self.text)
        if bound is None or isinstance(value, bool | str | None):
            raise UsageError(
                f"'{self.name}{self.sign}{self.text}' orders {value!r} of trial {trial.number}; only "
                "numbers have an order: write = or !="
            )
        return _ORDERS[self.sign](value, bound)


def matching(trials: Iterable[Selected], conditions: Sequence[str]) -> list[Selected]:
    """Return the trials that meet all conditions, in their order.

    Raises:
        UsageError: A condition has another form, an unknown name, or orders what is no number.
    """
    selected = list(trials)
    params = dict.fromkeys(name for trial in selected for name in trial.params)
    for text in conditions:
        condition = Condition.parse(text)
        names = [*params, *(name for name in _FIELDS if name not in params)]
        if condition.name not in names:
            near = difflib.get_close_matches(condition.name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"{text!r}: no trial has a {condition.name!r}; it is one of {', '.join(names)}{hint}"
            )
        is_tag = condition.name == "tag" and "tag" not in params
        if is_tag and condition.sign in _ORDERS:
            raise UsageError(f"{text!r}: tags have no order; write tag=… or tag!=…")
        selected = [trial for trial in selected if condition.holds(trial)]
    return selected


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_equal(value: object, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value == _number(text)
    return str(value).lower() == text.lower() if isinstance(value, bool) else str(value) == text
