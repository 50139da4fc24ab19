"""Budgets: rules for the number of epochs before a trial has to be among the best to continue.

Everything here is a pure function. Trial numbers determine which trials are compared, and the
values at a rung which of them are promoted; the order of arrival has no effect.

The rungs of a budget are the epochs ``min_epochs * factor**k`` below the study's ``epochs``. The
trials of the first bracket pause at all rungs, those of the second at all but the first, and so on;
the trials of a bracket without rungs train to the end. A *round* is a group of trials of one
bracket with consecutive numbers, which are compared only with each other. Its size is Hyperband's
(Li et al., 2018): ``ceil(n / (s + 1) * factor**s)`` trials for a bracket with ``s`` of ``n - 1``
rungs, so that all brackets train about the same number of epochs.

A population is also a budget: synchronous population-based training (Jaderberg et al., 2017) as a
tree of trials. The members of a generation are trials of ``every`` epochs, and each member of the
next generation is a branch of one of them. Nothing is changed in place, so a trial has one set of
parameters, and its ancestors are kept. Generation ``g`` has the numbers ``g * size`` to ``(g + 1) *
size - 1``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeper.errors import DefinitionError
from sweeper.spec.arguments import with_named_arguments
from sweeper.spec.searching import Direction, Objective
from sweeper.spec.space import CategoricalChoice, Distribution, FloatRange, IntRange

if TYPE_CHECKING:
    from numpy.random import Generator


_MOST_EXPLOITED = 0.5


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Scale:
    """Perturbation of a parameter by one of two factors, drawn with equal probability.

    Attributes:
        down: The first factor.
        up: The second factor.

    Examples:
        >>> sweeper.Scale(0.8, 1.25).up
        1.25
    """

    down: float
    up: float


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Population:
    """Population-based training: the worst trials of a generation continue from the best.

    Attributes:
        size: Trials in a generation, which train in parallel.
        every: Epochs of a generation.
        exploit: The share of a generation that is replaced, and the share that it is replaced by; a
            quarter by default, and at least one trial.
        perturb: By parameter, its perturbation when a trial continues from another's checkpoint.

    Examples:
        >>> sweeper.Population(size=8, every=5, perturb={"rate": sweeper.Scale(0.8, 1.25)}).exploit
        0.25
    """

    size: int
    every: int
    exploit: float = 0.25
    perturb: Mapping[str, Scale] = field(default_factory=dict)

    @property
    def exploited(self) -> int:
        """Return how many members of a generation are replaced."""
        return max(1, int(self.exploit * self.size))


@dataclass(frozen=True, slots=True)
class Descent:
    """Parent of a member of a generation.

    Attributes:
        number: Number of the member.
        parent: The member of the previous generation from which it continues.
        perturbed: Whether it replaces another member, with changed parameters.
    """

    number: int
    parent: int
    perturbed: bool


def describe_population(
    budget: Population,
    *,
    epochs: int,
    counts: tuple[int, int],
    pruner: object,
    objectives: Sequence[Objective],
) -> dict[str, Any]:
    """Return ``budget`` as plain JSON.

    Raises:
        DefinitionError: It has impossible values, or does not fit the rest of the study.
    """
    shown = f"budget={budget!r}"
    _check_population(budget, shown)
    trials, concurrency = counts
    wrong = None
    if budget.size > concurrency:
        wrong = (
            f"with concurrency={concurrency}: the trials of a generation train in parallel; give "
            f"concurrency={budget.size} or more, or a smaller size"
        )
    elif epochs % budget.every or epochs == budget.every:
        wrong = (
            f"with epochs={epochs}: every={budget.every} must divide the epochs into two generations "
            "or more"
        )
    elif trials != budget.size * (epochs // budget.every):
        wrong = (
            f"with trials={trials}: {epochs // budget.every} generations of {budget.size} are "
            f"{budget.size * (epochs // budget.every)} trials; give trials="
            f"{budget.size * (epochs // budget.every)}"
        )
    elif pruner is not None:
        wrong = (
            f"together with pruner={type(pruner).__name__}: both end trials early; give one of them"
        )
    elif len(objectives) > 1:
        names = ", ".join(repr(objective.name) for objective in objectives)
        wrong = f"with the objectives {names}: a generation is ranked by one value; give one"
    if wrong is not None:
        msg = f"{shown} {wrong}"
        raise DefinitionError(msg)
    return {
        "kind": "population",
        "size": budget.size,
        "every": budget.every,
        "exploit": budget.exploit,
        "perturb": {name: [scale.down, scale.up] for name, scale in budget.perturb.items()},
    }


def first_epochs(described: Mapping[str, Any] | None, epochs: int) -> int:
    """Return the number of epochs of a trial of the first generation."""
    population = population_of(described)
    return epochs if population is None else population.every


def population_of(described: Mapping[str, Any] | None) -> Population | None:
    """Return the population that `describe_population` described; None if the budget is of another kind."""
    if described is None or described["kind"] != "population":
        return None
    perturb = {name: Scale(down, up) for name, (down, up) in described["perturb"].items()}
    return Population(described["size"], described["every"], described["exploit"], perturb)


def descents(
    population: Population,
    generation: Sequence[tuple[int, float | None]],
    *,
    direction: Direction,
    seed: int,
) -> tuple[Descent, ...]:
    """Choose the parent of each member of the next generation.

    Args:
        population: The study's.
        generation: Number and value of each member, by number; None for a trial that failed.
        direction: ``"maximize"`` or ``"minimize"``; of equal values the lower number ranks first.
        seed: The study's.

    Returns:
        A descent for each member, by number; empty if all have failed.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    ranked = sorted(
        (sign * value, number)
        for number, value in generation
        if value is not None and math.isfinite(value)
    )
    if not ranked:
        return ()
    order = [number for _, number in ranked]
    count = population.exploited
    best = order[:count]
    replaced = {n for n, _ in generation} - set(order)
    for number in reversed(order[len(best) :]):
        if len(replaced) >= count:
            break
        replaced.add(number)
    found = []
    for number, _ in generation:
        own = number + population.size
        parent = number
        if number in replaced:
            parent = best[int(_draws(seed, own).integers(len(best)))]
        found.append(Descent(own, parent, number in replaced))
    return tuple(found)


def perturbed(
    population: Population,
    params: Mapping[str, CategoricalChoice],
    distributions: Mapping[str, Distribution],
    *,
    seed: int,
    number: int,
) -> dict[str, CategoricalChoice]:
    """Return the parameters of trial ``number`` that differ from its parent's, kept within their ranges.

    Raises:
        DefinitionError: ``perturb`` names a parameter that the parent does not have, or one that is
            no number.
    """
    check_perturbed(population, params)
    drawing = _draws(seed, number)
    drawing.integers(population.exploited)
    changed: dict[str, CategoricalChoice] = {}
    for name in sorted(population.perturb):
        scale, distribution, value = population.perturb[name], distributions[name], params[name]
        if not isinstance(distribution, FloatRange | IntRange) or not isinstance(
            value, int | float
        ):
            raise _no_number(name, value)
        scaled = value * (scale.up if drawing.integers(2) else scale.down)
        within = _within(distribution, scaled)
        if within != value:
            changed[name] = within
    return changed


def check_perturbed(population: Population, params: Mapping[str, CategoricalChoice]) -> None:
    """Check that a trial with these parameters can be perturbed.

    Raises:
        DefinitionError: ``perturb`` names a parameter that it does not have, or that is no number.
    """
    for name in population.perturb:
        if name not in params:
            has = ", ".join(map(repr, params)) or "none"
            msg = (
                f"budget=Population(perturb={{{name!r}: …}}): the trials ask for no parameter "
                f"{name!r}; they ask for {has}"
            )
            raise DefinitionError(msg)
        value = params[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _no_number(name, value)


def _draws(seed: int, number: int) -> Generator:
    # Imported only here: the process that spawns trials imports this module, and must have no threads.
    import numpy as np

    return np.random.default_rng(np.random.SeedSequence([seed, number]))


def _within(distribution: FloatRange | IntRange, value: float) -> float | int:
    """Return the nearest value that the distribution contains."""
    low, high, step = distribution.low, distribution.high, distribution.step
    value = min(max(value, low), high)
    if isinstance(distribution, IntRange):
        return int(low) + round((value - low) / (step or 1)) * int(step or 1)
    if step is None:
        return float(value)
    steps = min(round((value - low) / step), math.floor((high - low) / step + 1e-9))
    return float(low + steps * step)


def _no_number(name: str, value: object) -> DefinitionError:
    return DefinitionError(
        f"budget=Population(perturb={{{name!r}: …}}): parameter {name!r} is {value!r}, which "
        "cannot be scaled; perturb only parameters of suggest_float or suggest_int"
    )


def _check_population(budget: Population, shown: str) -> None:
    for name, least in (("size", 2), ("every", 1)):
        value = getattr(budget, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            msg = f"{shown}: {name} is {value!r}; give a whole number, at least {least}"
            raise DefinitionError(msg)
    share = budget.exploit
    if (
        isinstance(share, bool)
        or not isinstance(share, int | float)
        or not (0 < share <= _MOST_EXPLOITED)
    ):
        msg = f"{shown}: exploit is {share!r}; give a share above 0, at most {_MOST_EXPLOITED}"
        raise DefinitionError(msg)
    if not isinstance(budget.perturb, Mapping) or not budget.perturb:
        msg = f'{shown}: perturb names no parameter; give perturb={{"NAME": Scale(0.8, 1.25)}}'
        raise DefinitionError(msg)
    for name, scale in budget.perturb.items():
        if not isinstance(scale, Scale) or not all(
            isinstance(factor, int | float) and math.isfinite(factor) and factor > 0
            for factor in (scale.down, scale.up)
        ):
            msg = (
                f"{shown}: perturb[{name!r}] is {scale!r}; give a sweeper.Scale of two factors above "
                "0, such as Scale(0.8, 1.25)"
            )
            raise DefinitionError(msg)


_KINDS = ("halving", "hyperband")


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving: at each rung the best trials are promoted, and the others end.

    Attributes:
        min_epochs: Epochs before the first rung; 1 by default.
        factor: One trial in so many goes on, and gets so many times the epochs; 3 by default.
        brackets: The number of brackets; 1 by default: all trials begin at the first rung.

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
        values: Values by trial number; None for a failed trial. Values that are not finite are
            never promoted.
        factor: The budget's.
        direction: ``"maximize"`` or ``"minimize"``; of equal values the lower number ranks first.
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
    """Return ``budget`` as plain JSON; None without a budget.

    Args:
        budget: The user's argument.
        epochs: The study's.
        pruner: The study's, or None.
        objectives: The study's.
        counts: The study's total of trials, and its ``concurrency``.

    Raises:
        DefinitionError: It is not a budget, has impossible values, does not fit ``epochs``, or is
            combined with a pruner or several objectives.
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
