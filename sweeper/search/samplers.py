"""One trial's sampler, made afresh from the study's seed and the trial's number."""

from __future__ import annotations

import logging

import numpy as np
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from sweeper.errors import DefinitionError
from sweeper.search.sobol import SobolByNumber
from sweeper.search.spec import SamplerSpec, check_sampler


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
