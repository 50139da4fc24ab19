"""Objects that the user registered with ``Trial.track``, by name.

`sweeper.train.userstate` captures them like everything else that the user's code reaches. This module
captures those that have their own methods for their state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from sweeper.errors import UncapturableError
from sweeper.inspection.sorts import class_name, framework_variables, tells_its_state
from sweeper.train.codec import Decoder, Encoder, Json, Tensors, UnplaceableError, encode_own_state
from sweeper.train.component import Component


class Tracked(Component):
    """Component of the objects registered with ``Trial.track``: their names, and results of ``get_state``."""

    name = "tracked"

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = dict(objects)
        for name, value in self._objects.items():
            check_trackable(name, value)

    def capture(self, tensors: Tensors) -> Json:
        encoder = Encoder(tensors)
        saved: dict[str, Json] = {}
        for name, value in self._objects.items():
            saved[name] = None
            if has_own_state(value):
                shown, path = f"the tracked object {name!r}", f"{self.name}/{name}"
                saved[name] = encode_own_state(encoder, value, shown, path)
        return saved

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        found = [f"the tracked object {n!r} is not in it" for n in self._objects if n not in saved]
        decoder = Decoder(tensors)
        for name, node in saved.items():
            if name not in self._objects:
                found.append(f"it has an unexpected tracked object {name!r}")
                continue
            try:
                decoder.decode(node)
            except UnplaceableError as error:
                found.append(f"the tracked object {name!r}: {error}")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        decoder = Decoder(tensors)
        for name, value in self._objects.items():
            if has_own_state(value):
                value.set_state(decoder.decode(saved[name]))


def has_own_state(value: object) -> bool:
    """Return whether a tracked object is restored by its own ``set_state``."""
    own = framework_variables(value) is None and not isinstance(value, np.random.RandomState)
    return own and tells_its_state(value)


def check_trackable(name: str, value: object) -> None:
    """Raise UncapturableError for an object whose state cannot be restored."""
    if (
        framework_variables(value) is not None
        or has_own_state(value)
        or isinstance(value, np.random.Generator)
        or type(value) in (random.Random, np.random.RandomState)
    ):
        return
    msg = (
        f"track({name!r}, …) was given a {class_name(type(value))}, whose value cannot be "
        "restored; give a tf.Variable, a tf.random.Generator, a Keras layer, optimizer, metric "
        "or SeedGenerator, a NumPy Generator, or an object with get_state() and set_state(state) "
        "(for a counter: tf.Variable(0, trainable=False))"
    )
    raise UncapturableError(msg)
