"""State of a training: a list of components that are captured and restored.

An incomplete restore would make a resumed trial differ without an error. So a restore is complete or
fails: it names every missing, superfluous or misshapen entry before anything is assigned. A capture
changes nothing.

A function of the epoch, or a dataset with Python functions, cannot continue in the middle of a pass. It
is called again, and the earlier batches are dropped. But the generators that it draws from, in a closure
or NumPy's own, have advanced since. So at each opening of such a pass the state of everything that its
functions reach, and of the process's generators, is recorded. A resume restores this state, reads up to
the training's position, and then restores the state of the checkpoint.

Functions that TensorFlow's threads call ahead of the training are further than the training at a
checkpoint, by an unknown number of batches. So a checkpoint inside a pass has only the state at the
opening for objects that only such functions reach. Reading again changes it as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot
from sweeper.records.results import EpochRecord
from sweeper.train.codec import Json, Tensors, UnplaceableError, decode, encode
from sweeper.train.component import Component
from sweeper.train.randomness.generators import process_generators
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.sources.runner import Reader, Runner
from sweeper.train.state.callbacks import CallbackStates
from sweeper.train.state.variables import FixedParts, Reach, Variables, refuse_misfits
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
    saved = loaded.state[HistoryRecord.name]["epochs"]
    return tuple(EpochRecord(epoch, metrics) for epoch, metrics in saved)


_SHOWN = {"train": "training", "validation": "validation"}
"""Names of the uses of data, for errors."""


class DataPosition(Component):
    """Component of the state of the data sources besides epoch and step."""

    name = "data"

    def __init__(self, train: Runner, validation: Runner | None) -> None:
        self._runners = {"train": train, "validation": validation}

    def capture(self, tensors: Tensors) -> Json:
        saved: dict[str, Json] = {}
        for use, runner in self._runners.items():
            if runner is None:
                saved[use] = None
                continue
            state = runner.reader.capture(f"{self.name}/{use}", tensors)
            saved[use] = {"kind": type(runner.source).__name__, "state": state}
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        misfits = []
        for use, runner in self._runners.items():
            saved_kind = None if saved[use] is None else saved[use]["kind"]
            kind = None if runner is None else type(runner.source).__name__
            if saved_kind != kind:
                misfits.append(
                    f"{_SHOWN[use]} data: the checkpoint has {saved_kind}, and this training has {kind}"
                )
        return misfits

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        for use, runner in self._runners.items():
            if runner is not None:
                runner.reader.restore(f"{self.name}/{use}", saved[use]["state"], tensors)


class Reopening(Component):
    """Component of the state at the start of each pass that a resume reads again.

    ``data`` has the readers of the data that are read again, by ``train`` and ``validation``.
    """

    name = "reopening"

    def __init__(
        self,
        data: Mapping[str, Reader],
        user_state: UserState,
        generators: Sequence[Component],
    ) -> None:
        self._data = dict(data)
        self._user_state = user_state
        self._generators = tuple(generators)
        self._opened: dict[str, tuple[Json, Tensors]] = {}
        for use, reader in self._data.items():
            reader.watch_openings(partial(self._note, use))

    def _note(self, use: str) -> None:
        tensors: Tensors = {}
        saved = {
            "user_state": self._user_state.capture_data(use, tensors),
            "generators": {
                generator.name: generator.capture(tensors) for generator in self._generators
            },
        }
        copies = {name: np.array(tensor) for name, tensor in tensors.items()}
        self._opened[use] = (saved, copies)

    def _open(self) -> dict[str, tuple[Json, Tensors]]:
        return {use: opened for use, opened in self._opened.items() if self._data[use].is_open}

    def capture(self, tensors: Tensors) -> Json:
        passes = {}
        for use, (saved, arrays) in self._open().items():
            passes[use] = saved
            tensors.update({f"{self.name}/{use}/{name}": arrays[name] for name in arrays})
        return passes

    def in_flight(self) -> frozenset[str]:
        """Return the uses of data with an open pass, whose functions read ahead of the training."""
        return frozenset(self._open())

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        return [
            f"{_SHOWN[use]} data: they were to be read again after a resume, and are not now"
            for use in saved
            if use not in self._data
        ]

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._opened = {}
        for use, opened in saved.items():
            prefix = f"{self.name}/{use}/"
            arrays = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            self._user_state.restore_data(use, opened["user_state"], arrays)
            for generator in self._generators:
                if generator.name in opened["generators"]:
                    generator.restore(opened["generators"][generator.name], arrays)
            self._data[use].reopen()
            self._opened[use] = (opened, arrays)


def default_components(
    roots: Roots,
    history: HistoryRecord,
    train: Runner,
    validation: Runner | None,
    *,
    notify: Callable[[str], None],
    hidden: HiddenState,
) -> list[Component]:
    """Return all components of a training, in the order in which they are restored.

    Data come first, because reading them again runs the user's code, whose effects later components
    overwrite. The state of the libraries, ``hidden``, comes last, after all code of the user. The
    variables of the model exist already.
    """
    model = roots.model
    reach = Reach(model, roots.step)
    user_state = UserState(roots, lambda: reach.now.covered, notify)
    generators = process_generators(hidden.traced_functions)
    hidden.traced_functions.on_trace(lambda trace: user_state.traced(trace.function))
    read_again = {}
    for use, runner in (("train", train), ("validation", validation)):
        if runner is not None and runner.source.is_read_again:
            read_again[use] = runner.reader
    reopening = Reopening(read_again, user_state, (*generators, *hidden.components))
    user_state.in_flight = reopening.in_flight
    return [
        FixedParts(model, reach),
        DataPosition(train, validation),
        reopening,
        Variables("model", lambda: model.variables),
        Variables("optimizer", lambda: reach.now.own_optimizer),
        Variables("optimizers", lambda: reach.now.other_optimizers),
        Variables("metrics", lambda: model.metrics_variables),
        Variables("reachable", lambda: reach.now.loose),
        user_state,
        *generators,
        history,
        CallbackStates(roots.callbacks, roots.tracked, roots.directory),
        *hidden.components,
    ]


ANOTHER_STUDY = "give the changed study another name"


class TrainingState:
    """The components of one training, in the order in which they are restored.

    An ``eager`` step creates variables when it first runs, instead of when it is traced. ``cure`` is how
    changed code trains from the start.
    """

    def __init__(
        self, components: Sequence[Component], *, eager: bool = False, cure: str = ANOTHER_STUDY
    ) -> None:
        self.components = tuple(components)
        self._cure = cure
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
        repeated: dict[str, tuple[str, ...]] = {}
        for component in self.components:
            if isinstance(component, Variables):
                repeated.update(component.repeated)
        digested = tuple(n for n in tensors if n.startswith(_DIGESTED))
        return Snapshot(
            step=position.step,
            epoch=position.epoch,
            tensors=tensors,
            state=state,
            metrics=dict(metrics),
            digest_names=digested,
            history=tuple(history),
            repeated=repeated,
        )

    def before_train_begin(self, loaded: LoadedCheckpoint | None, lost_from: int | None) -> None:
        """Prepare for the callbacks' ``on_train_begin``; ``loaded`` is the checkpoint to resume from.

        For ``lost_from``, see `Component.before_train_begin`.
        """
        if loaded is not None:
            self._check(loaded)
        for component in self.components:
            saved = None if loaded is None else loaded.state[component.name]
            component.before_train_begin(saved, lost_from)

    def after_train_end(self) -> None:
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

    def build_by(self, step: Callable[[], None]) -> None:
        """Run ``step``, which creates variables, and undo its other effects."""
        self.begin()
        step()
        for component in self.components:
            component.undo()
        self.first_step_done()

    def restore(self, loaded: LoadedCheckpoint) -> Position:
        self.begin()
        self._check(loaded)
        for component in self.components:
            component.restore(loaded.state[component.name], loaded.tensors)
        return Position.restored(loaded.state["position"], loaded.tensors)

    def _misfits(self, loaded: LoadedCheckpoint) -> list[str]:
        misfits = []
        for component in self.components:
            if component.name not in loaded.state:
                misfits.append(f"the component {component.name!r} is not in it")
                continue
            misfits += component.mismatches(loaded.state[component.name], loaded.tensors)
        expected = {component.name for component in self.components} | {"position"}
        misfits += [
            f"it has an unexpected component {n!r}" for n in loaded.state if n not in expected
        ]
        misfits += [
            f"it has a tensor {n!r} of no component"
            for n in loaded.tensors
            if n.partition("/")[0] not in expected
        ]
        return misfits

    def _check(self, loaded: LoadedCheckpoint) -> None:
        target = "this training (nothing was restored)"
        refuse_misfits(loaded, self._misfits(loaded), target, self._cure)
