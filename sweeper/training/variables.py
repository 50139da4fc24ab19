"""A component of variables: the model's, the optimizer's, the metrics', and those found elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sweeper.training.encoding import Json, Tensors, hold
from sweeper.training.reach import Found

__all__ = ["Variables"]


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


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
