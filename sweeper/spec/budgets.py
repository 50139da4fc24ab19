"""Budgets: how many epochs a trial gets before it must be among the best to get more.

Everything here is a pure function. Which trials are compared with each other follows from their
numbers alone, and who goes on from the values that they had reached; neither from who was first.

The rungs of a budget are the epochs ``min_epochs * factor**k`` below the study's ``epochs``. A
bracket's trials pause at its rungs: the first bracket's at all of them, the next one's at all but
the first, and so on; the trials of a bracket without a rung train to the end. A *round* is a bracket's
trials of consecutive numbers, which are compared with each other and with no other one. Its size is
Hyperband's (Li et al., 2018): ``ceil(n / (s + 1) * factor**s)`` trials for a bracket with ``s`` of
``n - 1`` rungs, so that the rungs of all brackets take about as many epochs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.errors import DefinitionError
from sweeper.spec.arguments import with_named_arguments
from sweeper.spec.populations import Population, describe_population
from sweeper.spec.searching import Direction, Objective

_KINDS = ("halving", "hyperband")


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving: at each rung the best trials go on, and the others end there.

    Attributes:
        min_epochs: Epochs before the first rung; 1 by default.
        factor: One trial in so many goes on, and gets so many times the epochs; 3 by default.
        brackets: How many brackets the trials are dealt out to; 1 by default: all begin at the
            first rung.

    Examples:
        >>> sweeper.Halving(min_epochs=2).factor
        3
    """

    min_epochs: int = 1
    factor: int = 3
    brackets: int = 1


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Hyperband:
    """Successive halving in as many brackets as fit, the last of which trains every trial whole.

    Attributes:
        min_epochs: Epochs before the first rung; 1 by default.
        factor: One trial in so many goes on, and gets so many times the epochs; 3 by default.

    Examples:
        >>> sweeper.Hyperband(factor=4).min_epochs
        1
    """

    min_epochs: int = 1
    factor: int = 3


Budget = Halving | Hyperband | Population


@dataclass(frozen=True, slots=True)
class Round:
    """Trials that are compared with each other.

    Attributes:
        bracket: From 0; bracket ``b`` leaves out the first ``b`` rungs.
        first: The lowest trial's number, by which the round is known.
        size: How many there are, where the study's total does not cut it off.
        rungs: The epochs after which its trials pause, in order; none where they train whole.
    """

    bracket: int
    first: int
    size: int
    rungs: tuple[int, ...]

    def end(self, target: int, starts: Sequence[int] = ()) -> int:
        """Return the number after the round's last trial; the total, or the start of later rounds, may cut it short."""
        return min([self.first + self.size, target, *(s for s in starts if s > self.first)])


@dataclass(frozen=True, slots=True)
class RungSchedule:
    """Rounds and rungs of a budget, by trial number.

    Attributes:
        epochs: Of a whole trial.
        rungs: All rungs, in epochs.
        factor: One in so many is promoted.
        brackets: How many there are.
    """

    epochs: int
    rungs: tuple[int, ...]
    factor: int
    brackets: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of trials in a round of each bracket."""
        levels = len(self.rungs) + 1
        return tuple(
            -(-levels * self.factor ** (levels - 1 - bracket) // (levels - bracket))
            for bracket in range(self.brackets)
        )

    def round_of(self, number: int, starts: Sequence[int] = ()) -> Round:
        """Return the round of trial ``number``.

        Args:
            number: The trial's.
            starts: Ascending numbers at which the dealing begins anew, as it does at 0: one for
                every time that the study's total was raised.
        """
        begun = [0, *starts]
        start = begun[bisect.bisect_right(begun, number) - 1]
        sizes = self.sizes
        cycle, within = divmod(number - start, sum(sizes))
        first = start + cycle * sum(sizes)
        for bracket, size in enumerate(sizes):
            if within < size:
                return Round(bracket, first, size, self.rungs[bracket:])
            within -= size
            first += size
        raise AssertionError(number)


def promoted(
    values: Mapping[int, float | None], factor: int, direction: Direction
) -> tuple[int, ...]:
    """Return the promoted trials by number: the best of a full rung, one in ``factor`` and at least one.

    Args:
        values: By trial number; None for a trial that failed. What is not finite is never promoted.
        factor: The budget's.
        direction: Which way is better; of equals the lower number is.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    ranked = sorted(
        (sign * value, number)
        for number, value in values.items()
        if value is not None and math.isfinite(value)
    )
    return tuple(sorted(number for _, number in ranked[: max(1, len(values) // factor)]))


def describe_budget(
    budget: Any,
    *,
    epochs: int,
    pruner: object,
    objectives: Sequence[Objective],
    counts: tuple[int, int] = (1, 1),
) -> dict[str, Any] | None:
    """Return ``budget`` as plain JSON; None where there is none.

    Args:
        budget: As it was given.
        epochs: The study's.
        pruner: The study's, or None.
        objectives: The study's.
        counts: The study's total of trials, and its ``concurrency``.

    Raises:
        DefinitionError: It is no budget, has impossible values, does not fit ``epochs``, or stands
            beside a pruner or several objectives.
    """
    if budget is None:
        return None
    if isinstance(budget, Population):
        return describe_population(
            budget, epochs=epochs, counts=counts, pruner=pruner, objectives=objectives
        )
    if not isinstance(budget, Halving | Hyperband):
        hint = "()" if isinstance(budget, type) and issubclass(budget, Halving | Hyperband) else ""
        given = f"{budget.__name__}" if isinstance(budget, type) else repr(budget)
        better = f"{given}()" if hint else "sweeper.Halving(min_epochs=1, factor=3)"
        msg = f"budget={given} is not a budget; give an object, such as {better}"
        raise DefinitionError(msg)
    shown = f"budget={budget!r}"
    _check_numbers(budget, shown)
    if pruner is not None:
        msg = (
            f"{shown} together with pruner={type(pruner).__name__}: both end trials early; give "
            "one of them"
        )
        raise DefinitionError(msg)
    if len(objectives) > 1:
        names = ", ".join(repr(objective.name) for objective in objectives)
        msg = (
            f"{shown} with the objectives {names}: a rung ranks trials by one value; leave budget "
            "out, or compare by one objective"
        )
        raise DefinitionError(msg)
    if budget.min_epochs >= epochs:
        msg = (
            f"{shown} with epochs={epochs}: the first rung is after {budget.min_epochs} epochs, so "
            "no trial would ever pause; give fewer min_epochs than epochs"
        )
        raise DefinitionError(msg)
    described: dict[str, Any] = {
        "kind": type(budget).__name__.lower(),
        "min_epochs": budget.min_epochs,
        "factor": budget.factor,
    }
    if isinstance(budget, Halving):
        most = len(_rungs(budget.min_epochs, budget.factor, epochs)) + 1
        if budget.brackets > most:
            msg = (
                f"{shown} with epochs={epochs}: only {most} brackets fit, the last of which "
                f"has no rung; give at most brackets={most}, or sweeper.Hyperband for all"
            )
            raise DefinitionError(msg)
        described["brackets"] = budget.brackets
    return described


def rung_schedule(budget: Mapping[str, Any] | None, epochs: int) -> RungSchedule | None:
    """Return the schedule of a budget that `describe_budget` described; None if it has no rungs."""
    if budget is None or budget["kind"] not in _KINDS:
        return None
    rungs = _rungs(budget["min_epochs"], budget["factor"], epochs)
    return RungSchedule(epochs, rungs, budget["factor"], budget.get("brackets", len(rungs) + 1))


def _rungs(least: int, factor: int, epochs: int) -> tuple[int, ...]:
    found = []
    while least < epochs:
        found.append(least)
        least *= factor
    return tuple(found)


def _check_numbers(budget: Halving | Hyperband, shown: str) -> None:
    least = {"min_epochs": 1, "factor": 2, "brackets": 1}
    for name in budget.__dataclass_fields__:
        value = getattr(budget, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
            msg = f"{shown}: {name} is {value!r}; give a whole number, at least {least[name]}"
            raise DefinitionError(msg)
