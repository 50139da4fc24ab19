"""The call of a model's ``fit``: its arguments, and a training in the place of Keras's own.

An override of ``fit`` is called, and its call of Keras's ``fit`` trains here (`sweeper.train.keras_methods`). A resumed
training calls it again from its beginning.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import keras
import tensorflow as tf

from sweeper.errors import DataError, FactoryError, UsageError
from sweeper.support.shown import shown_value
from sweeper.train.data import Data, FitData, PartName
from sweeper.train.keras_methods import is_overridden, replacing_keras, shown_method
from sweeper.train.loop.plan import Stopped, TrainingPlan
from sweeper.train.sources.arrays import is_texts
from sweeper.train.sources.epochs import is_grain
from sweeper.train.sources.opening import kind_of
from sweeper.train.step import TrainingStep


@dataclass(frozen=True)
class FitArguments:
    """The arguments of ``keras.Model.fit``, with its defaults."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1

    @classmethod
    def of(cls, data: Data, **others: Any) -> FitArguments:
        """Return the arguments of a ``fit`` on ``data``, and ``others``."""
        x = data.train
        y = None
        weight = None
        if isinstance(x, tuple | list) and not is_texts(x) and 1 <= len(x) <= 3:
            x, y, weight = (*x, None, None)[:3]
        return cls(
            x=x,
            y=y,
            sample_weight=weight,
            validation_data=data.validation,
            **{name: getattr(data, name) for name in _SHARED if name != "batch_size"},
            # An override may have another default than ours, and take no batch size beside batches.
            batch_size=None if data.batch_size == Data.batch_size else data.batch_size,
            **others,
        )

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that are not the defaults, as a script gives them: ``x`` and ``y`` by position."""
        named = {
            argument.name: getattr(self, argument.name)
            for argument in fields(self)
            if not _is_default(getattr(self, argument.name), argument.default)
        }
        first = [named.pop(name) for name in ("x", "y") if name in named]
        return tuple(first), named

    def read(
        self, data: Any, model: keras.Model, step: TrainingStep | None
    ) -> tuple[FitArguments, Data]:
        """Return the arguments of `sweeper.fit` as those of ``fit``, without a `Data` or a pair as ``x``, and the data."""
        x = self.x
        if data is not None:
            if x is not None:
                raise UsageError("x and data are both given; give the training data once")
            x = data
        if isinstance(x, Data):
            _, named = replace(self, x=None).given()
            allowed = ("epochs", "verbose", "callbacks", "initial_epoch")
            extra = [
                name for name in (*named, *["y"] * (self.y is not None)) if name not in allowed
            ]
            if extra:
                raise UsageError(
                    f"{', '.join(extra)}: given beside a Data; give it to Data(…), or give x and y in place of the Data"
                )
            return FitArguments.of(x, **{name: getattr(self, name) for name in allowed}), x
        several = isinstance(x, tuple | list) and 2 <= len(x) <= 3 and not is_texts(x)
        alone = self.y is None and self.sample_weight is None
        if several and alone and (data is not None or _is_pair(x, model, step)):
            arguments = replace(self, **dict(zip(("x", "y", "sample_weight"), x, strict=False)))
        else:
            arguments = replace(self, x=x)
        return arguments, arguments.data()

    def data(self) -> Data:
        """Return the data, read as Keras reads them: a tuple ``x`` without ``y`` is several inputs."""
        x = self.x
        y = self.y
        weight = self.sample_weight
        if x is None:
            raise DataError(
                f"x is not given, the training data: {PartName('train', of_fit=True).kinds}"
            )
        if (y is not None or weight is not None) and _has_batches(x):
            extra = "y" if y is not None else "sample_weight"
            raise UsageError(
                f"{extra} is given, and x is a {kind_of(x)}, whose batches have targets and "
                f"weights themselves; leave {extra} out"
            )
        train = x
        if weight is not None:
            train = (x, y, weight)
        elif y is not None:
            train = (x, y)
        elif isinstance(x, tuple | list) and not is_texts(x):
            train = (x,)
        options = {name: getattr(self, name) for name in _SHARED}
        if self.batch_size is None:
            options["batch_size"] = Data.batch_size
        if self.validation_data is not None:
            # In ``fit``, too, validation data override the split.
            options["validation_split"] = 0.0
        return FitData(train=train, validation=self.validation_data, **options)

    def check(self) -> None:
        """Refuse numbers of epochs and callbacks that ``fit`` could not use.

        Raises:
            UsageError: There is one.
        """
        for name in ("epochs", "initial_epoch"):
            try:
                operator.index(getattr(self, name))
            except TypeError:
                shown = shown_value(getattr(self, name))
                raise UsageError(f"{name}={shown}: it must be a whole number") from None
        for callback in self.callback_list():
            if isinstance(callback, type) or not hasattr(callback, "set_model"):
                raise UsageError(
                    f"callbacks: {shown_value(callback)} is no callback; give an object of a "
                    "keras.callbacks.Callback, such as keras.callbacks.EarlyStopping(), or a list of them"
                )

    def callback_list(self) -> tuple[keras.callbacks.Callback, ...]:
        """Return the callbacks, without those that every training adds."""
        if isinstance(self.callbacks, keras.callbacks.CallbackList):
            added = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
            return tuple(c for c in self.callbacks.callbacks if type(c) not in added)
        return tuple(keras.tree.flatten(self.callbacks)) if self.callbacks else ()


_SHARED = (
    *("batch_size", "shuffle", "class_weight", "steps_per_epoch", "validation_steps"),
    *("validation_split", "validation_batch_size", "validation_freq"),
)
"""Names that `Data` and ``fit`` share."""


def _is_pair(x: Any, model: keras.Model, step: TrainingStep | None) -> bool:
    """Return whether a tuple ``x`` without ``y`` is ``(x, y)``, because the model cannot have these inputs.

    Raises:
        UsageError: The model may take either.
    """
    if any(isinstance(part, tuple | list | Mapping) for part in x):
        return True
    inputs = getattr(model, "inputs", None)
    if inputs is not None:
        return len(inputs) != len(x) or len(inputs) == 1
    if step is not None or model.loss is not None:
        return True
    raise UsageError(
        f"x is a tuple of {len(x)} arrays and y is not given, and model {model.name!r} has no inputs and no loss to tell "
        f"what they are; for inputs and targets give x and y, or data=(x, y), and for {len(x)} inputs without "
        "targets data=Data(train=((…, …),))"
    )


def _has_batches(x: Any) -> bool:
    kinds = (keras.utils.PyDataset, tf.data.Dataset)
    return callable(x) or isinstance(x, kinds) or hasattr(x, "__next__") or is_grain(x)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) in (bool, int, float, str) and value == default)


class Trained(Protocol):
    """Result of a training."""

    @property
    def history(self) -> keras.callbacks.History:
        """Return what ``fit`` returns."""


T = TypeVar("T", bound=Trained)


def train_by_fit(
    plan: TrainingPlan,
    train: Callable[[TrainingPlan], T],
    fit_arguments: FitArguments | None = None,
    others: Mapping[str, Any] | None = None,
) -> tuple[T, Any]:
    """Train by the model's ``fit``; return the training's result, and what ``fit`` returned.

    Args:
        plan: The training.
        train: Called once, with the plan, changed to what Keras's ``fit`` was called with.
        fit_arguments: Arguments for the model's ``fit``; those of the plan by default.
        others: Arguments that only the model's own ``fit`` has; see `check_others`.

    Raises:
        FactoryError: The model's ``fit`` trains without Keras's, or twice; or Keras's was replaced so
            that it cannot be reached.
    """
    if not is_overridden(plan.model, "fit"):
        result = train(plan)
        return result, result.history
    standing = _Standing(plan, train)
    if fit_arguments is None:
        fit_arguments = FitArguments.of(
            plan.data,
            epochs=plan.epochs,
            initial_epoch=plan.initial_epoch,
            callbacks=list(plan.callbacks) or None,
        )
    arguments, named = fit_arguments.given()
    with replacing_keras("fit", standing):
        standing.guard()
        try:
            returned = plan.model.fit(*arguments, **named, **(others or {}))
        finally:
            standing.unguard()
    return standing.end(), returned


def check_others(model: keras.Model, others: Collection[str], names: Collection[str]) -> None:
    """Refuse arguments of `sweeper.fit`, beside its own ``names``, that the model's own ``fit`` does not take.

    Raises:
        UsageError: There is one.
    """
    taken: Mapping[str, inspect.Parameter] = {}
    if is_overridden(model, "fit"):
        taken = inspect.signature(model.fit).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return
    for name in others:
        if name not in taken:
            raise _unknown("sweeper.fit(…)", name, {*names, *taken})


def _unknown(call: str, name: str, names: Collection[str]) -> UsageError:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(names))}"
    return UsageError(f"{call} got an unknown argument {name!r}; {hint}")


class _Standing(Generic[T]):
    """A training that stands in the place of Keras's ``fit`` while the model's own ``fit`` is called.

    Before and after it, the optimizers of the model refuse to take a step: such a step would not be resumed.
    """

    def __init__(self, plan: TrainingPlan, train: Callable[[TrainingPlan], T]) -> None:
        self._plan = plan
        self._train = train
        self._thread = threading.get_ident()
        self._running = False
        self._result: T | None = None
        self._stopped: Stopped | None = None

    def stands_for(self, model: keras.Model, named: Mapping[str, Any]) -> bool:
        """Return whether a call of ``fit`` of ``model`` is to train this."""
        del named
        here = threading.get_ident() == self._thread
        # A callback may call ``fit`` of its model within the training.
        return model is self._plan.model and here and not self._running

    def __call__(self, *arguments: Any, **named: Any) -> keras.callbacks.History:
        """Train, in the place of Keras's ``fit`` with these arguments."""
        if self._result is not None:
            raise FactoryError(
                f"{self._shown} calls keras.Model.fit a second time, and a directory of checkpoints has one "
                "training; train each phase by a separate call, with its own directory"
            )
        names = [argument.name for argument in fields(FitArguments)]
        for name in named:
            if name not in names:
                call = f"keras.Model.fit(…), called by {self._shown}"
                raise _unknown(call, name, names)
        fit_arguments = FitArguments(*arguments, **named)
        fit_arguments.check()
        plan = replace(
            self._plan,
            data=replace(fit_arguments.data(), test=self._plan.data.test),
            epochs=int(fit_arguments.epochs),
            initial_epoch=int(fit_arguments.initial_epoch),
            verbose=self._plan.verbose and fit_arguments.verbose,
            callbacks=fit_arguments.callback_list(),
        )
        self.unguard()
        self._running = True
        try:
            result = self._train(plan)
        except Stopped as stopped:
            self._stopped = stopped
            raise
        finally:
            self._running = False
        self._result = result
        self.guard()
        return result.history

    def end(self) -> T:
        """Return the result, after the model's ``fit`` has returned."""
        if self._stopped is not None:
            # The model's ``fit`` has caught it.
            raise self._stopped
        if self._result is None:
            raise self._own_training(
                "has returned, and has not called keras.Model.fit of this model"
            )
        return self._result

    def guard(self) -> None:
        """Make the model's optimizers refuse steps."""

        def refuse(*_: Any, **__: Any) -> None:
            when = "before" if self._result is None else "after"
            problem = f"takes a step of the optimizer {when} keras.Model.fit"
            raise self._own_training(problem)

        for optimizer in self._optimizers():
            # Not by `setattr`, because Keras tracks attributes that are set.
            vars(optimizer)["apply"] = refuse

    def unguard(self) -> None:
        for optimizer in self._optimizers():
            vars(optimizer).pop("apply", None)

    def _optimizers(self) -> Iterator[keras.optimizers.Optimizer]:
        model = self._plan.model
        for value in (model.optimizer, *vars(model).values()):
            if isinstance(value, keras.optimizers.Optimizer):
                yield value

    @property
    def _shown(self) -> str:
        return shown_method(self._plan.model, "fit")

    def _own_training(self, problem: str) -> FactoryError:
        return FactoryError(
            f"{self._shown} {problem}; sweeper resumes what keras.Model.fit trains: call super().fit(…), and move the "
            "computations of a step to train_step() or a sweeper.TrainingStep"
        )
