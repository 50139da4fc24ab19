"""Position of the data sources, and state of data that are read again after a resume.

A function of the epoch, or a dataset with Python functions, cannot be made to go on in the middle:
it is called again, and the batches before are dropped. What it draws from, a generator in a closure
or NumPy's own, has gone on meanwhile. So at each opening of such a pass the state of all that its
functions reach, and of the process's generators, is kept; a resume puts that back, reads up to where
the training was, and only then puts back everything as it was at the checkpoint.

What reads ahead of the training, in TensorFlow's threads, is at a checkpoint further than the
training is, nobody knows how far; so of what only such functions reach, the state at the opening is
all that a checkpoint inside a pass has, and reading again brings it to where it has to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sweeper.train.codec import Json, Tensors
from sweeper.train.sources.runner import Runner
from sweeper.train.userstate import UserState


class DataPosition:
    """Component with the state of the data sources besides epoch and step.

    Most have nothing to add: they give the same batches whenever they are opened at a step.
    """

    name = "data"

    def __init__(self, train: Runner, validation: Runner | None) -> None:
        self._runners = {"train": train, "validation": validation}

    def capture(self, tensors: Tensors) -> Json:
        return {
            use: None
            if runner is None
            else {
                "kind": runner.kind,
                "state": runner.capture(f"{self.name}/{use}", tensors),
            }
            for use, runner in self._runners.items()
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        found = []
        for use, runner in self._runners.items():
            was = None if saved[use] is None else saved[use]["kind"]
            now = None if runner is None else runner.kind
            if was != now:
                found.append(f"Data({use}=…): the checkpoint has {was}, and the study gives {now}")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        for use, runner in self._runners.items():
            if runner is not None:
                runner.restore(f"{self.name}/{use}", saved[use]["state"], tensors)

    def describe(self) -> str:
        shown = {use: runner.describe() for use, runner in self._runners.items() if runner}
        return "; ".join(f"{use}: {what}" for use, what in shown.items())


class ReopenedData(Protocol):
    """Data that are read again after a resume."""

    @property
    def is_open(self) -> bool:
        """Return whether a pass has begun and has not ended."""
        ...

    def watch_openings(self, opened: Any) -> None:
        """Call ``opened`` just before a pass is opened that a resume would read again."""
        ...

    def reopen(self) -> None:
        """Open the pass at the position of the training now."""
        ...


class _Generator(Protocol):
    """A component with the state of a generator of the process."""

    @property
    def name(self) -> str: ...

    def capture(self, tensors: Tensors) -> Json: ...

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None: ...


class Reopening:
    """Component with the state at the beginning of each pass that a resume reads again.

    Args:
        data: By use, ``train`` and ``validation``: those that are read again.
        user_state: What the user's code keeps.
        generators: The components of the process's generators.
    """

    name = "reopening"

    def __init__(
        self,
        data: Mapping[str, ReopenedData],
        user_state: UserState,
        generators: Sequence[_Generator],
    ) -> None:
        self._data = dict(data)
        self._user_state = user_state
        self._generators = tuple(generators)
        self._opened: dict[str, tuple[Json, Tensors]] = {}
        for use, each in self._data.items():
            each.watch_openings(lambda use=use: self._note(use))

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

    def describe(self) -> str:
        return ", ".join(self._data) or "nothing is read again"
