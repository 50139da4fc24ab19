"""Populations: trials that train side by side, the worst of which go on from copies of the best.

Population-based training (Jaderberg et al., 2017), synchronous and as a tree of trials: a generation's
members are trials of ``every`` epochs, and each member of the next is a branch of one of them. Nothing
is changed in place, so a trial has one set of parameters, and who descends from whom stays to be seen.

Everything here is a pure function of a generation's values, the study's seed and the trials' numbers:
generation ``g`` has the numbers ``g * size`` to ``(g + 1) * size - 1``.
"""

from __future__ import annotations

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
    """By which a parameter is multiplied: one factor or the other, drawn with equal chances.

    Attributes:
        down: The first factor.
        up: The second one.

    Examples:
        >>> sweeper.Scale(0.8, 1.25).up
        1.25
    """

    down: float
    up: float


@with_named_arguments
@dataclass(frozen=True, slots=True)
class Population:
    """Population-based training: the worst trials of a generation go on from the best.

    Attributes:
        size: Trials in a generation, which train side by side.
        every: Epochs of a generation.
        exploit: The share of a generation that is replaced, and the share that it is replaced by; a
            quarter by default, and at least one trial.
        perturb: By parameter, how it is changed where a trial goes on from another one's checkpoint.

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
    """From whom a member of a generation descends.

    Attributes:
        number: Its own.
        parent: The member of the generation before that it goes on from.
        perturbed: Whether it replaces another one, with changed parameters.
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
    _check_numbers(budget, shown)
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
    """For how many epochs a trial trains that begins from nothing."""
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
        direction: Which way is better; of equals the lower number is.
        seed: The study's.

    Returns:
        A descent for each member, by number; none where all have failed.
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


def _check_numbers(budget: Population, shown: str) -> None:
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
