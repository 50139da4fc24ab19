"""Everything that training changes, as a list of components that are captured and restored.

What a component leaves out, a resumed trial gets wrong without a word, so a restore is complete or
an error: every missing, extra or misshapen entry is named before anything is assigned. Capturing
reads and changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import keras
import numpy as np

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.errors import RestoreError, UncapturableError
from sweeper.results import EpochRecord
from sweeper.training.callbacks import CallbackStates
from sweeper.training.data_position import DataPosition
from sweeper.training.encoding import Json, Tensors, decode, encode, hold
from sweeper.training.steps import Runner

__all__ = [
    "Component",
    "GlobalSeedGenerator",
    "HistoryRecord",
    "NumpyRandom",
    "Position",
    "PythonRandom",
    "TensorFlowRandom",
    "TrainingState",
    "Variables",
    "default_components",
    "epochs_in",
]


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
        variables: Gives the list; called at each capture, since a model can still grow.
    """

    def __init__(self, name: str, variables: Callable[[], Sequence[Any]]) -> None:
        self.name = name
        self._variables = variables

    def capture(self, tensors: Tensors) -> Json:
        paths = []
        for index, variable in enumerate(self._variables()):
            tensors[self._key(index)] = hold(variable)
            paths.append(_path(variable))
        return paths

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        variables = self._variables()
        found = []
        for index, path in enumerate(saved[len(variables) :], start=len(variables)):
            found.append(f"{self.name} variable {index} ({path}) is in the checkpoint only")
        for index, variable in enumerate(variables):
            if index >= len(saved):
                found.append(f"{self.name} variable {index} ({_path(variable)}) is not in it")
                continue
            array = tensors[self._key(index)]
            was = f"{np.dtype(array.dtype).name}{list(array.shape)}"
            now = f"{keras.backend.standardize_dtype(variable.dtype)}{list(variable.shape)}"
            if was != now:
                found.append(
                    f"{self.name} variable {index} ({_path(variable)}) is {now}, and {was} in it"
                )
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del saved
        for index, variable in enumerate(self._variables()):
            variable.assign(tensors[self._key(index)])

    def describe(self) -> str:
        return f"{len(self._variables())} variables"

    def _key(self, index: int) -> str:
        return f"{self.name}/{index:05d}"


class GlobalSeedGenerator:
    """Keras's global seed generator, used by ``keras.random`` calls without a seed.

    It is looked up, not asked for: asking would create it, from Python's generator.
    """

    name = "global_seed_generator"

    def capture(self, tensors: Tensors) -> Json:
        generator = _global_seed_generator()
        if generator is None:
            return None
        tensors[f"{self.name}/state"] = hold(generator.state)
        return {"present": True}

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved, tensors
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

        if saved is None:
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
            return
        generator = _global_seed_generator()
        if generator is None:
            generator = keras.random.SeedGenerator(0)
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        generator.state.assign(tensors[f"{self.name}/state"])

    def describe(self) -> str:
        return "present" if _global_seed_generator() else "not used yet"


class PythonRandom:
    """The state of Python's ``random`` module."""

    name = "python_random"

    def capture(self, tensors: Tensors) -> Json:
        return _capture_mersenne(random.getstate(), f"{self.name}/words", tensors)

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved, tensors
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        random.setstate(_restore_mersenne(saved, f"{self.name}/words", tensors))

    def describe(self) -> str:
        return "Mersenne twister"


class NumpyRandom:
    """The state of NumPy's legacy global generator, ``numpy.random.*``."""

    name = "numpy_random"

    def capture(self, tensors: Tensors) -> Json:
        kind, words, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - what users use
        tensors[f"{self.name}/words"] = np.array(words)
        return {"kind": kind, "position": position, "has_gauss": has_gauss, "cached": cached}

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved, tensors
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        words = np.asarray(tensors[f"{self.name}/words"], dtype=np.uint32)
        np.random.set_state(  # noqa: NPY002 - what users use
            (saved["kind"], words, saved["position"], saved["has_gauss"], saved["cached"])
        )

    def describe(self) -> str:
        return "legacy global generator"


class TensorFlowRandom:
    """TensorFlow's global seed, and the generator that gives eager random ops their seeds.

    Only the Python side: a stateful random op inside a graph keeps its state in its kernel, which
    no API reaches; `sweeper.training.loop` refuses those.
    """

    name = "tensorflow_random"

    def capture(self, tensors: Tensors) -> Json:
        context = _eager_context()
        generator = getattr(context, "_rng", None)
        return {
            "seed": getattr(context, "_seed", None),
            "generator": None
            if generator is None
            else _capture_mersenne(generator.getstate(), f"{self.name}/words", tensors),
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved, tensors
        return []

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        import tensorflow as tf

        if saved["seed"] is None:
            return
        tf.random.set_seed(saved["seed"])
        if saved["generator"] is not None:
            state = _restore_mersenne(saved["generator"], f"{self.name}/words", tensors)
            _eager_context()._rng.setstate(state)

    def describe(self) -> str:
        return "global seed and eager op counter"


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
        del saved, tensors
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
    train: Runner,
    validation: Runner | None,
) -> list[Component]:
    """Every component of a training; the digest is of the first two."""
    return [
        Variables("model", lambda: model.variables),
        Variables("optimizer", lambda: _optimizer_variables(model)),
        Variables("metrics", lambda: model.metrics_variables),
        GlobalSeedGenerator(),
        PythonRandom(),
        NumpyRandom(),
        TensorFlowRandom(),
        history,
        CallbackStates(callbacks),
        DataPosition(train, validation),
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
        digested = tuple(n for n in tensors if n.startswith(("model/", "optimizer/")))
        return Snapshot(
            step=position.step,
            epoch=position.epoch,
            tensors=tensors,
            state=state,
            metrics=dict(metrics),
            digest_names=digested,
        )

    def before_train_begin(self, loaded: LoadedCheckpoint) -> None:
        """Prepare a resumed training for the callbacks' ``on_train_begin``.

        Raises:
            RestoreError: The checkpoint does not fit; every mismatch is named.
        """
        self._check(loaded)
        for component in self.components:
            if isinstance(component, CallbackStates):
                component.before_train_begin(loaded.state[component.name])

    def restore(self, loaded: LoadedCheckpoint) -> Position:
        """Bring everything back, and return where training stood.

        Raises:
            RestoreError: The checkpoint does not fit; every mismatch is named.
        """
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


def _global_seed_generator() -> Any:
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def _eager_context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _capture_mersenne(state: Any, key: str, tensors: Tensors) -> Json:
    version, words, gauss = state
    tensors[key] = np.array(words, dtype=np.uint32)
    return {"version": version, "gauss": gauss}


def _restore_mersenne(saved: Json, key: str, tensors: Mapping[str, Any]) -> Any:
    if key not in tensors:
        msg = f"the checkpoint has no tensor {key!r}"
        raise UncapturableError(msg)
    return (saved["version"], tuple(int(word) for word in tensors[key]), saved["gauss"])
