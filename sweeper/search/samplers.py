"""One trial's sampler, made afresh from the study's seed and the trial's number.

Optuna's ``QMCSampler`` takes the next free point of a counter that all trials share, and learns
from the first finished trial which parameters there are: both depend on who finished when. Here the
point is the trial's number, and a parameter's coordinate is its position in the order in which the
trial asks. So no trial has to wait for another, trial 0 is part of the sequence too, and in a
conditional space the trials of each branch are spread by the same coordinates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from sweeper.errors import DefinitionError
from sweeper.search.spec import SamplerSpec, check_sampler

_COORDINATES = 64
"""Parameters beyond so many are drawn at random."""


class SobolByNumber(BaseSampler):
    """Gives trial ``number`` the point of that number.

    Args:
        sequence_seed: Scrambles the sequence; the same for every trial of a study.
        number: The trial's number, from 0.
        seed: Of the trial's own, for what no coordinate is left for.
    """

    def __init__(self, sequence_seed: int, number: int, seed: int) -> None:
        self._point = _sobol_point(sequence_seed, number)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return no parameter: each is drawn when it is asked for."""
        del study, trial
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw nothing."""
        del study, trial, search_space
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return the value at the coordinate of as many parameters as the trial asked before."""
        coordinate = len(trial.params)
        if coordinate >= _COORDINATES:
            return self._random.sample_independent(study, trial, param_name, param_distribution)
        return _value_at(float(self._point[coordinate]), param_distribution)


def _sobol_point(seed: int, number: int) -> NDArray[np.float64]:
    from scipy.stats import qmc

    engine = qmc.Sobol(_COORDINATES, scramble=True, rng=np.random.default_rng(seed))
    if number > 0:
        engine.fast_forward(number)
    points: Sequence[NDArray[np.float64]] = engine.random(1)
    return points[0]


def _value_at(coordinate: float, distribution: BaseDistribution) -> Any:
    """Return the distribution's value at ``coordinate`` (0 to below 1), as Optuna's sampler computes it."""
    spread = distribution
    if isinstance(distribution, CategoricalDistribution):
        # Every choice has an equal share of the line; rounding to the nearest would not give that.
        spread = FloatDistribution(0, len(distribution.choices))
    transform = _SearchSpaceTransform({"value": spread}, transform_0_1=True)
    value = transform.untransform(np.array([coordinate]))["value"]
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(value)]
    return value


def sampler_seed(study_seed: int, number: int) -> int:
    """Return the seed (below 2**32) of trial ``number``'s sampler, a child of the study's seed."""
    return _child_seed(study_seed, b"sampler", number)


def make_sampler(spec: SamplerSpec, number: int) -> BaseSampler:
    """Return trial ``number``'s sampler; for a grid, which draws nothing, a random one.

    Raises:
        DefinitionError: There is no such sampler, or the user's callable returned none.
    """
    quieten_optuna()
    seed = sampler_seed(spec.seed, number)
    if spec.factory is None:
        return _named(spec, number, seed)
    sampler = spec.factory(seed)
    if not isinstance(sampler, BaseSampler):
        msg = (
            f"the sampler callable returned {sampler!r}, a {type(sampler).__name__}; "
            "it must return an optuna sampler"
        )
        raise DefinitionError(msg)
    _number_points(sampler, number)
    return sampler


def quieten_optuna() -> None:
    """Have Optuna log errors only: what it says of one trial's private study helps nobody."""
    logger = logging.getLogger("optuna")
    if logger.getEffectiveLevel() < logging.ERROR:
        optuna.logging.set_verbosity(optuna.logging.ERROR)


def _named(spec: SamplerSpec, number: int, seed: int) -> BaseSampler:
    check_sampler(spec.name, len(spec.directions))
    if spec.name == "tpe":
        return TPESampler(seed=seed)
    if spec.name == "cmaes":
        return CmaEsSampler(seed=seed)
    if spec.name == "gp":
        return GPSampler(seed=seed)
    if spec.name == "qmc":
        return SobolByNumber(_child_seed(spec.seed, b"sobol"), number, seed)
    return RandomSampler(seed=seed)


def _number_points(sampler: object, number: int) -> None:
    """Have Optuna's own QMC sampler take the point of the trial's number, not the next free one."""
    while isinstance(sampler, optuna.samplers.PartialFixedSampler):
        sampler = sampler._base_sampler
    if isinstance(sampler, optuna.samplers.QMCSampler):
        sampler._find_sample_id = lambda *_: number  # type: ignore[method-assign]


def _child_seed(study_seed: int, name: bytes, *numbers: int) -> int:
    entropy = [study_seed, int.from_bytes(name, "big"), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
