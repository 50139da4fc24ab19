"""What a study is: its factories and its settings, checked when it is written down.

`StudyDefinition` holds the user's functions beside the plain values that the database keeps. It
runs nothing: `sweeper.study.Study` adds that. A trial process needs only this class.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sweeper.checkpoints.policy import CheckpointEvery, Every, Keep, describe_every, parse_every
from sweeper.code import CodeFingerprint, digest_of
from sweeper.errors import DefinitionError
from sweeper.exactness import AuditPolicy, checked_audit
from sweeper.paths import check_name
from sweeper.policy import Retries, checked_retries, checked_seconds
from sweeper.searching import (
    SAMPLERS,
    Direction,
    Objective,
    checked_enqueue,
    checked_grid,
    checked_objectives,
    checked_sampler,
    describe_pruner,
)
from sweeper.space import CategoricalChoice

if TYPE_CHECKING:
    import keras

    from sweeper.training.data import Data
    from sweeper.trial import Trial

__all__ = [
    "POLICY",
    "SAMPLERS",
    "Direction",
    "Objective",
    "StudyDefinition",
    "StudySettings",
    "definition_fingerprint",
]

POLICY: Final = ("trials", "time_limit", "study_time_limit", "retries", "audit", "failing_alike")
"""Settings that change no result, and may differ from run to run."""

_OF_THE_SEARCH = (
    *("name", "sampler", "grid", "enqueue", "pruner", "concurrency"),
    *("checkpoint_every", "keep"),
)
"""Settings that say which trials there are and what is kept of them, not what a trial gives."""

_DEFAULT_RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class StudySettings:
    """The plain values of a definition, as the database keeps them and a resume compares them.

    Attributes:
        threads: TensorFlow threads of one trial; resolved, so that another machine gives the same.
        checkpoint_every: As `describe_every` writes it.
        keep: As `Keep.describe` writes it.
        objective, direction: Of the only objective, or of the first of several.
        sampler: A name of `SAMPLERS`, or ``"custom:<qualified name>"`` for a callable.
        pruner: As `describe_pruner` has it.
        enqueue: The values given to the first trials.
        further_objectives: Those after the first.
        time_limit, study_time_limit, retries, audit, failing_alike: Policy, which may differ from
            run to run.
    """

    name: str
    objective: str
    direction: Direction
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
    further_objectives: tuple[Objective, ...] = ()
    time_limit: float | None = None
    study_time_limit: float | None = None
    retries: Retries = _DEFAULT_RETRIES
    audit: AuditPolicy = "auto"
    failing_alike: int | None = 3

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All of them, in order."""
        return (Objective(self.objective, self.direction), *self.further_objectives)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, by field name.

        A field that has a default is left out where it has that value, so that a study stored
        before there was such a field is the same study.
        """
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        if self.grid is not None:
            values["grid"] = {name: list(points) for name, points in self.grid.items()}
        if self.enqueue:
            values["enqueue"] = [dict(given) for given in self.enqueue]
        if self.further_objectives:
            values["further_objectives"] = [[o.name, o.direction] for o in self.further_objectives]
        if "retries" in values:
            values["retries"] = self.retries.to_json()
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StudySettings:
        """The inverse of `to_json`."""
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        given = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}
        given |= {name: values[name] for name in required}
        given["enqueue"] = tuple(values.get("enqueue", ()))
        given["further_objectives"] = tuple(
            Objective(name, direction) for name, direction in values.get("further_objectives", ())
        )
        given["retries"] = checked_retries(values.get("retries"))
        return cls(**given)


class StudyDefinition:
    """A comparison of hyperparameters: what to build, what to train it on, how far, and how often.

    Args:
        name: Names the study in the database and its directory.
        model: ``trial -> keras.Model``, built afresh and compiled, for every trial.
        data: ``trial -> Data``.
        callbacks: ``trial -> list[keras.callbacks.Callback]``, or None for no callbacks.
        objective: The metric to compare trials by: a key of the epoch logs, such as
            ``"val_accuracy"``, or ``"val_f1_score[1]"`` of a metric that is a vector. A trial's
            value is the objective at its last epoch. A list of several metrics makes a study
            of several objectives: no trial of it is the best one, and its results are those that no
            other trial beats in all (`StudyResults.pareto`).
        direction: ``"maximize"`` or ``"minimize"``; a list as long as ``objective``, where that is
            a list.
        epochs: Epochs a trial trains for.
        trials: The exact total, over all runs and workers.
        sampler: One of `SAMPLERS`, or ``seed -> optuna sampler``, called for every trial with a
            seed of its own. ``"cmaes"`` needs the package cmaes, ``"gp"`` PyTorch.
        grid: With ``sampler="grid"``: each parameter's points.
        enqueue: Values for the first trials, a mapping each: trial i takes those of ``enqueue[i]``,
            and draws the parameters that it does not name.
        pruner: An Optuna pruner. After every epoch but the last it is asked whether the trial
            should end there, and sees the objective of this trial's epochs and of the trials that
            the sampler sees. It must keep nothing between two questions.
        concurrency: At most so many trials at once wherever sampler or pruner look at results.
            However many workers there are, trial n sees what the trials up to
            n - (2 * concurrency - 1) gave, and starts once these are finished.
        seed: From it, and a trial's number, comes all that is random in the trial.
        checkpoint_every: ``"epoch"``, ``Every(steps=…)``, ``Every(seconds=…)`` or ``"auto"``.
        keep: Which checkpoints stay on disk; the last two by default.
        deterministic: Whether kernels must be deterministic. False is faster, and gives up the
            promise that results repeat exactly.
        threads: TensorFlow threads of one trial. None: the machine's cores divided by
            ``concurrency``, decided when the study is created and kept with it.
        time_limit: Seconds that a trial may take; then it is killed with all that it started, and
            has failed. What counts is the training that its checkpoint holds and the present
            attempt from its process's start on; work that was lost and done again counts once.
            None for no limit.
        study_time_limit: Seconds that one run, resume or worker may take; then it stops as after
            SIGTERM, and everything can be resumed, with the whole time again. None for no limit.
        retries: How often a trial goes on after each kind of fault: `Retries`, or a mapping such
            as ``{"crash": 3, "memory": 3, "error": 0}``, which are the defaults.
        audit: What of the study is replayed between two checkpoints, in fresh processes, and
            compared: ``"auto"`` for the first trial's first two intervals, before other trials go
            on past them, and then one drawn in every eighth trial or so, in at most 3% of the
            study's time; ``"all"`` for every interval of every trial; ``"off"`` for none. It
            changes no result, and may differ from run to run.
        failing_alike: A run ends with an error where the study's first trials, so many of them,
            have all failed with the same error; 3 by default, None or 0 to go on all the same. It
            may differ from run to run.

    Raises:
        DefinitionError: An argument has the wrong type or an impossible value.
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
        objective: str | Sequence[str] = "val_loss",
        direction: Direction | Sequence[Direction] = "minimize",
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
    ) -> None:
        self.name = check_name(name)
        if "~" in name:
            msg = (
                f"{name!r} is the name of a study that was set aside; leave out what follows the ~"
            )
            raise DefinitionError(msg)
        self.model = _callable(model, "model", "trial -> a fresh, compiled keras.Model")
        self.data = _callable(data, "data", "trial -> Data")
        self.callbacks = (
            None
            if callbacks is None
            else _callable(callbacks, "callbacks", "trial -> list of keras callbacks")
        )
        self.objectives = checked_objectives(objective, direction)
        self.objective = self.objectives[0].name
        self.direction: Direction = self.objectives[0].direction
        self.epochs = _whole(epochs, "epochs", least=1)
        self.trials = _whole(trials, "trials", least=1)
        self.sampler = checked_sampler(sampler)
        self.grid = checked_grid(grid, sampler)
        self.enqueue = checked_enqueue(enqueue, trials=trials, sampler=sampler)
        self.pruner = pruner
        self._described_pruner = describe_pruner(pruner, self.objectives)
        self.concurrency = _whole(concurrency, "concurrency", least=1)
        self.seed = _whole(seed, "seed", least=0)
        self.checkpoint_every: CheckpointEvery = parse_every(checkpoint_every)
        self.keep = Keep() if keep is None else keep
        if not isinstance(self.keep, Keep):
            msg = f"keep={keep!r}; give a sweeper.Keep, such as Keep(last=3)"
            raise DefinitionError(msg)
        self.deterministic = bool(deterministic)
        self.threads = None if threads is None else _whole(threads, "threads", least=1)
        self.time_limit = checked_seconds(time_limit, "time_limit")
        self.study_time_limit = checked_seconds(study_time_limit, "study_time_limit")
        self.retries = checked_retries(retries)
        self.audit = checked_audit(audit)
        self.failing_alike = _whole(failing_alike or 0, "failing_alike", least=0) or None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, trials={self.trials})"

    def settings(self) -> StudySettings:
        """The plain values, with ``threads`` resolved for this machine."""
        sampler = self.sampler
        if not isinstance(sampler, str):
            sampler = f"custom:{getattr(sampler, '__qualname__', type(sampler).__qualname__)}"
        return StudySettings(
            name=self.name,
            objective=self.objective,
            direction=self.direction,
            epochs=self.epochs,
            trials=self.trials,
            sampler=sampler,
            grid=self.grid,
            pruner=self._described_pruner,
            concurrency=self.concurrency,
            seed=self.seed,
            checkpoint_every=describe_every(self.checkpoint_every),
            keep=self.keep.describe(),
            deterministic=self.deterministic,
            threads=self.threads or max(1, _usable_cores() // self.concurrency),
            enqueue=self.enqueue,
            further_objectives=self.objectives[1:],
            time_limit=self.time_limit,
            study_time_limit=self.study_time_limit,
            retries=self.retries,
            audit=self.audit,
            failing_alike=self.failing_alike,
        )

    def factories(self) -> dict[str, object]:
        """What of the definition is code, by parameter: factories, and a sampler or pruner of its own."""
        given = {
            "model": self.model,
            "data": self.data,
            "callbacks": self.callbacks,
            "sampler": self.sampler,
            "pruner": self.pruner,
        }
        return {n: v for n, v in given.items() if v is not None and not isinstance(v, str)}

    def code(self) -> CodeFingerprint:
        """The fingerprint of the code that the factories reach, as it now stands in its files."""
        from sweeper.inspection.fingerprint import read_code

        return read_code(self.factories())


def definition_fingerprint(settings: Mapping[str, Any], code: CodeFingerprint | None) -> str:
    """What a trial's result depends on besides its parameters and its seed, as 32 hex digits.

    Trials with the same one, on one machine and with the same libraries, can be compared, and gone
    on with from each other's checkpoints. `POLICY`, the search and what is kept are no part of it.

    Args:
        settings: `StudySettings.to_json`, or what the database keeps of it.
        code: Of the factories; None for a study that was stored before there was such a thing.
    """
    values = {n: v for n, v in settings.items() if n not in (*POLICY, *_OF_THE_SEARCH)}
    return digest_of(json.dumps(values, sort_keys=True), "" if code is None else code.digest)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _callable(value: Any, name: str, form: str) -> Any:
    of_keras = any(kind.__module__.startswith("keras.") for kind in type(value).__mro__)
    if callable(value) and not of_keras:
        return value
    hint = ""
    if of_keras:
        hint = (
            "; Keras objects are changed in place by training, so two trials would share this one: "
            f"write a function that builds it, {name}=lambda trial: …"
        )
    seen = "is no factory" if of_keras else "cannot be called"
    msg = f"{name}={value!r} {seen}; give a function, {form}{hint}"
    raise DefinitionError(msg)


def _whole(value: Any, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        msg = f"{name}={value!r}; it must be a whole number, at least {least}"
        raise DefinitionError(msg)
    return value
