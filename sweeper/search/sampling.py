"""Search of one trial: parameters and pruning, as functions of seed, number and window.

Every trial has a new sampler with its own seed, which sees a private study with only the trials
below ``number - window + 1``; so does the pruner, which is new for every decision. All of these trials are
finished before the trial may start, so draws and decisions depend neither on the number of workers nor on
the order of completion. A resumed trial repeats its requests and gets equal values.

CMA-ES keeps its covariance in the trials that it drew (as a pickle, which sweeper never reads from a
database), genetic samplers a trial's generation, successive halving the rungs that a trial reached. Each
of these attributes is a function of seed, number and window, too. So none is stored: the draws and
decisions of the finished trials are repeated in the order of their numbers, each in its own window, once
in each worker process.

The private study has the finished trials of the window, then waiting trials, which samplers and pruners
ignore, so that the trial keeps its number, then the trial itself. Optuna's code writes only to this study.

Observations from outside of the study come before all of them, with negative numbers, so that samplers take
them for the oldest trials, and Optuna's common search space is that of the study's own ones. Each trial shows
them with the ranges that it and its window suggest. Pruners do not see them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from statistics import fmean
from typing import Literal, cast

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import NopPruner
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import Direction
from sweeper.declarations.space import CategoricalChoice, Distribution, IntRange
from sweeper.errors import ParameterError, SweeperError
from sweeper.search import spaces
from sweeper.search.spec import (
    SamplerSpec,
    base_sampler,
    leaves_attributes,
    make_sampler,
    quietly,
)
from sweeper.support.shown import shown_error


class _WindowStudy(optuna.Study):
    def stop(self) -> None:
        """Do nothing: the definition fixes the number of trials."""


_LEAVING_NOTHING = (
    optuna.samplers.BruteForceSampler,
    optuna.samplers.GPSampler,
    optuna.samplers.QMCSampler,
    optuna.samplers.RandomSampler,
    optuna.samplers.TPESampler,
)
"""Samplers that read only parameters and values of earlier trials."""

_BY_TRIALS_ALONE = (
    optuna.samplers.BruteForceSampler,
    optuna.samplers.GridSampler,
    optuna.samplers.QMCSampler,
    optuna.samplers.RandomSampler,
)
"""Samplers that look at which trials there are, and not at their values."""


def open_search(
    spec: SamplerSpec,
    number: int,
    observations: Sequence[spaces.Observation] = (),
    replayed: ReplayedAttributes | None = None,
    *,
    redraws: int = 0,
    foreign: Sequence[ForeignObservation] = (),
) -> SearchSession:
    """Start the search of trial ``number``, from 0, which has been drawn again ``redraws`` times.

    ``observations`` are the finished trials below ``number - window + 1``, and ``replayed`` has the cached
    attributes of the study's earlier trials. ``foreign`` are all of the study's foreign observations.
    """
    if spec.grid is not None:
        spaces.check_grid(spec.grid, number + 1)
    observed = () if spec.window is None else _window(spec.window, number, observations)
    with _blamed_on_sampler(f"it was made for trial {number}"):
        finished = (replayed or ReplayedAttributes()).window(spec, observed, foreign)
        return SearchSession(spec, number, finished, observed, redraws=redraws, foreign=foreign)


@contextmanager
def _blamed_on_sampler(when: str) -> Iterator[None]:
    """Context manager that converts a sampler's errors to a `ParameterError`."""
    try:
        yield
    except SweeperError:
        raise
    except Exception as error:
        raise ParameterError(
            f"the sampler raised {shown_error(error)}, when {when}; check the "
            "arguments with which it was made"
        ) from error


class SearchSession:
    """Search of one trial: its parameters in the order of its requests, and pruning decisions.

    ``finished`` are the trials of its window, numbered from 0 without a gap, which sessions share and never
    change; ``observations`` are the same trials.
    """

    def __init__(
        self,
        spec: SamplerSpec,
        number: int,
        finished: Sequence[FrozenTrial],
        observations: Sequence[spaces.Observation] = (),
        *,
        redraws: int = 0,
        foreign: Sequence[ForeignObservation] = (),
    ) -> None:
        self._spec = spec
        self._number = number
        self._seen = {
            n: (o.number, d) for o in reversed(observations) for n, d in o.distributions.items()
        }
        self._drawn: dict[str, tuple[Distribution, CategoricalChoice]] = {}
        self._judged: list[tuple[int, float]] = []
        self._verdict = False
        self._enqueued = spec.enqueue[number] if number < len(spec.enqueue) else {}
        # If nothing looks at other trials, placeholders for them would only take memory.
        trial_number = 0 if spec.window is None else number
        sampler = make_sampler(spec, number, redraws)
        self._space = {n: d for trial in finished for n, d in trial.distributions.items()}
        converted = spaces.in_space(finished, self._space)
        self._storage = _WindowStorage(spec.study, spec.directions, converted, trial_number)
        if spec.window is not None and type(base_sampler(sampler)) not in _BY_TRIALS_ALONE:
            used = [observation for observation in foreign if observation.is_used_by(number)]
            # Others than TPE look up every common parameter in every trial.
            needs_all = bool(finished) and not isinstance(base_sampler(sampler), TPESampler)
            common = set.intersection(*({*t.params} for t in converted)) if needs_all else set()
            self._storage.show_foreign(used, self._space, common)
        pruner = NopPruner() if spec.pruner is None else spec.pruner()
        self._study = _WindowStudy(spec.study, self._storage, sampler, pruner)
        fixed = {"fixed_params": dict(self._enqueued)} if self._enqueued else {}
        running_trial = create_trial(state=TrialState.RUNNING, system_attrs=fixed)
        self._id = self._storage.create_new_trial(self._study._study_id, running_trial)
        self._trial = optuna.trial.Trial(self._study, self._id)

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the trial's value of ``name``; a repeated request returns the same value."""
        if name in self._drawn:
            earlier_distribution, value = self._drawn[name]
            if spaces.to_text(earlier_distribution) != spaces.to_text(distribution):
                raise ParameterError(
                    f"parameter {name!r} was suggested as {earlier_distribution} and now as {distribution}; "
                    "suggest it once, or always with the same range"
                )
            return value
        if name in self._seen:
            number, earlier = self._seen[name]
            spaces.check_alike(name, distribution, earlier, number)
        with _blamed_on_sampler(f"it was asked for parameter {name!r} from {distribution}"):
            self._drawn[name] = (distribution, self._draw(name, distribution))
        return self._drawn[name][1]

    def judge(self, values: Sequence[tuple[int, float]]) -> bool:
        """Return whether the trial is pruned after the last of ``values``.

        ``values`` are the objectives after all epochs so far, with the epochs' numbers from 0, in order.
        """
        if list(values[: len(self._judged)]) != self._judged:
            raise ValueError(
                f"a trial's earlier values changed from {self._judged} to {list(values)}"
            )
        for epoch, value in values[len(self._judged) :]:
            self._storage.set_trial_intermediate_value(self._id, epoch, value)
            if self._spec.pruner is not None:
                with quietly(), self._storage.without_foreign():
                    pruner = self._spec.pruner()
                    self._verdict = bool(pruner.prune(self._study, self._frozen()))
            self._judged.append((epoch, value))
        return self._verdict

    def set_attributes(
        self, trial: FrozenTrial, ended: spaces.Observation, *, judges: bool
    ) -> None:
        """Repeat the search of this ``trial``, which has ended, and set the attributes that Optuna did."""
        sampler_leaves = _sampler_leaves_attributes(self._spec)
        for name, distribution in ended.distributions.items():
            if sampler_leaves:
                self._draw(name, distribution)
            else:
                self._hold(name, distribution, ended.params[name])
        if judges:
            self.judge(sorted(ended.intermediate.items()))
        if sampler_leaves:
            self._study.sampler.after_trial(self._study, trial, trial.state, trial.values)
        trial.system_attrs = self._frozen().system_attrs

    def _frozen(self) -> FrozenTrial:
        return self._storage.get_trial(self._id)

    def _draw(self, name: str, distribution: Distribution) -> CategoricalChoice:
        if self._spec.grid is not None:
            value = spaces.grid_value(self._spec.grid, self._number, name, distribution)
            self._hold(name, distribution, value)
            return value
        enqueued = self._checked_enqueued(name, distribution) if name in self._enqueued else None
        optuna_distribution = spaces.to_optuna(distribution)
        if self._space.get(name, optuna_distribution) != optuna_distribution:
            # The first trial with another range: what the sampler drew for all parameters is from the old one.
            self._storage.move_into({name: optuna_distribution})
            # Of the list of trials that Optuna reads once for all independent parameters.
            self._study._thread_local.cached_all_trials = None
            (self._trial.relative_params or {}).pop(name, None)
        if self._space.get(name) != optuna_distribution:
            self._storage.show_parameter(name, optuna_distribution)
        # Private, because the public methods make the distribution again from its limits.
        drawn = self._trial._suggest(name, optuna_distribution)
        if name in self._enqueued:
            return enqueued
        return cast(
            "CategoricalChoice", int(drawn) if isinstance(distribution, IntRange) else drawn
        )

    def _hold(self, name: str, distribution: Distribution, value: CategoricalChoice) -> None:
        """Set a value that the sampler did not draw."""
        internal = spaces.to_internal(name, distribution, value)
        self._storage.set_trial_param(self._id, name, internal, spaces.to_optuna(distribution))
        # Optuna's trial reads its parameters from this copy.
        self._trial._cached_frozen_trial = self._frozen()

    def _checked_enqueued(self, name: str, distribution: Distribution) -> CategoricalChoice:
        value = self._enqueued[name]
        try:
            return spaces.from_internal(distribution, spaces.to_internal(name, distribution, value))
        except ParameterError as error:
            raise ParameterError(
                f"enqueue[{self._number}] gives {name!r} the value {value!r}, which is not in the "
                f"suggested range {distribution}; change the value or the range"
            ) from error


class ReplayedAttributes:
    """A study's finished trials with Optuna's attributes; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spec: SamplerSpec | None = None
        self._observations: list[spaces.Observation] = []
        self._trials: list[FrozenTrial] = []

    def window(
        self,
        spec: SamplerSpec,
        observations: Sequence[spaces.Observation],
        foreign: Sequence[ForeignObservation] = (),
    ) -> list[FrozenTrial]:
        """Return the observed trials with their attributes; they are numbered from 0 without a gap.

        Earlier results are reused as far as the trials are unchanged; a retried trial is not.
        """
        # The slots of one worker share this cache.
        with self._lock:
            if self._spec != spec:
                self._spec = spec
                self._observations = []
                self._trials = []
            for index, (cached, observed) in enumerate(
                zip(self._observations, observations, strict=False)
            ):
                # NaN differs from itself, but not in its text.
                if cached != observed and repr(cached) != repr(observed):
                    del self._observations[index:], self._trials[index:]
                    break
            for observation in observations[len(self._trials) :]:
                self._trials.append(self._replayed(spec, observation, foreign))
                self._observations.append(observation)
            return self._trials[: len(observations)]

    def _replayed(
        self,
        spec: SamplerSpec,
        observation: spaces.Observation,
        foreign: Sequence[ForeignObservation],
    ) -> FrozenTrial:
        trial = spaces.to_frozen_trial(observation)
        trial.number = trial._trial_id = observation.number
        judges = leaves_attributes(None if spec.pruner is None else spec.pruner())
        if judges or _sampler_leaves_attributes(spec):
            end = max(0, observation.number - (spec.window or 1) + 1)
            earlier_trials = self._trials[:end]
            session = SearchSession(
                spec,
                observation.number,
                earlier_trials,
                redraws=observation.redraws,
                foreign=foreign,
            )
            session.set_attributes(trial, observation, judges=judges)
        return trial


def _sampler_leaves_attributes(spec: SamplerSpec) -> bool:
    """Return whether the sampler reads attributes that it wrote to earlier trials."""
    if spec.factory is None:
        return spec.name == "cmaes"
    sampler = base_sampler(make_sampler(spec, 0))
    if getattr(sampler, "_constraints_func", None) is not None:
        return True
    return type(sampler) not in _LEAVING_NOTHING


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
        trials = [*finished, *(_waiting_trial(n) for n in range(len(finished), number))]
        # Private fields, because each public method copies the trial that it adds.
        self._studies[study_id].trials = trials
        self._trial_id_to_study_id_and_number = {n: (study_id, n) for n in range(number)}
        self._max_trial_id = number - 1
        self._foreign: list[tuple[ForeignObservation, FrozenTrial]] = []

    def show_foreign(
        self,
        observations: Sequence[ForeignObservation],
        space: Mapping[str, BaseDistribution],
        needed: Collection[str],
    ) -> None:
        """Add observations from outside of the study that have all parameters ``needed``, as the oldest trials."""
        # Optuna's common search space is that of the trials down to number -1.
        first = -1 - len(observations)
        self._foreign = [
            (observation, _foreign_trial(observation, number))
            for number, observation in enumerate(observations, first)
        ]
        for name, distribution in space.items():
            self.show_parameter(name, distribution)
        self._foreign = [pair for pair in self._foreign if {*needed} <= pair[1].params.keys()]

    def show_parameter(self, name: str, distribution: BaseDistribution) -> None:
        """Show the observations' values of a parameter, without those outside of its range."""
        for observation, trial in self._foreign:
            trial.params = {n: v for n, v in trial.params.items() if n != name}
            trial.distributions = {n: d for n, d in trial.distributions.items() if n != name}
            # A value outside of the range is no error: a later trial may suggest another range.
            with suppress(KeyError, ValueError):
                trial.params[name] = spaces.observed_value(distribution, observation.params[name])
                trial.distributions[name] = distribution

    @contextmanager
    def without_foreign(self) -> Iterator[None]:
        """Context manager in which only the study's own trials are visible."""
        foreign = self._foreign
        self._foreign = []
        try:
            yield
        finally:
            self._foreign = foreign

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        trials = super().get_all_trials(study_id, deepcopy, states)
        if states is not None and TrialState.COMPLETE not in states:
            return trials
        foreign = [trial for _, trial in self._foreign]
        return [*(copy.deepcopy(foreign) if deepcopy else foreign), *trials]

    def move_into(self, space: Mapping[str, BaseDistribution]) -> None:
        """Show the trials as if their parameters were from ``space``."""
        for study in self._studies.values():
            study.trials = spaces.in_space(study.trials, space)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        # The parent keeps the best one as trials are added, which they were not.
        return BaseStorage.get_best_trial(self, study_id)


def _waiting_trial(number: int) -> FrozenTrial:
    trial = create_trial(state=TrialState.WAITING)
    trial.number = trial._trial_id = number
    return trial


def _foreign_trial(observation: ForeignObservation, number: int) -> FrozenTrial:
    trial = create_trial(state=TrialState.COMPLETE, values=observation.values)
    trial.number = trial._trial_id = number
    return trial


def _window(
    window: int, number: int, observations: Sequence[spaces.Observation]
) -> tuple[spaces.Observation, ...]:
    end = max(0, number - window + 1)
    earlier = sorted((o for o in observations if o.number < end), key=lambda o: o.number)
    if [o.number for o in earlier] != list(range(end)):
        raise ValueError(
            f"trial {number} with a window of {window} must see exactly the {end} trials "
            f"below {end}, and was given {[o.number for o in earlier]}; wait until all are finished"
        )
    return tuple(earlier)


def of_configurations(
    observations: Sequence[spaces.Observation], repeating: Repeating
) -> tuple[spaces.Observation, ...]:
    """Return one observation for each configuration, from those of its trials, in order.

    It has the configuration's number, and the mean of its repeats as value. It has failed if a repeat
    has, and was pruned if a repeat was; then its value is the mean at the last epoch that all of its
    trained repeats have.
    """
    if repeating.is_single:
        return tuple(observations)
    groups: dict[int, list[spaces.Observation]] = {}
    for observation in observations:
        groups.setdefault(repeating.index_of(observation.number), []).append(observation)
    return tuple(_configuration(groups[number], number) for number in sorted(groups))


def _configuration(trials: Sequence[spaces.Observation], number: int) -> spaces.Observation:
    states = {trial.state for trial in trials}
    state: Literal["failed", "pruned", "complete"] = "complete"
    if "failed" in states:
        state = "failed"
    elif "pruned" in states:
        state = "pruned"
    # The remaining repeats of a pruned configuration were not trained.
    curves = [t.intermediate for t in trials if t.intermediate or t.value is not None]
    epochs = sorted(set.intersection(*map(set, curves))) if curves else []
    intermediate = {epoch: fmean(values[epoch] for values in curves) for epoch in epochs}
    value = None
    if state == "complete":
        value = fmean(trial.value for trial in trials if trial.value is not None)
    elif state == "pruned" and intermediate:
        value = intermediate[epochs[-1]]
    return replace(trials[0], number=number, state=state, value=value, intermediate=intermediate)
