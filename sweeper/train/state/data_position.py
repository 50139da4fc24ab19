"""Position of the data sources, and state of data that are read again after a resume.

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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sweeper.train.codec import Json, Tensors
from sweeper.train.component import Component
from sweeper.train.sources.runner import Reader, Runner
from sweeper.train.userstate import UserState


class DataPosition(Component):
    """Component of the state of the data sources besides epoch and step."""

    name = "data"

    def __init__(self, train: Runner, validation: Runner | None) -> None:
        self._runners = {"train": train, "validation": validation}

    def capture(self, tensors: Tensors) -> Json:
        return {
            use: None
            if runner is None
            else {
                "kind": type(runner.source).__name__,
                "state": runner.reader.capture(f"{self.name}/{use}", tensors),
            }
            for use, runner in self._runners.items()
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        found = []
        for use, runner in self._runners.items():
            was = None if saved[use] is None else saved[use]["kind"]
            now = None if runner is None else type(runner.source).__name__
            if was != now:
                found.append(f"Data({use}=…): the checkpoint has {was}, and the study gives {now}")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        for use, runner in self._runners.items():
            if runner is not None:
                runner.reader.restore(f"{self.name}/{use}", saved[use]["state"], tensors)


class Reopening(Component):
    """Component of the state at the beginning of each pass that a resume reads again.

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
        for use, each in self._data.items():
            each.watch_openings(partial(self._note, use))

    def _note(self, use: str) -> None:
        """Record the state before a pass of ``use`` is opened."""
        tensors: Tensors = {}
        saved = {
            "user_state": self._user_state.capture_data(use, tensors),
            "generators": {each.name: each.capture(tensors) for each in self._generators},
        }
        kept = {name: np.array(tensor) for name, tensor in tensors.items()}
        self._opened[use] = (saved, kept)

    def _open(self) -> dict[str, tuple[Json, Tensors]]:
        return {use: opened for use, opened in self._opened.items() if self._data[use].is_open}

    def capture(self, tensors: Tensors) -> Json:
        found = {}
        for use, (saved, kept) in self._open().items():
            found[use] = saved
            tensors.update({f"{self.name}/{use}/{name}": kept[name] for name in kept})
        return found

    def in_flight(self) -> frozenset[str]:
        """Return the uses of data with an open pass, whose functions read ahead of the training."""
        return frozenset(self._open())

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        return [
            f"Data({use}=…) was to be read again after a resume, and is not now"
            for use in saved
            if use not in self._data
        ]

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Read the data again up to the training's position."""
        self._opened = {}
        for use, opened in saved.items():
            prefix = f"{self.name}/{use}/"
            kept = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            self._user_state.restore_data(use, opened["user_state"], kept)
            for each in self._generators:
                if each.name in opened["generators"]:
                    each.restore(opened["generators"][each.name], kept)
            self._data[use].reopen()
            self._opened[use] = (opened, kept)
