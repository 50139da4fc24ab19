"""Draw one trial's parameters as a pure function of (study seed, trial number, window).

The sampler is built afresh for every trial, from a seed of its own, and sees a private in-memory
study that holds only the trials below ``number - window + 1``. All of these are finished before
the trial may start, so what it draws depends neither on the number of workers nor on who finished
first. A resumed trial asks for everything again and draws the same values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage

from sweeper.errors import DefinitionError, ParameterError
from sweeper.search.grids import Grid, check_grid, grid_value
from sweeper.search.spaces import Observation, alike, to_frozen_trial, to_optuna, to_text
from sweeper.space import Categorical, CategoricalChoice, Distribution, FloatRange, IntRange

if TYPE_CHECKING:
    from optuna import Trial

__all__ = [
    "SamplerFactory",
    "SamplerSpec",
    "SearchSession",
    "check_sampler",
    "looks_at_results",
    "open_search",
    "sampler_seed",
]

SamplerFactory = Callable[[int], BaseSampler]
"""``seed -> sampler``; called once a trial, so the sampler must keep nothing between trials."""

_BLIND = ("grid", "random")
_BUILDERS: dict[str, SamplerFactory] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed),
}
_NOT_YET = {
    "cmaes": "its state is a pickle kept between trials, which sweeper never reads",
    "gp": "it needs PyTorch",
    "qmc": "Optuna's takes the next free point, not the point of the trial's number",
}


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """How a study draws parameters.

    Attributes:
        name: "random", "grid" or "tpe"; not read where ``factory`` is given.
        seed: The study's seed, 0 or above.
        grid: Values by name, for "grid" only.
        window: The study's concurrency c: trial n sees the trials numbered up to n - c. None
            where the sampler looks at no results.
        factory: Makes an Optuna sampler from a seed, instead of a named one.
    """

    name: str
    seed: int
    grid: Grid | None = None
    window: int | None = None
    direction: Literal["minimize", "maximize"] = "minimize"
    factory: SamplerFactory | None = None


class SearchSession(Protocol):
    """Gives one trial its parameters, in the order in which it asks."""

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the trial's value of ``name``; asked again, the same value.

        Raises:
            ParameterError: ``name`` was asked for before with another distribution, or the
                sampler cannot give a value of this one.
        """
        ...


def looks_at_results(name: str) -> bool:
    """Whether the named sampler learns from other trials, and so needs a window.

    A sampler that a user's factory makes has no name here: take it as one that looks.

    Raises:
        DefinitionError: There is no such sampler.
    """
    check_sampler(name)
    return name not in _BLIND


def check_sampler(name: str) -> None:
    """Check a sampler's name when a study is defined.

    Raises:
        DefinitionError: There is no such sampler, or none yet.
    """
    if name in _BUILDERS or name == "grid":
        return
    known = ", ".join(sorted({*_BUILDERS, "grid"}))
    if name in _NOT_YET:
        msg = f"sampler={name!r} is not available yet: {_NOT_YET[name]}; use one of {known}"
    else:
        msg = f"sampler={name!r} is not known; use one of {known}, or a callable(seed) -> sampler"
    raise DefinitionError(msg)


def sampler_seed(study_seed: int, number: int) -> int:
    """Return the seed (below 2**32) of trial ``number``'s sampler, a child of the study's seed."""
    child = int.from_bytes(b"sampler", "big")
    sequence = np.random.SeedSequence([study_seed, child, number])
    return int(sequence.generate_state(1, np.uint32)[0])


def open_search(
    spec: SamplerSpec, number: int, observations: Sequence[Observation] = ()
) -> SearchSession:
    """Begin trial ``number``'s search.

    Args:
        spec: How the study draws parameters.
        number: The trial's number, from 0.
        observations: The finished trials below ``number - window + 1``, in order; ignored where
            the sampler looks at no results.

    Raises:
        DefinitionError: There is no such sampler, or the grid lacks the trial's point.
        ValueError: ``observations`` are not exactly the trials of the window, so that the draw
            would depend on who finished first.
    """
    if spec.factory is None and spec.name == "grid":
        check_grid(spec.grid, number + 1)
        return _GridSession(spec.grid or {}, number)
    if spec.factory is None and not looks_at_results(spec.name):
        seen: tuple[Observation, ...] = ()
    else:
        seen = _window(spec, number, observations)
    _quieten_optuna()
    factory = spec.factory or _BUILDERS[spec.name]
    sampler = factory(sampler_seed(spec.seed, number))
    if not isinstance(sampler, BaseSampler):
        msg = (
            f"the sampler callable returned {sampler!r}, a {type(sampler).__name__}; "
            "it must return an optuna sampler"
        )
        raise DefinitionError(msg)
    study = optuna.create_study(
        storage=InMemoryStorage(), sampler=sampler, direction=spec.direction
    )
    study.add_trials([to_frozen_trial(observation) for observation in seen])
    return _OptunaSession(study.ask(), seen)


@dataclass(frozen=True, slots=True)
class _GridSession:
    grid: Grid
    number: int

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        return grid_value(self.grid, self.number, name, distribution)


class _OptunaSession:
    def __init__(self, trial: Trial, seen: Sequence[Observation]) -> None:
        self._trial = trial
        self._seen = {n: (o.number, d) for o in reversed(seen) for n, d in o.distributions.items()}
        self._asked: dict[str, Distribution] = {}

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        before = self._asked.setdefault(name, distribution)
        if to_text(before) != to_text(distribution):
            msg = (
                f"parameter {name!r} was suggested as {before} and now as {distribution}; "
                "suggest a parameter once, or always alike"
            )
            raise ParameterError(msg)
        number, earlier = self._seen.get(name, (0, distribution))
        if not alike(earlier, distribution):
            msg = (
                f"parameter {name!r} is {earlier} in trial {number} and {distribution} here; "
                "give it the same kind and choices in every trial, or two names"
            )
            raise ParameterError(msg)
        return _ask(self._trial, name, distribution)


def _ask(trial: Trial, name: str, distribution: Distribution) -> CategoricalChoice:
    plain = to_optuna(distribution)
    bounds: Any = plain
    if isinstance(distribution, FloatRange):
        return trial.suggest_float(name, bounds.low, bounds.high, log=bounds.log, step=bounds.step)
    if isinstance(distribution, IntRange):
        return trial.suggest_int(name, bounds.low, bounds.high, log=bounds.log, step=bounds.step)
    if not isinstance(distribution, Categorical):
        msg = f"{distribution!r} is no distribution"
        raise TypeError(msg)
    return trial.suggest_categorical(name, distribution.choices)


def _window(
    spec: SamplerSpec, number: int, observations: Sequence[Observation]
) -> tuple[Observation, ...]:
    if spec.window is None or spec.window < 1:
        msg = (
            f"sampler {spec.name!r} looks at results, and the window is {spec.window}; "
            "it must be the study's concurrency, 1 or more"
        )
        raise DefinitionError(msg)
    end = max(0, number - spec.window + 1)
    seen = sorted((o for o in observations if o.number < end), key=lambda o: o.number)
    if [o.number for o in seen] != list(range(end)):
        msg = (
            f"trial {number} with concurrency {spec.window} must see exactly the {end} trials "
            f"below {end}, and was given {[o.number for o in seen]}; wait until all are finished"
        )
        raise ValueError(msg)
    return tuple(seen)


def _quieten_optuna() -> None:
    logger = logging.getLogger("optuna")
    if logger.getEffectiveLevel() < logging.ERROR:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
