"""Definition of a study: its factories and its settings, checked at once.

`StudyDefinition` holds the user's functions beside the plain values that the database keeps. It
runs nothing: `sweeper.api.study.Study` adds that. A trial process needs only this class.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import TypeAdapter

from sweeper.declarations import searching
from sweeper.declarations.arguments import (
    checked_choice,
    checked_factory,
    checked_whole,
    usable_cores,
    with_named_arguments,
)
from sweeper.declarations.budgets import Budget, describe_budget
from sweeper.declarations.checkpointing import (
    CheckpointEvery,
    Every,
    Keep,
    describe_every,
    parse_every,
)
from sweeper.declarations.observing import ForeignObservation, checked_observations
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.retries import Retries, checked_retries, checked_seconds
from sweeper.declarations.space import CategoricalChoice
from sweeper.declarations.warm_start import WarmStart, checked_warm_start
from sweeper.errors import DefinitionError
from sweeper.records.code import CodeFingerprint, CodePart, digest_of
from sweeper.records.exactness import AuditPolicy
from sweeper.support.paths import check_name
from sweeper.support.shown import shown_value

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from sweeper.definition.trial import Trial
    from sweeper.train.data import Data
    from sweeper.train.step import TrainingStep

POLICY: Final = (
    "trials",
    "time_limit",
    "study_time_limit",
    "retries",
    "audit",
    "failing_alike",
)
"""Settings that do not affect results, and may differ from run to run."""

SEARCH: Final = (
    "sampler",
    "grid",
    "enqueue",
    "pruner",
    "concurrency",
    "confirm",
    "duplicates",
    "patience",
    "observe",
)
"""Settings that affect which trials there are, but not their results; they may change at any time."""

_OF_THE_SEARCH = ("name", *SEARCH, "budget", "checkpoint_every", "keep")
"""Settings that affect which trials there are and what is stored of them, but not their results."""

_DEFAULT_RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class StudySettings:
    """The plain values of a definition, as stored in the database and compared by a resume.

    Attributes:
        threads: TensorFlow threads of one trial; a number, so that it is the same on every machine.
        checkpoint_every: As `describe_every` writes it.
        keep: As `Keep.describe` writes it.
        objective, direction: Of the only objective, or of the first of several.
        sampler: A name of `SAMPLERS`, or ``"custom:<qualified name>"`` for a callable.
        pruner: As `describe_pruner` writes it.
        enqueue: The values given to the first trials.
        further_objectives: The objectives after the first.
        at: The weights whose objective is a trial's value.
        nonfinite: Whether a loss that is NaN or infinite fails the trial.
        time_limit, study_time_limit, retries, audit, failing_alike: Policy.
        warm_start: Options of a `WarmStart` and the digest of its file; None without one, or if a
            function chooses the file of each trial.
        budget: As `describe_budget` writes it.
        repeats: Number of trials of each configuration.
        confirm: Of a study that confirms another one: its ``configurations``, ``trials``,
            ``repeats`` and ``at_most`` (`sweeper.declarations.repeating`); None for other studies.
        duplicates: Treatment of a trial with the parameters of an earlier one.
        patience: Number of configurations without improvement after which the study ends; None for no such end.
        observe: Results of other trainings for the sampler.
    """

    name: str
    objective: str
    direction: searching.Direction
    epochs: int
    trials: int
    sampler: str
    grid: Mapping[str, Sequence[CategoricalChoice]] | None
    pruner: Mapping[str, Any] | None
    concurrency: int
    seed: int
    checkpoint_every: Any
    keep: Any
    deterministic: bool
    threads: int
    enqueue: tuple[Mapping[str, CategoricalChoice], ...] = ()
    further_objectives: tuple[searching.Objective, ...] = ()
    time_limit: float | None = None
    study_time_limit: float | None = None
    retries: Retries = _DEFAULT_RETRIES
    audit: AuditPolicy = "auto"
    failing_alike: int | None = 3
    warm_start: Mapping[str, Any] | None = None
    at: searching.At = "end"
    budget: Mapping[str, Any] | None = None
    nonfinite: searching.NonFinite = "continue"
    repeats: int = 1
    confirm: Mapping[str, Any] | None = None
    duplicates: searching.Duplicates = "reuse"
    patience: int | None = None
    observe: tuple[ForeignObservation, ...] = ()

    @property
    def objectives(self) -> tuple[searching.Objective, ...]:
        return (searching.Objective(self.objective, self.direction), *self.further_objectives)

    @property
    def repeating(self) -> Repeating:
        """Return which trial is which repeat of which configuration."""
        return Repeating.of({"repeats": self.repeats, "confirm": self.confirm})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, by field name.

        A field with its default value is left out, so that adding a field to this class does not
        change stored definitions.
        """
        values: dict[str, Any] = _json_form().dump_python(self, mode="json", exclude_defaults=True)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StudySettings:
        """Return the settings from the form that `to_json` returns; other entries are ignored."""
        return _json_form().validate_python(dict(values))


@functools.cache
def _json_form() -> TypeAdapter[StudySettings]:
    """Return the conversion by which the settings also travel in messages."""
    return TypeAdapter(StudySettings)


@with_named_arguments
class StudyDefinition:
    """A comparison of hyperparameters: factories of model and data, epochs, trials and search.

    Args:
        name: Names the study in the database and its directory.
        model: ``trial -> keras.Model``, new and compiled for every trial.
        data: ``trial -> Data``.
        callbacks: ``trial -> list[keras.callbacks.Callback]``, or None for no callbacks.
        step: ``trial -> TrainingStep``, which replaces the model's ``train_step`` and
            ``test_step``; None for the model's own. With a step the model need not be compiled.
        strategy: ``trial -> tf.distribute.Strategy``, called before the other factories, which run
            in its scope, and before TensorFlow's first op: a ``tf.distribute.MirroredStrategy``, or any of
            one replica. None for one device.
        objective: The metric to compare trials by: a key of the epoch logs, such as
            ``"val_accuracy"``, or ``"val_f1_score[1]"`` of a metric that is a vector. A trial's
            value is the objective at the epoch that ``at`` names. A list of several metrics makes a
            study of several objectives: its results are the Pareto front (`StudyResults.pareto`).
        direction: ``"maximize"`` or ``"minimize"``; if ``objective`` is a list, a list of equal
            length. None, the default, takes it from the metric's name, as `Objective` does: maximize
            for accuracy, AUC, F1, precision, recall, R², IoU and top-k, minimize for loss and errors.
            Any other name needs a direction.
        epochs: Epochs a trial trains for.
        trials: The exact total, over all runs and workers.
        sampler: One of `SAMPLERS`, or ``seed -> optuna sampler``, called for every trial with that
            trial's seed. ``"cmaes"`` needs the package cmaes, ``"gp"`` PyTorch.
        grid: With ``sampler="grid"``: each parameter's points.
        enqueue: Values for the first trials, one mapping for each: trial i takes the values in
            ``enqueue[i]``, and draws its other parameters.
        pruner: An Optuna pruner. After every epoch but the last it decides whether the trial ends
            there, from the objective of this trial's epochs and of the trials that the sampler
            sees. It must not keep state between two decisions.
        concurrency: The maximum number of trials at once, if the sampler or pruner uses results.
            With any number of workers, trial n uses the results of the trials up to n - (2 *
            concurrency - 1), and starts once these are finished.
        seed: The source, with a trial's number, of all random numbers of the trial.
        checkpoint_every: ``"epoch"``, ``Every(steps=…)``, ``Every(seconds=…)`` or ``"auto"``.
        keep: Which checkpoints are kept; the last two by default.
        deterministic: Whether kernels must be deterministic. False is faster, and gives up
            exactness.
        threads: TensorFlow threads of one trial. None: the machine's cores divided by
            ``concurrency``, decided when the study is created, and stored.
        time_limit: Seconds that a trial may take; then it is killed with all processes that it
            started, and fails. The time is that of the training up to its checkpoint and of the
            present attempt from its process's start; steps that are trained again count once. None
            for no limit.
        study_time_limit: Seconds that one run, resume or worker may take; then it stops as after
            SIGTERM, and can be resumed, with the full time again. None for no limit.
        retries: How often a trial is resumed after each kind of fault: `Retries`, or a mapping such
            as ``{"crash": 3, "memory": 3, "error": 0}``, which are the defaults.
        audit: Which trials are resumed from an earlier checkpoint at their end, in a fresh process, and
            compared with their last one: ``"auto"`` for the first trial, and for later ones as they
            are drawn, in about 5% of the study's time; ``"all"`` for every interval between kept
            checkpoints of every trial; ``"off"`` for none. It does not affect results, and may differ
            from run to run.
        at: ``"end"``: a trial's value is the objective of the weights that `load_model` returns:
            of the best epoch if ``EarlyStopping(restore_best_weights=True)`` restored it, measured
            after training if no epoch had these weights (averages), and else of the last epoch.
            ``"last"``: at its last epoch, whatever the weights are then. ``"best"``: at its best
            epoch, the first of equal ones. Every epoch that is the
            best so far then ends with a checkpoint, whatever ``checkpoint_every`` is, and the best
            one is kept in addition to those of ``keep``. Only with one objective.
        failing_alike: The run ends with an error if the study's first trials, this many of them,
            all failed with the same error, or two of them before any trial has trained a step; 3 by
            default, None or 0 to disable it. It may differ from run to run.
        warm_start: Initial values of the model's variables: a `WarmStart`, the path of a file, or
            ``trial -> WarmStart | path | None``. The content of a file that is named here is part
            of the definition; the content of a file that a function chooses is part of the trial.
        budget: `Halving` or `Hyperband`: trials pause at rungs, and the best of each
            are promoted.
        repeats: How often each configuration (one set of parameters) is trained, each time as a
            separate trial; 1 by default. ``trials`` is a multiple of it. `Trial.repeat` counts
            from 0, and repeat r of every configuration has the same seed. The sampler and the
            pruner see the mean of a configuration's repeats. Only with one objective, and not
            together with ``budget``.
        duplicates: Treatment of a trial with the parameters of an earlier one. ``"reuse"``: it takes that
            result and counts once; if that one fails, it is trained. ``"train"``: it is trained with
            another seed, with repeats with the seeds after those of the earlier ones. ``"redraw"``: the
            parameters are drawn again, at most 10 times; then it is reused. Without parameters, or with a
            ``budget``, every trial is trained.
        observe: Results of trainings outside of the study, one mapping for each: ``{"params": {…}, "value":
            0.9}``, or ``"values"`` for several objectives. The sampler uses them like finished trials.
            Nothing else does: they are no trials, never the best one, and count for no total. Further ones
            are used by the trials that have not begun. `sweeper observe` takes them from a file.
        patience: The study ends with fewer than ``trials`` once this many trials in a row (with repeats:
            configurations) have not improved on the best one before; None, the default, never. With any
            number of workers it ends with the same trial. Only with one objective and without ``budget``.
        nonfinite: ``"continue"``: a trial with a loss or objective of NaN or infinity after an
            epoch continues, as in ``model.fit``, with one notice; it fails only if its final value
            is NaN or infinite. ``"fail"``: it fails at the end of that epoch.

    Raises:
        DefinitionError: An argument has the wrong type or an impossible value.

    Examples:
        >>> study.name, study.settings().epochs
        ('digits', 2)
    """

    def __init__(
        self,
        *,
        name: str,
        model: Callable[[Trial], keras.Model],
        data: Callable[[Trial], Data],
        epochs: int,
        trials: int,
        callbacks: Callable[[Trial], list[keras.callbacks.Callback]] | None = None,
        step: Callable[[Trial], TrainingStep] | None = None,
        strategy: Callable[[Trial], tf.distribute.Strategy] | None = None,
        objective: str | Sequence[str] = "val_loss",
        direction: searching.Direction | Sequence[searching.Direction | None] | None = None,
        sampler: str | Callable[[int], Any] = "tpe",
        grid: Mapping[str, Sequence[CategoricalChoice]] | None = None,
        enqueue: Sequence[Mapping[str, CategoricalChoice]] | None = None,
        pruner: object | None = None,
        concurrency: int = 4,
        seed: int = 0,
        checkpoint_every: str | Every = "epoch",
        keep: Keep | None = None,
        deterministic: bool = True,
        threads: int | None = None,
        time_limit: float | None = None,
        study_time_limit: float | None = None,
        retries: Retries | Mapping[str, int] | None = None,
        audit: AuditPolicy = "auto",
        failing_alike: int | None = 3,
        warm_start: WarmStart
        | str
        | os.PathLike[str]
        | Callable[[Trial], WarmStart | str | os.PathLike[str] | None]
        | None = None,
        at: searching.At = "end",
        budget: Budget | None = None,
        nonfinite: searching.NonFinite = "continue",
        repeats: int = 1,
        duplicates: searching.Duplicates = "reuse",
        patience: int | None = None,
        observe: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = check_name(name)
        if "~" in name:
            raise DefinitionError(
                f"{name!r} is the name of a study that `run --fresh` renamed; leave out the ~ and "
                "the number"
            )
        self.model = checked_factory(model, "model", "trial -> a fresh, compiled keras.Model")
        self.data = checked_factory(data, "data", "trial -> Data")
        self.callbacks = checked_factory(
            callbacks, "callbacks", "trial -> list of keras callbacks", optional=True
        )
        self.step = checked_factory(step, "step", "trial -> TrainingStep", optional=True)
        self.strategy = checked_factory(
            strategy, "strategy", "trial -> tf.distribute.Strategy", optional=True
        )
        self.objectives = searching.checked_objectives(objective, direction)
        self.objective = self.objectives[0].name
        self.direction: searching.Direction = self.objectives[0].direction
        directions = searching.given_directions(objective, direction)
        self.directed_by_name = tuple(
            metric.name
            for metric, way in zip(self.objectives, directions, strict=True)
            if way is None
        )
        self.at: searching.At = searching.checked_at(at, self.objectives)
        self.epochs = checked_whole(epochs, "epochs", least=1)
        self.trials = checked_whole(trials, "trials", least=1)
        self.sampler = searching.checked_sampler(sampler)
        self.grid = searching.checked_grid(grid, sampler)
        self.repeats = searching.checked_repeats(repeats, self.trials, self.objectives, budget)
        self.enqueue = searching.checked_enqueue(
            enqueue, trials=trials, sampler=sampler, repeats=self.repeats
        )
        self.observe = checked_observations(observe, self.objectives, self.sampler)
        self.pruner = pruner
        self._described_pruner = searching.describe_pruner(pruner, self.objectives)
        self.budget = budget
        self.concurrency = checked_whole(concurrency, "concurrency", least=1)
        self._described_budget = describe_budget(
            budget, epochs=self.epochs, pruner=pruner, objectives=self.objectives
        )
        self.seed = checked_whole(seed, "seed", least=0)
        self.checkpoint_every: CheckpointEvery = parse_every(checkpoint_every)
        self.keep = Keep() if keep is None else keep
        if not isinstance(self.keep, Keep):
            raise DefinitionError(
                f"keep={shown_value(keep)}; give a sweeper.Keep, such as Keep(last=3)"
            )
        self.deterministic = bool(deterministic)
        self.threads = None if threads is None else checked_whole(threads, "threads", least=1)
        self.time_limit = checked_seconds(time_limit, "time_limit")
        self.study_time_limit = checked_seconds(study_time_limit, "study_time_limit")
        self.retries = checked_retries(retries)
        self.audit: AuditPolicy = checked_choice(audit, "audit", get_args(AuditPolicy))
        self.failing_alike = checked_whole(failing_alike or 0, "failing_alike", least=0) or None
        self.warm_start = checked_warm_start(warm_start)
        self.patience = searching.checked_patience(patience, self.objectives, budget)
        self.duplicates: searching.Duplicates = checked_choice(
            duplicates,
            "duplicates",
            get_args(searching.Duplicates),
            "what is done with parameters that were there",
        )
        self.nonfinite: searching.NonFinite = checked_choice(
            nonfinite,
            "nonfinite",
            get_args(searching.NonFinite),
            "what a NaN or infinite loss does to a trial",
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, trials={self.trials})"

    def settings(self) -> StudySettings:
        """Return the plain values, with ``threads`` resolved for this machine.

        Raises:
            DefinitionError: The warm start's file does not exist, or cannot be read.
        """
        sampler = self.sampler
        if not isinstance(sampler, str):
            sampler = f"custom:{getattr(sampler, '__qualname__', type(sampler).__qualname__)}"
        start = None
        if isinstance(self.warm_start, WarmStart):
            from sweeper.train.warmstart.source import describe_warm_start

            start = describe_warm_start(self.warm_start)
        described: dict[str, Any] = {
            "sampler": sampler,
            "pruner": self._described_pruner,
            "budget": self._described_budget,
            "checkpoint_every": describe_every(self.checkpoint_every),
            "keep": self.keep.describe(),
            "threads": self.threads or max(1, usable_cores() // self.concurrency),
            "further_objectives": self.objectives[1:],
            "warm_start": start,
            "confirm": None,
        }
        plain = {f.name for f in dataclasses.fields(StudySettings)} - described.keys()
        return StudySettings(**described, **{name: getattr(self, name) for name in plain})

    def user_code(self) -> dict[str, object]:
        """Return the user's code in the definition by argument: factories, sampler, pruner."""
        names = ("model", "data", "callbacks", "step", "strategy", "sampler", "pruner")
        arguments = {name: getattr(self, name) for name in names}
        if not isinstance(self.warm_start, WarmStart):
            arguments["warm_start"] = self.warm_start
        return {n: v for n, v in arguments.items() if v is not None and not isinstance(v, str)}

    def factories(self) -> tuple[Callable[[Trial], Any], ...]:
        """Return the factories of a trial's parts, in the order in which they run."""
        factories = (self.strategy, self.model, self.step, self.data, self.callbacks)
        return tuple(factory for factory in factories if factory is not None)

    def code(self) -> CodeFingerprint:
        """Return the fingerprint of the code that the factories reach, from the present files."""
        from sweeper.inspection.fingerprint import read_code

        user_code = self.user_code()
        whole = _with_settings(read_code(user_code))
        of_trials = {name: part for name, part in user_code.items() if name not in SEARCH}
        if len(of_trials) == len(user_code):
            return whole
        # Code that only the search reaches has no effect on a trial's result.
        return whole.of_trials(_with_settings(read_code(of_trials)))


def _with_settings(code: CodeFingerprint) -> CodeFingerprint:
    """Return the code with the settings of libraries that were changed, such as Keras's policy, as parts of it."""
    if "keras" not in sys.modules:
        return code
    from sweeper.train.settings import changed_settings

    settings = {n: CodePart(digest_of(repr(v))) for n, v in changed_settings().items()}
    return CodeFingerprint({**code.parts, **settings})


def definition_fingerprint(settings: Mapping[str, Any], code: CodeFingerprint | None) -> str:
    """Return the fingerprint of all settings and code that affect a trial's result: 32 hex digits.

    Parameters and seed are not part of it, nor are `POLICY`, the search and the retention rules.
    Trials with the same fingerprint can be compared. ``settings`` are as `StudySettings.to_json` returns them;
    ``code`` is None for a study of an old version without one.
    """
    values = {n: v for n, v in settings.items() if n not in (*POLICY, *_OF_THE_SEARCH)}
    return digest_of(json.dumps(values, sort_keys=True), "" if code is None else code.digest)
