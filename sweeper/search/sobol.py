"""Point n of one scrambled Sobol sequence for trial n, with no look at any other trial.

Optuna's ``QMCSampler`` takes the next free point of a counter that all trials share, and learns
from the first finished trial which parameters there are: both depend on who finished when. Here the
point is the trial's number, and a parameter's coordinate is its position in the order in which the
trial asks. So no trial has to wait for another, trial 0 is part of the sequence too, and in a
conditional space the trials of each branch are spread by the same coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

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
