"""The view of one trial: a private Optuna study that ends at the trial's window.

The study holds the finished trials of the window, then, so that the trial has its own number in
Optuna too, as many that have not begun ("waiting", which no sampler or pruner learns from), then
the trial itself. Whatever Optuna's code writes goes into this study alone: nothing that depends on
who finished first can reach the next trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.declared.searching import Direction
from sweeper.declared.space import CategoricalChoice


class View:
    """Trial ``number``'s view.

    Args:
        study: The study's name.
        directions: Of its objectives.
        finished: The trials of the window, numbered from 0 without a gap, and shared between
            views: none is ever changed.
        number: The trial's, at least as many as there are finished ones.
        sampler: Made for this trial.
        pruner: Made for this trial.
        given: Values that the trial takes instead of drawing them.
    """

    def __init__(
        self,
        *,
        study: str,
        directions: Sequence[Direction],
        finished: Sequence[FrozenTrial],
        number: int,
        sampler: BaseSampler,
        pruner: BasePruner | None = None,
        given: Mapping[str, CategoricalChoice] | None = None,
    ) -> None:
        self._storage = _WindowStorage(study, directions, finished, number)
        self.study = _WindowStudy(study, self._storage, sampler, pruner or NopPruner())
        begun = create_trial(
            state=TrialState.RUNNING, system_attrs={"fixed_params": dict(given)} if given else {}
        )
        self._id = self._storage.create_new_trial(self.study._study_id, begun)
        self.trial = optuna.trial.Trial(self.study, self._id)

    def set_parameter(
        self, name: str, distribution: optuna.distributions.BaseDistribution, internal: float
    ) -> None:
        """Have the trial hold a parameter that was not drawn here."""
        self._storage.set_trial_param(self._id, name, internal, distribution)
        self.trial._cached_frozen_trial = self.frozen()

    def report(self, step: int, value: float) -> None:
        """Have the trial hold an intermediate value."""
        self._storage.set_trial_intermediate_value(self._id, step, value)

    def frozen(self) -> FrozenTrial:
        """Return the trial as it now is, with every attribute that Optuna's code left on it."""
        return self._storage.get_trial(self._id)


class _WindowStudy(optuna.Study):
    def __init__(
        self, name: str, storage: BaseStorage, sampler: BaseSampler, pruner: BasePruner
    ) -> None:
        super().__init__(study_name=name, storage=storage, sampler=sampler, pruner=pruner)

    def stop(self) -> None:
        """Do nothing: how many trials there are is said in the definition, not by a sampler."""


class _WindowStorage(InMemoryStorage):
    """Optuna's storage in memory, filled at once instead of by a copy of every trial."""

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
