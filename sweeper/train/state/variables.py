"""Components of variables: the model's, the optimizer's, the metrics', and those found elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.errors import RestoreError
from sweeper.train.codec import Json, Tensors, assign_replicas, held_tensors, hold_replicas
from sweeper.train.state.reach import Found


class Variables:
    """A list of variables by position: names that Keras makes up differ from process to process.

    Args:
        name: ``model``, ``optimizer`` or ``metrics``.
        variables: Gives the list; called at each capture, since a model can still grow. With a
            `Found`, its path stands in errors.

    Attributes:
        repeated: Of the last capture, as `Snapshot.repeated` has it.
    """

    def __init__(self, name: str, variables: Callable[[], Sequence[Any]]) -> None:
        self.name = name
        self._variables = variables
        self.repeated: dict[str, tuple[str, ...]] = {}

    def _labelled(self) -> list[Found]:
        return [
            each if isinstance(each, Found) else Found(_path(each), each)
            for each in self._variables()
        ]

    def capture(self, tensors: Tensors) -> Json:
        paths = []
        self.repeated = {}
        for index, each in enumerate(self._labelled()):
            key = self._key(index)
            if others := hold_replicas(each.value, key, tensors):
                self.repeated[key] = others
            paths.append(each.path)
        return paths

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        variables = self._labelled()
        found = []
        for index, path in enumerate(saved[len(variables) :], start=len(variables)):
            found.append(f"{self.name} variable {index} ({path}) is in the checkpoint only")
        for index, each in enumerate(variables):
            shown = f"{self.name} variable {index} ({each.path})"
            if index >= len(saved):
                found.append(f"{shown} is not in it")
                continue
            array = tensors.get(self._key(index))
            if array is None:
                found.append(f"{shown}: its tensor {self._key(index)!r} is missing")
                continue
            forms = {(a.dtype, a.shape) for a in held_tensors(self._key(index), tensors)}
            was = " and ".join(f"{np.dtype(d).name}{list(shape)}" for d, shape in forms)
            dtype = keras.backend.standardize_dtype(each.value.dtype)
            now = f"{dtype}{list(each.value.shape)}"
            if was != now:
                found.append(f"{shown} is {now}, and {was} in it")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del saved
        for index, each in enumerate(self._labelled()):
            assign_replicas(each.value, self._key(index), tensors)

    def restore_by_path(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Assign those that are in the checkpoint under the same path, shape and type."""
        index_of = {path: index for index, path in enumerate(saved)}
        for each in self._labelled():
            key = self._key(index_of.get(each.path, -1))
            array = tensors.get(key)
            dtype = keras.backend.standardize_dtype(each.value.dtype)
            if array is None or np.dtype(array.dtype).name != dtype:
                continue
            if tuple(array.shape) == tuple(each.value.shape):
                assign_replicas(each.value, key, tensors)

    def describe(self) -> str:
        return f"{len(self._variables())} variables"

    def _key(self, index: int) -> str:
        return f"{self.name}/{index:05d}"


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def load_variables(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Assign the checkpoint's model variables, all of them or none.

    Args:
        model: Built; its variables are in the order in which training had them.
        loaded: A checkpoint of the same model.

    Raises:
        RestoreError: A variable is missing, is one too many, or has another shape or type; each is
            named, and nothing was assigned.
    """
    variables = Variables("model", lambda: model.variables)
    saved = loaded.state[variables.name]
    found = variables.mismatches(saved, loaded.tensors)
    if found:
        shown = "\n  ".join(found)
        msg = (
            f"checkpoint {loaded.path} does not fit the model of the factory (nothing was "
            f"assigned):\n  {shown}\nThe study's code has changed since the checkpoint was "
            "written; undo the change, or load it with the code that wrote it"
        )
        raise RestoreError(msg)
    variables.restore(saved, loaded.tensors)
