"""Roots of the walk: what a trial's factories returned, by the names that the user knows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from sweeper.inspection.object_paths import ObjectPath


@dataclass(frozen=True)
class Roots:
    """Objects that a training was given.

    Attributes:
        model: The compiled model.
        callbacks: The user's, in their order.
        step: The training step that is taken instead of the model's own, if there is one.
        data: What is trained and validated on, by ``train`` and ``validation``: an object or a
            function of the user's, not bare arrays, which training copies.
        read_ahead: Those of ``data`` that are read by threads ahead of the training.
        written: By use, the TensorFlow variables that reading these data writes, ahead of the training,
            by identity.
        exempt: Objects that tell their state by methods of their own.
        output: Objects that only write; it may grow.
        directory: The trial's own, which another attempt or a replay may have elsewhere.
    """

    model: keras.Model
    callbacks: Sequence[keras.callbacks.Callback] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    read_ahead: frozenset[str] = frozenset()
    written: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    exempt: Sequence[Any] = ()
    output: Sequence[Any] = ()
    directory: str = ""
    step: Any = None

    def ids_exempt(self) -> frozenset[int]:
        """Return the ids of all that is not looked into."""
        return frozenset(map(id, (*self.exempt, *self.output)))

    def ids_of_output(self) -> frozenset[int]:
        """Return the ids of the objects that only write."""
        return frozenset(map(id, self.output))

    def keeping_own_state(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks that tell their state by methods of their own."""
        exempt = {id(thing) for thing in self.exempt}
        return [c for c in self.callbacks if id(c) in exempt and id(c) not in self.ids_of_output()]

    def given(self) -> list[tuple[ObjectPath, Any]]:
        """Return everything that is used in step with the training."""
        counts = Counter(type(callback).__qualname__ for callback in self.callbacks)
        found: list[tuple[ObjectPath, Any]] = []
        for index, callback in enumerate(self.callbacks):
            name = type(callback).__qualname__
            shown = f"callback {name}" if counts[name] == 1 else f"callback {name} [{index}]"
            found.append((ObjectPath(shown), callback))
        found.append((ObjectPath("model"), self.model))
        if self.step is not None:
            found.append((ObjectPath("step"), self.step))
        found.append((ObjectPath("os.environ"), os.environ))
        return found + [part for use, part in self._data() if use not in self.read_ahead]

    def by_use(self) -> dict[str, list[tuple[ObjectPath, Any]]]:
        """Return what each kind of data is made of."""
        found: dict[str, list[tuple[ObjectPath, Any]]] = {"train": [], "validation": []}
        for use, part in self._data():
            found[use].append(part)
        return found

    def _data(self) -> list[tuple[str, tuple[ObjectPath, Any]]]:
        return [(use, (ObjectPath(f"Data({use}=…)"), given)) for use, given in self.data.items()]
