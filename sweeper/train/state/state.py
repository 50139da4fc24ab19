"""State of a training: a list of components that are captured and restored.

An incomplete restore would make a resumed trial differ without an error. So a restore is complete or
fails: it names every missing, superfluous or misshapen entry before anything is assigned. A capture
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras

from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot
from sweeper.errors import RestoreError
from sweeper.records.results import EpochRecord
from sweeper.train.codec import Json, Tensors, UnplaceableError, decode, encode
from sweeper.train.component import Component
from sweeper.train.randomness.generators import (
    GlobalSeedGenerator,
    NumpyRandom,
    PythonRandom,
    TensorFlowRandom,
)
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.sources.runner import Runner
from sweeper.train.state.callbacks import CallbackStates, Tracked
from sweeper.train.state.data_position import DataPosition, Reopening
from sweeper.train.state.fixed_parts import FixedParts, KerasSettings
from sweeper.train.state.variables import Reach, Variables
from sweeper.train.userstate import Roots, UserState

_DIGESTED = ("model/", "optimizer/", "optimizers/")


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a training: epoch and step.

    Attributes:
        step: Optimizer steps finished, over the whole trial.
        epoch: Epochs finished.
        step_in_epoch: Steps finished of the current epoch; 0 between epochs.
        stopped: Whether a callback has set ``model.stop_training``.
        logs: Logs of the last step of the current epoch; between epochs, logs of the last epoch.
            Floats, or arrays for metrics that are arrays.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    stopped: bool = False
    logs: Mapping[str, Any] | None = None

    def capture(self, tensors: Tensors) -> Json:
        """Return the position as JSON; arrays go into ``tensors``."""
        logs = None if self.logs is None else dict(self.logs)
        return {**asdict(replace(self, logs=None)), "logs": encode(logs, "position/logs", tensors)}

    @classmethod
    def restored(cls, saved: Json, tensors: Mapping[str, Any]) -> Position:
        """Return the captured position."""
        return cls(**{**saved, "logs": decode(saved["logs"], tensors)})

    def after(self, steps: int) -> Position:
        return replace(self, step=self.step + steps, step_in_epoch=self.step_in_epoch + steps)


class HistoryRecord(Component):
    """Component of ``model.history``, each epoch's logs with the callbacks' additions, and its weights' digest.

    The epochs are stored separately, because Keras's history does not show in which epochs a metric
    was reported.
    """

    name = "history"

    def __init__(self, history: keras.callbacks.History) -> None:
        self._history = history
        self.epochs: list[EpochRecord] = []
        self.weights: list[str] = []

    def capture(self, tensors: Tensors) -> Json:
        return {
            "epoch": list(self._history.epoch),
            "logs": encode(self._history.history, f"{self.name}/logs", tensors),
            "epochs": [[record.epoch, dict(record.metrics)] for record in self.epochs],
            "weights": list(self.weights),
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
        self.weights = list(saved["weights"])


def epochs_in(loaded: LoadedCheckpoint) -> tuple[EpochRecord, ...]:
    """Return the finished epochs in a checkpoint."""
    saved = loaded.state[HistoryRecord.name]["epochs"]
    return tuple(EpochRecord(epoch, metrics) for epoch, metrics in saved)


def default_components(
    roots: Roots,
    history: HistoryRecord,
    train: Runner | None = None,
    validation: Runner | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
    hidden: HiddenState | None = None,
) -> list[Component]:
    """Return all components of a training, in the order in which they are restored.

    Data come first, because reading them again runs the user's code, whose effects later components
    overwrite. The state of the libraries comes last, after all code of the user; it is left out
    without ``hidden``. The variables of the model exist already.
    """
    model = roots.model
    reach = Reach(model, roots.step)
    user_state = UserState(roots, lambda: reach.now.covered, notice)
    generators: list[Component] = [
        GlobalSeedGenerator(None if hidden is None else hidden.traced_functions),
        KerasSettings(),
        PythonRandom(),
        NumpyRandom(),
        TensorFlowRandom(),
    ]
    libraries: tuple[Component, ...] = () if hidden is None else hidden.components
    if hidden is not None:
        hidden.traced_functions.on_trace(lambda trace: user_state.traced(trace.function))
    data: list[Component] = []
    if train is not None:
        reopening = Reopening(
            {
                use: runner.reader
                for use, runner in (("train", train), ("validation", validation))
                if runner is not None and runner.source.is_read_again
            },
            user_state,
            (*generators, *libraries),
        )
        user_state.in_flight = reopening.in_flight
        data = [DataPosition(train, validation), reopening]
    return [
        FixedParts(model, reach),
        *data,
        Variables("model", lambda: model.variables),
        Variables("optimizer", lambda: reach.now.own_optimizer),
        Variables("optimizers", lambda: reach.now.other_optimizers),
        Variables("metrics", lambda: model.metrics_variables),
        Variables("reachable", lambda: reach.now.loose),
        user_state,
        Tracked(roots.tracked),
        *generators,
        history,
        CallbackStates(roots.callbacks),
        *libraries,
    ]


class TrainingState:
    """The components of one training, in the order in which they are restored.

    An ``eager`` step creates variables when it first runs, instead of when it is traced.
    """

    def __init__(self, components: Sequence[Component], *, eager: bool = False) -> None:
        self.components = tuple(components)
        self._makes_variables_late = eager

    def capture(
        self,
        position: Position,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, float]] = (),
    ) -> Snapshot:
        """Return a snapshot of all components, with references to the variables' values.

        Retention rules use ``metrics``, the logs of the last epoch.
        """
        tensors: Tensors = {}
        state: dict[str, Json] = {"position": position.capture(tensors)}
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
            history=tuple(history),
            repeated={
                name: others
                for component in self.components
                if isinstance(component, Variables)
                for name, others in component.repeated.items()
            },
        )

    def before_train_begin(self, loaded: LoadedCheckpoint | None = None) -> None:
        """Prepare for the callbacks' ``on_train_begin``; ``loaded`` is the checkpoint to resume from.

        Raises:
            RestoreError: The checkpoint does not fit; names every mismatch.
        """
        if loaded is not None:
            for component in self.components:
                if component.name in loaded.state:
                    component.build(loaded.state[component.name])
            self._check(loaded)
        for component in self.components:
            component.before_train_begin(None if loaded is None else loaded.state[component.name])

    def after_train_end(self) -> None:
        """Clean up after the last snapshot of a training that has ended."""
        for component in self.components:
            component.after_train_end()

    def begin(self) -> None:
        """Record the initial state, after the callbacks' ``on_train_begin``."""
        for component in self.components:
            component.begin()
            if not self._makes_variables_late:
                component.settle()

    def first_step_done(self) -> None:
        """Record that all variables exist, after the first step."""
        if self._makes_variables_late:
            self._makes_variables_late = False
            for component in self.components:
                component.settle()

    def prepared(self, prepare: Callable[[], None]) -> None:
        """Run ``prepare``, a step that creates variables, and undo its other effects."""
        self.begin()
        prepare()
        for component in self.components:
            component.undo()
        self.first_step_done()

    def restore(self, loaded: LoadedCheckpoint) -> Position:
        """Restore all components, and return the position.

        Raises:
            RestoreError: The checkpoint does not fit; names every mismatch.
        """
        self.begin()
        self._check(loaded)
        for component in self.components:
            component.restore(loaded.state[component.name], loaded.tensors)
        return Position.restored(loaded.state["position"], loaded.tensors)

    def _misfits(self, loaded: LoadedCheckpoint) -> list[str]:
        found = []
        for component in self.components:
            if component.name not in loaded.state:
                found.append(f"the component {component.name!r} is not in it")
                continue
            found += component.mismatches(loaded.state[component.name], loaded.tensors)
        known = {component.name for component in self.components} | {"position"}
        found += [f"it has an unexpected component {n!r}" for n in loaded.state if n not in known]
        found += [
            f"it has a tensor {n!r} of no component"
            for n in loaded.tensors
            if n.partition("/")[0] not in known
        ]
        return found

    def _check(self, loaded: LoadedCheckpoint) -> None:
        found = self._misfits(loaded)
        if found:
            shown = "\n  ".join(found)
            msg = (
                f"checkpoint {loaded.path} does not fit this trial's model (nothing was "
                f"restored):\n  {shown}\nThe study's code has changed since the checkpoint was "
                "written; undo the change, or give the changed study another name"
            )
            raise RestoreError(msg)
