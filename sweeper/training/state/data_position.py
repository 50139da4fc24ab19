"""The component of a training's state that tells where its sources of data stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.training.encoding import Json, Tensors
from sweeper.training.sources.runner import Runner


class DataPosition:
    """Where the sources of data stand, beyond the epoch and step that `Position` tells.

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
