"""What a study is: its factories and its settings, checked when it is written down.

`StudyDefinition` holds the user's functions beside the plain values that the database keeps. It
runs nothing: `sweeper.study.Study` adds that. A trial process needs only this class.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sweeper.checkpoints.policy import CheckpointEvery, Every, Keep, describe_every, parse_every
from sweeper.errors import DefinitionError
from sweeper.paths import check_name
from sweeper.space import CategoricalChoice

if TYPE_CHECKING:
    import keras

    from sweeper.training.data import Data
    from sweeper.trial import Trial

__all__ = ["SAMPLERS", "Direction", "StudyDefinition", "StudySettings"]

Direction = Literal["minimize", "maximize"]

SAMPLERS = ("tpe", "random", "grid", "qmc", "cmaes", "gp")
"""The samplers that can be asked for by name."""


@dataclass(frozen=True, slots=True)
class StudySettings:
    """The plain values of a definition, as the database keeps them and a resume compares them.

    Attributes:
        threads: TensorFlow threads of one trial; resolved, so that another machine gives the same.
        checkpoint_every: As `describe_every` writes it.
        keep: As `Keep.describe` writes it.
        sampler: A name of `SAMPLERS`, or ``"custom:<qualified name>"`` for a callable.
    """

    name: str
    objective: str
    direction: Direction
    epochs: int
    trials: int
    sampler: str
    grid: Mapping[str, Sequence[CategoricalChoice]] | None
    pruner: str | None
    concurrency: int
    seed: int
    checkpoint_every: Any
    keep: Any
    deterministic: bool
    threads: int

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, by field name."""
        values = {name: getattr(self, name) for name in self.__slots__}
        if self.grid is not None:
            values["grid"] = {name: list(points) for name, points in self.grid.items()}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StudySettings:
        """The inverse of `to_json`."""
        return cls(**{name: values[name] for name in cls.__slots__})


class StudyDefinition:
    """A comparison of hyperparameters: what to build, what to train it on, how far, and how often.

    Args:
        name: Names the study in the database and its directory.
        model: ``trial -> keras.Model``, built afresh and compiled, for every trial.
        data: ``trial -> Data``.
        callbacks: ``trial -> list[keras.callbacks.Callback]``, or None for no callbacks.
        objective: The metric to compare trials by: a key of the epoch logs, such as
            ``"val_accuracy"``. A trial's value is the objective at its last epoch.
        direction: ``"maximize"`` or ``"minimize"``.
        epochs: Epochs a trial trains for.
        trials: The exact total, over all runs and workers.
        sampler: One of `SAMPLERS`, or ``seed -> optuna sampler``.
        grid: With ``sampler="grid"``: each parameter's points.
        pruner: An Optuna pruner; not supported yet.
        concurrency: At most so many trials at once wherever the sampler looks at results: trial n
            is drawn from what trials up to n - concurrency gave, however many workers there are.
        seed: From it, and a trial's number, comes all that is random in the trial.
        checkpoint_every: ``"epoch"``, ``Every(steps=…)``, ``Every(seconds=…)`` or ``"auto"``.
        keep: Which checkpoints stay on disk; the last two by default.
        deterministic: Whether kernels must be deterministic. False is faster, and gives up the
            promise that results repeat exactly.
        threads: TensorFlow threads of one trial. None: the machine's cores divided by
            ``concurrency``, decided when the study is created and kept with it.

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
        objective: str = "val_loss",
        direction: Direction = "minimize",
        sampler: str | Callable[[int], Any] = "tpe",
        grid: Mapping[str, Sequence[CategoricalChoice]] | None = None,
        pruner: object | None = None,
        concurrency: int = 4,
        seed: int = 0,
        checkpoint_every: str | Every = "epoch",
        keep: Keep | None = None,
        deterministic: bool = True,
        threads: int | None = None,
    ) -> None:
        self.name = check_name(name)
        self.model = _callable(model, "model", "trial -> a fresh, compiled keras.Model")
        self.data = _callable(data, "data", "trial -> Data")
        self.callbacks = (
            None
            if callbacks is None
            else _callable(callbacks, "callbacks", "trial -> list of keras callbacks")
        )
        if not isinstance(objective, str) or not objective:
            msg = f"objective={objective!r}; give the name of a metric, such as 'val_accuracy'"
            raise DefinitionError(msg)
        self.objective = objective
        if direction not in ("minimize", "maximize"):
            msg = f"direction={direction!r}; it is 'minimize' or 'maximize'"
            raise DefinitionError(msg)
        self.direction: Direction = direction
        self.epochs = _whole(epochs, "epochs", least=1)
        self.trials = _whole(trials, "trials", least=1)
        self.sampler = _sampler(sampler)
        self.grid = _grid(grid, sampler)
        if pruner is not None:
            msg = (
                f"pruner={pruner!r}: pruning is not supported yet, and a study that asks for it "
                "would not be the same study without it; leave pruner out"
            )
            raise DefinitionError(msg)
        self.concurrency = _whole(concurrency, "concurrency", least=1)
        self.seed = _whole(seed, "seed", least=0)
        self.checkpoint_every: CheckpointEvery = parse_every(checkpoint_every)
        self.keep = Keep() if keep is None else keep
        if not isinstance(self.keep, Keep):
            msg = f"keep={keep!r}; give a sweeper.Keep, such as Keep(last=3)"
            raise DefinitionError(msg)
        self.deterministic = bool(deterministic)
        self.threads = None if threads is None else _whole(threads, "threads", least=1)

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
            pruner=None,
            concurrency=self.concurrency,
            seed=self.seed,
            checkpoint_every=describe_every(self.checkpoint_every),
            keep=self.keep.describe(),
            deterministic=self.deterministic,
            threads=self.threads or max(1, _usable_cores() // self.concurrency),
        )


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


def _sampler(sampler: Any) -> str | Callable[[int], Any]:
    if isinstance(sampler, str):
        if sampler in SAMPLERS:
            return sampler
        msg = f"sampler={sampler!r}; the samplers are {', '.join(map(repr, SAMPLERS))}"
        raise DefinitionError(msg)
    if callable(sampler):
        return sampler  # type: ignore[no-any-return]
    msg = (
        f"sampler={sampler!r}; give one of {', '.join(map(repr, SAMPLERS))}, or a function "
        "seed -> optuna sampler (one sampler object would carry its state from trial to trial)"
    )
    raise DefinitionError(msg)


def _grid(grid: Any, sampler: Any) -> Mapping[str, tuple[CategoricalChoice, ...]] | None:
    if (grid is not None) != (sampler == "grid"):
        msg = (
            "sampler='grid' needs grid={'parameter': [points, …]}, and got none"
            if grid is None
            else f"grid= is given, but sampler={sampler!r}; say sampler='grid'"
        )
        raise DefinitionError(msg)
    if grid is None:
        return None
    if not isinstance(grid, Mapping) or not grid:
        msg = f"grid={grid!r}; give a mapping of each parameter's name to its points"
        raise DefinitionError(msg)
    checked: dict[str, tuple[CategoricalChoice, ...]] = {}
    for name, points in grid.items():
        if isinstance(points, str) or not isinstance(points, Sequence) or not points:
            msg = f"grid[{name!r}]={points!r}; give a list of at least one point"
            raise DefinitionError(msg)
        for point in points:
            if point is not None and not isinstance(point, bool | int | float | str):
                msg = f"grid[{name!r}] holds {point!r}; points are None, bool, int, float or str"
                raise DefinitionError(msg)
            if isinstance(point, float) and not math.isfinite(point):
                msg = f"grid[{name!r}] holds {point!r}; points must be finite"
                raise DefinitionError(msg)
        if len({(type(p), p) for p in points}) != len(points):
            msg = f"grid[{name!r}]={list(points)} names a point twice; a trial would be run twice"
            raise DefinitionError(msg)
        checked[str(name)] = tuple(points)
    return checked
