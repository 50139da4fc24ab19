"""Blocks of steps, parted where a callback wants to be called between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from sweeper.training.loop.logs import to_python
from sweeper.training.sources.runner import Runner
from sweeper.training.step_callbacks import StepCallback, call_at, wanted


class Blocks:
    """Runs blocks of steps, and calls `EverySteps`, `AtStep` and their like in between.

    Args:
        model: Whose ``stop_training`` ends a block.
        callbacks: All of the training's.
    """

    def __init__(self, model: keras.Model, callbacks: Iterable[Any]) -> None:
        self._model = model
        self._callbacks = [c for c in callbacks if isinstance(c, StepCallback)]

    def run(
        self, runner: Runner, step: int, epoch: int, begin: int, end: int
    ) -> tuple[int, Mapping[str, Any]]:
        """Run the steps of ``epoch`` from ``begin`` to ``end``; see `Runner.run`.

        Args:
            runner: Runs them.
            step: Steps of the training that are over.
            epoch: The epoch.
            begin: Steps of the epoch that are over.
            end: Where to stop, at the latest.
        """
        if not self._callbacks:
            return runner.run(epoch, begin, end)
        ran = 0
        logs: Mapping[str, Any] = {}
        while begin + ran < end:
            next_step = wanted(self._callbacks, step + ran)
            left = end - begin - ran
            part = left if next_step is None else min(left, next_step - step - ran)
            done, reported = runner.run(epoch, begin + ran, begin + ran + part)
            ran += done
            logs = reported if done else logs
            if done and next_step == step + ran:
                call_at(self._callbacks, step + ran, to_python(logs))
            if done < part or self._model.stop_training:
                break
        return ran, logs
