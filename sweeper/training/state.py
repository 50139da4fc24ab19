"""Everything that training changes, as a list of components that are captured and restored.

What a component leaves out, a resumed trial gets wrong without a word, so a restore is complete or
an error: every missing, extra or misshapen entry is named before anything is assigned. Capturing
reads and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import keras
import numpy as np

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.errors import RestoreError
from sweeper.results import EpochRecord
from sweeper.training.attributes import ModelAttributes, Tracked
from sweeper.training.callbacks import CallbackStates
from sweeper.training.data_position import DataPosition
from sweeper.training.encoding import Json, Tensors, UnplaceableError, decode, encode, hold
from sweeper.training.generators import (
    GlobalSeedGenerator,
    NumpyRandom,
    PythonRandom,
    TensorFlowRandom,
)
from sweeper.training.reach import Found, Reach
from sweeper.training.steps import Runner

__all__ = [
    "Component",
    "HistoryRecord",
    "Position",
    "TrainingState",
    "Variables",
    "default_components",
    "epochs_in",
]


_DIGESTED = ("model/", "optimizer/", "optimizers/")


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands.

    Attributes:
        step: Optimizer steps finished, over the whole trial.
        epoch: Epochs finished.
        step_in_epoch: Steps finished of the epoch that has begun; 0 between epochs.
        stopped: Whether a callback has set ``model.stop_training``.
        logs: What the last step reported in the epoch that has begun; between epochs, what the last
            epoch did.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    stopped: bool = False
    logs: Mapping[str, float] | None = None

    def after(self, steps: int) -> Position:
        return replace(self, step=self.step + steps, step_in_epoch=self.step_in_epoch + steps)


class Component(Protocol):
    """One kind of state. Tensors go under names that start with the component's own."""

    @property
    def name(self) -> str: ...

    def capture(self, tensors: Tensors) -> Json:
        """Put arrays into ``tensors`` and return the rest as JSON; change nothing."""
        ...

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        """What of ``saved`` does not fit, a sentence each; nothing is changed yet."""
        ...

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Bring back what was captured."""
        ...

    def describe(self) -> str:
        """What is captured, for a person."""
        ...


class Variables:
    """A list of variables by position: names that Keras makes up differ from process to process.

    Args:
        name: ``model``, ``optimizer`` or ``metrics``.
        variables: Gives the list; called at each capture, since a model can still grow. With a
            `Found`, its path is told in errors.
    """

    def __init__(self, name: str, variables: Callable[[], Sequence[Any]]) -> None:
        self.name = name
        self._variables = variables

    def _labelled(self) -> list[Found]:
        return [
            each if isinstance(each, Found) else Found(_path(each), each)
            for each in self._variables()
        ]

    def capture(self, tensors: Tensors) -> Json:
        paths = []
        for index, each in enumerate(self._labelled()):
            tensors[self._key(index)] = hold(each.value)
            paths.append(each.path)
        return paths

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        variables = self._labelled()
        found = []
        for index, path in enumerate(saved[len(variables) :], start=len(variables)):
            found.append(f"{self.name} variable {index} ({path}) is in the checkpoint only")
        for index, each in enumerate(variables):
            told = f"{self.name} variable {index} ({each.path})"
            if index >= len(saved):
                found.append(f"{told} is not in it")
                continue
            array = tensors.get(self._key(index))
            if array is None:
                found.append(f"{told}: its tensor {self._key(index)!r} is missing")
                continue
            was = f"{np.dtype(array.dtype).name}{list(array.shape)}"
            dtype = keras.backend.standardize_dtype(each.value.dtype)
            now = f"{dtype}{list(each.value.shape)}"
            if was != now:
                found.append(f"{told} is {now}, and {was} in it")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del saved
        for index, each in enumerate(self._labelled()):
            each.value.assign(tensors[self._key(index)])

    def describe(self) -> str:
        return f"{len(self._variables())} variables"

    def _key(self, index: int) -> str:
        return f"{self.name}/{index:05d}"


class HistoryRecord:
    """``model.history``, and each epoch's own logs, with what callbacks added to them.

    Keras's history keeps one list a metric, and a metric that only some epochs report no longer
    tells which; so the epochs are kept beside it.
    """

    name = "history"

    def __init__(self, history: keras.callbacks.History) -> None:
        self._history = history
        self.epochs: list[EpochRecord] = []

    def capture(self, tensors: Tensors) -> Json:
        return {
            "epoch": list(self._history.epoch),
            "logs": encode(self._history.history, f"{self.name}/logs", tensors),
            "epochs": [[record.epoch, dict(record.metrics)] for record in self.epochs],
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        try:
            decode(saved["logs"], tensors)
        except UnplaceableError as error:
            return [f"history: {error}"]
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._history.epoch = list(saved["epoch"])
        self._history.history = decode(saved["logs"], tensors)
        self.epochs = [EpochRecord(epoch, metrics) for epoch, metrics in saved["epochs"]]

    def describe(self) -> str:
        return f"{len(self._history.epoch)} epochs"


def epochs_in(loaded: LoadedCheckpoint) -> tuple[EpochRecord, ...]:
    """The epochs that a checkpoint knows to be over."""
    saved = loaded.state[HistoryRecord.name]["epochs"]
    return tuple(EpochRecord(epoch, metrics) for epoch, metrics in saved)


def default_components(
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    history: HistoryRecord,
    train: Runner | None = None,
    validation: Runner | None = None,
    *,
    tracked: Mapping[str, Any] | None = None,
) -> list[Component]:
    """Every component of a training; the digest is of the first three.

    Args:
        model: A compiled model whose variables exist.
        callbacks: The user's callbacks, in their order.
        history: Of this training.
        train: Runs the steps of training, and knows where its data stand; None without data.
        validation: The same for validation, or None.
        tracked: What the user registered by name.
    """
    reach = Reach(model)
    return [
        Variables("model", lambda: model.variables),
        Variables("optimizer", reach.own_optimizer),
        Variables("optimizers", reach.other_optimizers),
        Variables("metrics", lambda: model.metrics_variables),
        Variables("reachable", reach.loose),
        ModelAttributes(reach),
        Tracked(tracked or {}, reach),
        GlobalSeedGenerator(),
        PythonRandom(),
        NumpyRandom(),
        TensorFlowRandom(),
        history,
        CallbackStates(callbacks, reach.covered),
        *([] if train is None else [DataPosition(train, validation)]),
    ]


class TrainingState:
    """The components of one training, captured and restored together."""

    def __init__(self, components: Sequence[Component]) -> None:
        self.components = tuple(components)

    def capture(self, position: Position, metrics: Mapping[str, float]) -> Snapshot:
        """Everything as it is now. The variables' values are held, not copied.

        Args:
            position: Where training stands.
            metrics: The latest epoch's logs, for retention rules.

        Raises:
            UncapturableError: A callback has come to hold what no checkpoint can.
        """
        tensors: Tensors = {}
        state: dict[str, Json] = {"position": asdict(position)}
        for component in self.components:
            state[component.name] = component.capture(tensors)
        digested = tuple(n for n in tensors if n.startswith(_DIGESTED))
        return Snapshot(
            step=position.step,
            epoch=position.epoch,
            tensors=tensors,
            state=state,
            metrics=dict(metrics),
            digest_names=digested,
        )

    def before_train_begin(self, loaded: LoadedCheckpoint | None = None) -> None:
        """Prepare for the callbacks' ``on_train_begin``.

        Args:
            loaded: The checkpoint to go on from, or None when the training begins anew.

        Raises:
            RestoreError: The checkpoint does not fit; every mismatch is named.
        """
        if loaded is not None:
            self._check(loaded)
        for component in self.components:
            if isinstance(component, CallbackStates):
                saved = None if loaded is None else loaded.state[component.name]
                component.before_train_begin(saved)

    def after_train_end(self) -> None:
        """The training has come to its end, and its last snapshot is taken."""
        for component in self.components:
            if isinstance(component, CallbackStates):
                component.after_train_end()

    def restore(self, loaded: LoadedCheckpoint) -> Position:
        """Bring everything back, and return where training stood.

        Raises:
            RestoreError: The checkpoint does not fit; every mismatch is named.
        """
        for component in self.components:
            if isinstance(component, CallbackStates):
                component.after_train_begin()
        self._check(loaded)
        for component in self.components:
            component.restore(loaded.state[component.name], loaded.tensors)
        return Position(**loaded.state["position"])

    def _check(self, loaded: LoadedCheckpoint) -> None:
        found = []
        for component in self.components:
            if component.name not in loaded.state:
                found.append(f"the component {component.name!r} is not in it")
                continue
            found += component.mismatches(loaded.state[component.name], loaded.tensors)
        known = {component.name for component in self.components} | {"position"}
        found += [f"it has a component {n!r} more" for n in loaded.state if n not in known]
        found += [
            f"it has a tensor {n!r} of no component"
            for n in loaded.tensors
            if n.partition("/")[0] not in known
        ]
        if found:
            told = "\n  ".join(found)
            msg = (
                f"checkpoint {loaded.path} does not fit this trial's model (nothing was restored):"
                f"\n  {told}\nThe study's code makes another model than when it was written; undo "
                "the change, or give the changed study another name"
            )
            raise RestoreError(msg)


def _optimizer_variables(model: keras.Model) -> Sequence[Any]:
    optimizer = model.optimizer
    return [] if optimizer is None else optimizer.variables


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
