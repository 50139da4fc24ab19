"""Budgets: rules for the number of epochs before a trial has to be among the best to continue.

Everything here is a pure function. Trial numbers determine which trials are compared, and the
values at a rung which of them are promoted; the order of arrival has no effect.

The rungs of a budget are the epochs ``min_epochs * factor**k`` below the study's ``epochs``. The
trials of the first bracket pause at all rungs, those of the second at all but the first, and so on;
the trials of a bracket without rungs train to the end. A *round* is a group of trials of one
bracket with consecutive numbers, which are compared only with each other. Its size is Hyperband's
(Li et al., 2018): ``ceil(n / (s + 1) * factor**s)`` trials for a bracket with ``s`` of ``n - 1``
rungs, so that all brackets train about the same number of epochs.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.declarations.arguments import checked_whole, with_named_arguments
from sweeper.declarations.searching import Direction, Objective, check_one_objective, cost_sign
from sweeper.errors import DefinitionError
from sweeper.support.shown import shown_value


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving: at each rung the best trials are promoted, and the others end.

    Attributes:
        min_epochs: Epochs before the first rung; 1 by default.
        factor: Each rung keeps 1/factor of the trials and multiplies their epochs by factor; 3 by default.
        brackets: The number of brackets; 1 by default: all trials start at the first rung.

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
    """Successive halving in as many brackets as fit; in the last one trials do not pause.

    Attributes:
        min_epochs: Epochs before the first rung; 1 by default.
        factor: Each rung keeps 1/factor of the trials and multiplies their epochs by factor; 3 by default.

    Examples:
        >>> sweeper.Hyperband(factor=4).min_epochs
        1
    """

    min_epochs: int = 1
    factor: int = 3


Budget = Halving | Hyperband


@dataclass(frozen=True, slots=True)
class Round:
    """Trials that are compared with each other.

    Attributes:
        bracket: From 0; bracket ``b`` leaves out the first ``b`` rungs.
        first: The lowest trial number, which identifies the round.
        size: Number of trials, unless the study's total ends the round early.
        rungs: The epochs after which its trials pause, in order; empty if they do not.
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
        epochs: Epochs of a trial that is never stopped.
        rungs: All rungs, in epochs.
        factor: One trial in ``factor`` is promoted.
        brackets: The number of brackets.
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
            number: Number of the trial.
            starts: Ascending trial numbers at which the assignment to brackets starts again: one
                for every time that the study's total was raised.
        """
        all_starts = [0, *starts]
        start = all_starts[bisect.bisect_right(all_starts, number) - 1]
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
        values: Values by trial number; None for a failed trial. Values that are not finite are
            never promoted.
        factor: The budget's.
        direction: ``"maximize"`` or ``"minimize"``; of equal values the lower number ranks first.
    """
    sign = cost_sign(direction)
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
) -> dict[str, Any] | None:
    """Return ``budget`` as plain JSON; None without a budget."""
    if budget is None:
        return None
    if not isinstance(budget, Halving | Hyperband):
        text = budget.__name__ if isinstance(budget, type) else repr(budget)
        better = (
            f"{text}()"
            if budget in (Halving, Hyperband)
            else "sweeper.Halving(min_epochs=1, factor=3)"
        )
        raise DefinitionError(f"budget={text} is not a budget; give an object, such as {better}")
    argument = f"budget={shown_value(budget)}"
    least = {"min_epochs": 1, "factor": 2, "brackets": 1}
    for name in budget.__dataclass_fields__:
        checked_whole(getattr(budget, name), f"{argument}: {name}", least=least[name])
    if pruner is not None:
        raise DefinitionError(
            f"{argument} together with pruner={type(pruner).__name__}: both end trials early; give "
            "one of them"
        )
    reason = "a rung ranks trials by one value; leave budget out, or compare by one objective"
    check_one_objective(objectives, argument, reason)
    if budget.min_epochs >= epochs:
        raise DefinitionError(
            f"{argument} with epochs={epochs}: the first rung is after {budget.min_epochs} epochs, so "
            "no trial would ever pause; give fewer min_epochs than epochs"
        )
    described: dict[str, Any] = {
        "kind": type(budget).__name__.lower(),
        "min_epochs": budget.min_epochs,
        "factor": budget.factor,
    }
    if isinstance(budget, Halving):
        most = len(_rungs(budget.min_epochs, budget.factor, epochs)) + 1
        if budget.brackets > most:
            raise DefinitionError(
                f"{argument} with epochs={epochs}: only {most} brackets fit, the last of which "
                f"has no rung; give at most brackets={most}, or sweeper.Hyperband for all"
            )
        described["brackets"] = budget.brackets
    return described


def rung_schedule(budget: Mapping[str, Any] | None, epochs: int) -> RungSchedule | None:
    """Return the schedule of a budget that `describe_budget` described; None if it has no rungs."""
    if budget is None:
        return None
    rungs = _rungs(budget["min_epochs"], budget["factor"], epochs)
    return RungSchedule(epochs, rungs, budget["factor"], budget.get("brackets", len(rungs) + 1))


def _rungs(least: int, factor: int, epochs: int) -> tuple[int, ...]:
    rungs = []
    while least < epochs:
        rungs.append(least)
        least *= factor
    return tuple(rungs)
