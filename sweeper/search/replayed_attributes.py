"""Attributes that Optuna's samplers and pruners wrote to the trials of a window, computed again.

CMA-ES keeps its covariance in the trials that it drew (as a pickle, which sweeper never reads from
a database), genetic samplers a trial's generation, successive halving the rungs that a trial
reached. Each of these attributes is itself a function of the study's seed, the trial's number and
the window that the trial saw. So none is stored: the draws and decisions of the finished trials are
repeated in the order of their numbers, each in its own window, once in each worker process.

The view of a trial is a private Optuna study with the finished trials of the window, then waiting
trials, which samplers and pruners ignore, so that the trial keeps its number, then the trial
itself. Optuna's code writes only to this study, so nothing that depends on the order of completion
affects the next trial.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.errors import ParameterError
from sweeper.search.spaces import (
    Observation,
    from_internal,
    grid_value,
    to_frozen_trial,
    to_internal,
    to_optuna,
)
from sweeper.search.spec import SamplerSpec, leaves_attributes, make_sampler, quietly
from sweeper.spec.searching import Direction
from sweeper.spec.space import CategoricalChoice, Distribution, IntRange


class _WindowStudy(optuna.Study):
    def __init__(
        self, name: str, storage: BaseStorage, sampler: BaseSampler, pruner: BasePruner
    ) -> None:
        super().__init__(study_name=name, storage=storage, sampler=sampler, pruner=pruner)

    def stop(self) -> None:
        """Do nothing: the definition fixes the number of trials."""


class _WindowStorage(InMemoryStorage):
    """Optuna's in-memory storage, filled without copying every trial."""

    def __init__(
        self,
        name: str,
        directions: Sequence[Direction],
        finished: Sequence[FrozenTrial],
        number: int,
    ) -> None:
        super().__init__()
        study_id = self.create_new_study([StudyDirection[d.upper()] for d in directions], name)
        trials = [*finished, *(_not_begun(n) for n in range(len(finished), number))]
        self._studies[study_id].trials = trials
        self._trial_id_to_study_id_and_number = {n: (study_id, n) for n in range(number)}
        self._max_trial_id = number - 1

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        # The parent keeps the best one as trials are added, which they were not.
        return BaseStorage.get_best_trial(self, study_id)


def _not_begun(number: int) -> FrozenTrial:
    trial = create_trial(state=TrialState.WAITING)
    trial.number = trial._trial_id = number
    return trial


_LEAVING_NOTHING = (
    optuna.samplers.BruteForceSampler,
    optuna.samplers.GPSampler,
    optuna.samplers.QMCSampler,
    optuna.samplers.RandomSampler,
    optuna.samplers.TPESampler,
)
"""Samplers that read only parameters and values of earlier trials."""


class Asked:
    """Search of trial ``number`` in its view: draws and pruning decisions.

    Args:
        spec: The study's sampler and pruner.
        number: The trial's number.
        finished: The trials of its window, numbered from 0 without a gap. They are shared between views
            and never changed.
    """

    def __init__(self, spec: SamplerSpec, number: int, finished: Sequence[FrozenTrial]) -> None:
        self._spec = spec
        self._number = number
        self.sampler = make_sampler(spec, number)
        self._given = spec.enqueue[number] if number < len(spec.enqueue) else {}
        # Where nothing looks at other trials, their number is not worth the room that it takes.
        shown = 0 if spec.window is None else number
        self._storage = _WindowStorage(spec.study, spec.directions, finished, shown)
        pruner = NopPruner() if spec.pruner is None else spec.pruner()
        self.study = _WindowStudy(spec.study, self._storage, self.sampler, pruner)
        fixed = {"fixed_params": dict(self._given)} if self._given else {}
        begun = create_trial(state=TrialState.RUNNING, system_attrs=fixed)
        self._id = self._storage.create_new_trial(self.study._study_id, begun)
        self._trial = optuna.trial.Trial(self.study, self._id)

    def frozen(self) -> FrozenTrial:
        """Return the trial with all attributes that Optuna's code has set."""
        return self._storage.get_trial(self._id)

    def draw(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the trial's value of a parameter; refuse a given value outside of the distribution."""
        plain = to_optuna(distribution)
        if self._spec.grid is not None:
            value = grid_value(self._spec.grid, self._number, name, distribution)
            self.hold(name, distribution, value)
            return value
        if name in self._given:
            given = self._check_given(name, distribution)
            self._trial._suggest(name, plain)
            return given
        drawn = self._trial._suggest(name, plain)
        whole = isinstance(distribution, IntRange)
        return cast("CategoricalChoice", int(drawn) if whole else drawn)

    def hold(self, name: str, distribution: Distribution, value: CategoricalChoice) -> None:
        """Set a value that the sampler did not draw."""
        internal = to_internal(name, distribution, value)
        self._storage.set_trial_param(self._id, name, internal, to_optuna(distribution))
        self._trial._cached_frozen_trial = self.frozen()

    def judge(self, step: int, value: float) -> bool:
        """Report an intermediate value, and return whether the pruner would end the trial."""
        self._storage.set_trial_intermediate_value(self._id, step, value)
        if self._spec.pruner is None:
            return False
        pruner = self._spec.pruner()
        with quietly():
            return bool(pruner.prune(self.study, self.frozen()))

    def _check_given(self, name: str, distribution: Distribution) -> CategoricalChoice:
        given = self._given[name]
        try:
            return from_internal(distribution, to_internal(name, distribution, given))
        except ParameterError as error:
            msg = (
                f"enqueue[{self._number}] gives {name!r} the value {given!r}, which is not in the "
                f"suggested range {distribution}; change the value or the range"
            )
            raise ParameterError(msg) from error


class ReplayedAttributes:
    """A study's finished trials with Optuna's attributes; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spec: SamplerSpec | None = None
        self._observations: list[Observation] = []
        self._trials: list[FrozenTrial] = []

    def window(self, spec: SamplerSpec, seen: Sequence[Observation]) -> list[FrozenTrial]:
        """Return the trials of ``seen`` with their attributes; they are numbered from 0 without a gap.

        Earlier results are reused as far as the trials are unchanged; a retried trial is not.
        """
        with self._lock:
            if self._spec != spec:
                self._spec, self._observations, self._trials = spec, [], []
            same = 0
            for known, given in zip(self._observations, seen, strict=False):
                if known != given and repr(known) != repr(given):
                    break
                same += 1
            if same < min(len(self._observations), len(seen)):
                del self._observations[same:], self._trials[same:]
            for observation in seen[len(self._trials) :]:
                self._trials.append(self._replayed(spec, observation))
                self._observations.append(observation)
            return self._trials[: len(seen)]

    def _replayed(self, spec: SamplerSpec, observation: Observation) -> FrozenTrial:
        trial = to_frozen_trial(observation)
        trial.number = trial._trial_id = observation.number
        pruner = None if spec.pruner is None else spec.pruner()
        asks, judges = _sampler_leaves_attributes(spec), leaves_attributes(pruner)
        if not asks and not judges:
            return trial
        end = max(0, observation.number - (spec.window or 1) + 1)
        asked = Asked(spec, observation.number, self._trials[:end])
        for name, distribution in observation.distributions.items():
            if asks:
                asked.draw(name, distribution)
            else:
                asked.hold(name, distribution, observation.params[name])
        if judges:
            for step, value in sorted(observation.intermediate.items()):
                asked.judge(step, value)
        if asks:
            asked.sampler.after_trial(asked.study, trial, trial.state, trial.values)
        trial.system_attrs = dict(asked.frozen().system_attrs)
        return trial


def _sampler_leaves_attributes(spec: SamplerSpec) -> bool:
    """Return whether the sampler reads attributes that it wrote to earlier trials."""
    if spec.factory is None:
        return spec.name == "cmaes"
    sampler: object = make_sampler(spec, 0)
    while isinstance(sampler, optuna.samplers.PartialFixedSampler):
        sampler = sampler._base_sampler
    if getattr(sampler, "_constraints_func", None) is not None:
        return True
    return type(sampler) not in _LEAVING_NOTHING
