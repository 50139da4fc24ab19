"""Plain attributes of the model that training changes, and objects that the user tracks by name.

A ``train_step`` that runs eagerly, or a callback, can count on the model itself: ``self.beta *= 0.9``.
Keras knows nothing of that. Attributes of the user's own classes are compared with what they were
before training, and those that changed are captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from sweeper.errors import RestoreError, UncapturableError
from sweeper.training.encoding import (
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Origins,
    Tensors,
    UnplaceableError,
    fingerprint,
)
from sweeper.training.encoding.kinds import assigned_by, class_name, framework_variables
from sweeper.training.reach import Reach

__all__ = ["ModelAttributes", "Tracked", "check_trackable"]

_SET_WHILE_TRAINING = frozenset({"history", "stop_training", "stop_evaluating"})


class ModelAttributes:
    """Attributes of the user's own models, layers, optimizers and metrics that have changed."""

    name = "attributes"

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._base = set(vars(keras.Model())) | _SET_WHILE_TRAINING
        self._origins = Origins()
        self._began: dict[str, tuple[str | None, Any]] = {}
        encoder = self._encoder({})
        for path, _, _, value in self._attributes():
            self._began[path] = (_fingerprint(value, path, encoder), value)
            try:
                encoder.encode(value, path, copy=False)
            except NotPlainError:
                continue
        self._origins.known = True

    def _encoder(self, tensors: Tensors) -> Encoder:
        return Encoder(tensors, self._origins, covered=self._reach.covered())

    def _attributes(self) -> list[tuple[str, Any, str, Any]]:
        """``(path, owner, name, value)`` of every attribute that is not Keras's own."""
        found = []
        for part in self._reach.custom_parts():
            own = assigned_by(type(part.value), library=False)
            keras_own = self._base | assigned_by(type(part.value), library=True)
            for name, value in vars(part.value).items():
                if name in own - _SET_WHILE_TRAINING or not (
                    name in keras_own or name.startswith(("_self_", "_obj_", "_tf_"))
                ):
                    found.append((f"{self.name}/{part.path}/{name}", part.value, name, value))
        return found

    def capture(self, tensors: Tensors) -> Json:
        encoder = self._encoder(tensors)
        saved: dict[str, Json] = {}
        for path, owner, name, value in self._attributes():
            was, before = self._began.get(path, (None, None))
            now = _fingerprint(value, path, encoder)
            if (now is None and value is before) or (now is not None and now == was):
                continue
            try:
                saved[path] = encoder.encode(value, path)
            except NotPlainError as error:
                if name.startswith("_") and path not in self._began:
                    continue
                msg = (
                    f"the attribute {name!r} of {class_name(type(owner))} changed during training, "
                    f"and {error}, which a checkpoint cannot hold; keep numbers, arrays, variables "
                    "or containers of these there, or make it anew where it is used"
                )
                raise UncapturableError(msg) from None
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        now = {path: value for path, _, _, value in self._attributes()}
        decoder = Decoder(tensors, covered=self._reach.covered(), dry=True)
        found = []
        owners = {path.rpartition("/")[0] for path in now}
        for path, node in saved.items():
            if path not in now and path.rpartition("/")[0] not in owners:
                found.append(f"{path} is in the checkpoint only")
                continue
            try:
                decoder.decode(node, path, now.get(path))
            except UnplaceableError as error:
                found.append(str(error))
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors, self._origins, covered=self._reach.covered())
        owners = {f"{self.name}/{p.path}": p.value for p in self._reach.custom_parts()}
        for path, owner, name, value in self._attributes():
            # A step that only created an eager model's variables may have changed it.
            if path in self._began and path not in saved and value is not self._began[path][1]:
                setattr(owner, name, self._began[path][1])
        for path, node in saved.items():
            place, _, name = path.rpartition("/")
            fresh = getattr(owners[place], name, None)
            value = decoder.decode(node, path, fresh)
            if value is not fresh:
                setattr(owners[place], name, value)

    def describe(self) -> str:
        return f"{len(self._began)} watched"


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


def _fingerprint(value: Any, path: str, encoder: Encoder) -> str | None:
    try:
        return fingerprint(value, path, encoder)
    except NotPlainError:
        return None
