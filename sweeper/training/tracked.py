"""Objects that the user registered with ``Trial.track``, captured and restored by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.encoding import (
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
)
from sweeper.training.encoding.kinds import class_name, framework_variables
from sweeper.training.reach import Reach

__all__ = ["Tracked", "check_trackable"]


class Tracked:
    """Objects that the user registered with ``Trial.track``, by name."""

    name = "tracked"

    def __init__(self, objects: Mapping[str, Any], reach: Reach) -> None:
        self._objects = dict(objects)
        self._reach = reach
        for name, value in self._objects.items():
            check_trackable(name, value)

    def capture(self, tensors: Tensors) -> Json:
        encoder = Encoder(tensors, covered=self._reach.covered())
        saved: dict[str, Json] = {}
        for name, value in self._objects.items():
            try:
                state = value.get_state() if _has_own_state(value) else value
                saved[name] = encoder.encode(state, f"{self.name}/{name}")
            except NotPlainError as error:
                msg = f"the tracked object {name!r}: {error}, which a checkpoint cannot hold"
                raise UncapturableError(msg) from None
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        found = [f"the tracked object {n!r} is not in it" for n in self._objects if n not in saved]
        decoder = Decoder(tensors, covered=self._reach.covered(), dry=True)
        for name, node in saved.items():
            if name not in self._objects:
                found.append(f"it has a tracked object {name!r} more")
                continue
            try:
                decoder.decode(node, f"{self.name}/{name}", self._objects[name])
            except UnplaceableError as error:
                found.append(str(error))
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors, covered=self._reach.covered())
        for name, value in self._objects.items():
            node = saved[name]
            if _has_own_state(value):
                value.set_state(decoder.decode(node, f"{self.name}/{name}"))
                continue
            if not isinstance(node, dict):
                msg = f"the tracked object {name!r} has no state in the checkpoint"
                raise RestoreError(msg)
            decoder.decode({**node, "k": 1}, f"{self.name}/{name}", value)

    def describe(self) -> str:
        return ", ".join(self._objects) or "none"


def check_trackable(name: str, value: object) -> None:
    """Refuse an object whose state could not be brought back into it.

    Raises:
        UncapturableError: It is none of the kinds that can be tracked; ``name`` is told.
    """
    import random

    import numpy as np

    if (
        framework_variables(value) is not None
        or _has_own_state(value)
        or isinstance(value, np.random.Generator)
        or type(value) in (random.Random, np.random.RandomState)
    ):
        return
    msg = (
        f"track({name!r}, …) was given a {class_name(type(value))}, whose value cannot be brought "
        "back into it; give a tf.Variable, a tf.random.Generator, a Keras layer, optimizer, metric "
        "or SeedGenerator, a NumPy Generator, or an object with get_state() and set_state(state) "
        "(for a number that counts: tf.Variable(0, trainable=False))"
    )
    raise UncapturableError(msg)


def _has_own_state(value: object) -> bool:
    import numpy as np

    return (
        framework_variables(value) is None
        and not isinstance(value, np.random.RandomState)
        and callable(getattr(value, "get_state", None))
        and callable(getattr(value, "set_state", None))
    )
