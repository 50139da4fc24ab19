"""Samplers of a study: their specification, and a trial's sampler, made from the study's seed and its number.

Optuna's ``QMCSampler`` takes the next point of a counter that all trials share, and takes the
parameters from the first finished trial; both depend on the order of completion. Here trial n takes
point n, and a parameter's coordinate is its position in the order of the trial's requests. So no
trial waits for another, trial 0 is part of the sequence, and in a conditional space the trials of
each branch are spread by the same coordinates.
"""

import copy
import importlib.util
import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from sweeper.declarations.searching import BLIND_SAMPLERS, SAMPLERS, Direction
from sweeper.declarations.space import CategoricalChoice
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.errors import DefinitionError
from sweeper.search.spaces import Grid
from sweeper.support.installation import install_command
from sweeper.support.shown import shown_value

_BLIND_PRUNERS = ("NopPruner", "ThresholdPruner")
"""Pruners that use only the trial itself."""

_LEAVING_NOTHING = (
    "MedianPruner",
    "NopPruner",
    "PercentilePruner",
    "ThresholdPruner",
    "WilcoxonPruner",
)
"""Pruners that do not write attributes to trials."""


_silence = threading.RLock()
"""Lock of `quietly`, which a decision takes again when it makes its pruner."""


@contextmanager
def quietly() -> Iterator[None]:
    """Context manager that suppresses warnings of pruners, which name internal trials and calls.

    One thread at a time may use it, because Python's warning filters are global.
    """
    with _silence, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_custom(described: Mapping[str, Any] | None) -> bool:
    """Return whether the pruner, or one inside of it, has a class that is not Optuna's."""
    if described is None:
        return False
    return str(described["class"]).startswith("custom:") or any(
        is_custom(part) for part in described.values() if isinstance(part, Mapping)
    )


def looks_at_trials(described: Mapping[str, Any] | None) -> bool:
    """Return whether the pruner compares trials and so needs a window, as a custom one is assumed to."""
    if described is None or described["class"] in _BLIND_PRUNERS:
        return False
    if described["class"] == "PatientPruner":
        return looks_at_trials(described.get("wrapped_pruner"))
    return True


def leaves_attributes(pruner: BasePruner | None) -> bool:
    """Return whether the pruner writes attributes to trials, as successive halving does with its rungs."""
    if isinstance(pruner, optuna.pruners.PatientPruner):
        return leaves_attributes(pruner._wrapped_pruner)
    from_optuna = type(pruner).__module__.startswith("optuna.pruners.")
    return pruner is not None and not (from_optuna and type(pruner).__name__ in _LEAVING_NOTHING)


def make_pruner(described: Mapping[str, Any]) -> BasePruner:
    """Make the pruner that `sweeper.declarations.searching.describe_pruner` described."""
    kind = getattr(optuna.pruners, str(described["class"]), None)
    if not isinstance(kind, type) or not issubclass(kind, BasePruner):
        raise DefinitionError(
            f"the study's pruner is a {described['class']}, which optuna {optuna.__version__} does "
            "not have; install the version that the study was created with"
        )
    arguments = {
        name: make_pruner(value) if isinstance(value, Mapping) else value
        for name, value in described.items()
        if name != "class"
    }
    try:
        with quietly():
            return kind(**arguments)
    except (TypeError, ValueError) as error:
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise DefinitionError(f"optuna refuses {described['class']}({text}): {error}") from error


SamplerFactory = Callable[[int], BaseSampler]
"""``seed -> sampler``; called once for each trial, so a sampler must not keep state between trials."""

PrunerFactory = Callable[[], BasePruner]
"""Function that makes a new pruner; called for each decision."""

_PACKAGES = {"cmaes": ("cmaes", "cmaes"), "gp": ("torch", "gp")}
"""Packages that samplers need, with the extra that installs each."""


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """Sampler, pruner and objectives of one study.

    Attributes:
        name: A name of `SAMPLERS`; ignored if ``factory`` is given.
        seed: The study's seed, 0 or above.
        grid: Values by name, for "grid" only.
        window: Trial n uses the results of trials up to n - window. None if neither sampler nor
            pruner uses results.
        direction: Direction of the first objective.
        factory: Function that makes an Optuna sampler from a seed, instead of ``name``.
        further_directions: Directions of the objectives after the first.
        study: The study's name, from which Optuna's Hyperband derives brackets.
        pruner: Function that makes the pruner; None for none.
        enqueue: The values given to the first trials.
    """

    name: str
    seed: int
    grid: Grid | None = None
    window: int | None = None
    direction: Direction = "minimize"
    factory: SamplerFactory | None = None
    further_directions: tuple[Direction, ...] = ()
    study: str = "study"
    pruner: PrunerFactory | None = None
    enqueue: tuple[Mapping[str, CategoricalChoice], ...] = ()

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Return the direction of every objective, in order."""
        return (self.direction, *self.further_directions)


def check_sampler(name: str, objectives: int = 1) -> None:
    """Check the name of a sampler for a study of so many ``objectives``, and that its package is installed."""
    if name not in SAMPLERS:
        names = ", ".join(sorted(SAMPLERS))
        raise DefinitionError(
            f"sampler={name!r} is not known; use one of {names}, or a callable(seed) -> sampler"
        )
    if name in _PACKAGES:
        package, extra = _PACKAGES[name]
        if importlib.util.find_spec(package) is None:
            raise DefinitionError(
                f"sampler={name!r} needs the package {package!r}, which is not installed; "
                f"{install_command(extra)}, or use sampler='tpe'"
            )
    if name == "cmaes" and objectives > 1:
        raise DefinitionError(
            f"sampler='cmaes' supports one objective, and the study has {objectives}; use 'tpe' "
            "or a function such as lambda seed: optuna.samplers.NSGAIISampler(seed=seed)"
        )


def needs_definition(settings: StudySettings) -> bool:
    """Return whether the search needs the user's code because part of it is user-written."""
    return settings.sampler.startswith("custom:") or is_custom(settings.pruner)


def look_back(concurrency: int, repeats: int = 1) -> int:
    """Return the window, in configurations, of a study with this ``concurrency``.

    With a window of exactly ``concurrency`` the next trial would always wait for the slowest
    running trial, and a third of the workers would be idle. With a concurrency of 1, a trial uses
    all earlier trials. With ``repeats``, as many trials are in fewer configurations; at least two,
    so that the last repeats of one run beside the first of the next.
    """
    trials = 2 * concurrency - 1
    return max(math.ceil(trials / repeats), min(trials, 2))


def search_window(settings: StudySettings) -> int | None:
    """Return the study's window; None if results are not used."""
    if not settings.sampler.startswith("custom:"):
        check_sampler(settings.sampler, len(settings.objectives))
    # A custom sampler is assumed to use results.
    blind = settings.sampler in BLIND_SAMPLERS and not looks_at_trials(settings.pruner)
    if blind and settings.patience is None:
        return None
    # With a pruner, the repeats of a configuration run one after another.
    repeats = settings.repeats if settings.pruner is None else 1
    return look_back(settings.concurrency, repeats)


def search_spec(
    settings: StudySettings, definition: StudyDefinition | None = None, window: int | None = None
) -> SamplerSpec:
    """Return the sampler and pruner of a stored study; its definition is needed if `needs_definition`."""
    if needs_definition(settings) and definition is None:
        raise DefinitionError(
            f"study {settings.name!r} has a custom sampler or pruner, which is not stored in the "
            "database; run the study from its file"
        )
    factory = None
    if definition is not None and not isinstance(definition.sampler, str):
        factory = definition.sampler
    return SamplerSpec(
        name=settings.sampler,
        seed=settings.seed,
        grid=settings.grid,
        window=search_window(settings) if window is None else window,
        direction=settings.direction,
        factory=factory,
        further_directions=tuple(o.direction for o in settings.further_objectives),
        study=settings.name,
        pruner=_pruner_factory(settings.pruner, definition),
        enqueue=tuple(settings.enqueue),
    )


def _pruner_factory(
    described: Mapping[str, Any] | None, definition: StudyDefinition | None
) -> PrunerFactory | None:
    if described is None:
        return None
    if is_custom(described) and definition is not None:
        return lambda: _copied(definition.pruner)
    make_pruner(described)
    return lambda: make_pruner(described)


def _copied(pruner: Any) -> BasePruner:
    try:
        copied: BasePruner = copy.deepcopy(pruner)
    except Exception as error:
        raise DefinitionError(
            f"the pruner {type(pruner).__qualname__} cannot be copied ({error}), and every "
            "decision needs a new copy; give it only plain values as attributes"
        ) from error
    return copied


_COORDINATES = 64
"""Number of parameters beyond which they are drawn at random."""


class SobolByNumber(BaseSampler):
    """Sobol sampler in which trial ``number`` takes the point of that number.

    Args:
        sequence_seed: Seed of the scrambling, equal for all trials of a study.
        number: The trial's number, from 0.
        seed: The trial's seed, for parameters without a coordinate.
    """

    def __init__(self, sequence_seed: int, number: int, seed: int) -> None:
        from scipy.stats import qmc

        engine = qmc.Sobol(_COORDINATES, scramble=True, rng=np.random.default_rng(sequence_seed))
        if number > 0:
            engine.fast_forward(number)
        self._point: Sequence[float] = engine.random(1)[0]
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return no parameter: each is drawn when it is requested."""
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
        """Return the value at the next coordinate of the trial's point."""
        coordinate = len(trial.params)
        if coordinate >= _COORDINATES:
            return self._random.sample_independent(study, trial, param_name, param_distribution)
        return _value_at(float(self._point[coordinate]), param_distribution)


def _value_at(coordinate: float, distribution: BaseDistribution) -> Any:
    """Return the distribution's value at ``coordinate`` (0 to below 1), as Optuna's sampler computes it."""
    spread = distribution
    if isinstance(distribution, CategoricalDistribution):
        # Every choice has an equal share of the line; rounding to the nearest would not give that.
        spread = FloatDistribution(0, len(distribution.choices))
    # Private, but Optuna's own samplers scale and round with it.
    transform = _SearchSpaceTransform({"value": spread}, transform_0_1=True)
    value = transform.untransform(np.array([coordinate]))["value"]
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(value)]
    return value


def sampler_seed(study_seed: int, number: int, redraws: int = 0) -> int:
    """Return the seed (below 2**32) of trial ``number``'s sampler, a child of the study's seed."""
    return _child_seed(study_seed, b"sampler", number, *([redraws] if redraws else ()))


_REDRAWN_POINTS = 1 << 16
"""Distance in a sequence of points between the draws of one trial, above any number of trials."""


def make_sampler(spec: SamplerSpec, number: int, redraws: int = 0) -> BaseSampler:
    """Return trial ``number``'s sampler for its first draw or a later one; a grid's is not used."""
    quieten_optuna()
    seed = sampler_seed(spec.seed, number, redraws)
    number += redraws * _REDRAWN_POINTS
    if spec.factory is None:
        return _named(spec, number, seed)
    sampler = spec.factory(seed)
    if not isinstance(sampler, BaseSampler):
        raise DefinitionError(
            f"the sampler callable returned {shown_value(sampler)}, a {type(sampler).__name__}; "
            "it must return an optuna sampler"
        )
    _number_points(sampler, number)
    return sampler


def quieten_optuna() -> None:
    """Set Optuna's log level to errors, because messages about private studies do not help users."""
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


def base_sampler(sampler: BaseSampler) -> BaseSampler:
    """Return the sampler of the parameters that are not fixed."""
    while isinstance(sampler, optuna.samplers.PartialFixedSampler):
        sampler = sampler._base_sampler
    return sampler


def _number_points(sampler: BaseSampler, number: int) -> None:
    """Make Optuna's QMC sampler take the point of the trial's number instead of the next free one."""
    sampler = base_sampler(sampler)
    if isinstance(sampler, optuna.samplers.QMCSampler):
        sampler._find_sample_id = lambda *_: number  # type: ignore[method-assign]


def _child_seed(study_seed: int, name: bytes, *numbers: int) -> int:
    entropy = [study_seed, int.from_bytes(name, "big"), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
