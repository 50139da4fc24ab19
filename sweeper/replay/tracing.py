"""Trace of a training: digests of its state after each step and each callback's hook.

The first event in which the traces of two runs differ is the cause: the step or the callback
between an equal and a different state. The user's objects are not wrapped: callbacks that record
digests are placed between theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from sweeper.checkpoint.format import Snapshot
from sweeper.records.results import EpochRecord
from sweeper.replay.digests import digest_of
from sweeper.replay.reports import Event, Trace
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Stopped, TrainingPlan
from sweeper.train.state.state import Position

_WATCHED = ("model", "optimizer", "optimizers")
"""The components whose variables are in a trial's digest."""

HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
)

_NEVER = 1 << 30


class WatchedTraining:
    """A training up to a step, with its trace.

    Args:
        plan: The plan of the training.
        notice: Called with notices about the data.

    Attributes:
        loop: The training loop, traced and ready.
        snapshot: The complete state after `run`.
        position: Position of the training.
        seconds: Seconds of `run` for recording; the others are the training's.
        step_seconds: Seconds of `run` in steps.
    """

    def __init__(self, plan: TrainingPlan, notice: Callable[[str], None]) -> None:
        self._plan = plan
        self._events: list[Event] = []
        self._stop_at = _NEVER
        self.snapshot: Snapshot | None = None
        self.position = Position()
        self.seconds = 0.0
        self.step_seconds = 0.0
        self.loop = TrainingLoop(plan, self, notice)
        self._train = self.loop._train
        self._look = self._interleave()

    def run(self, stop_at: int) -> Trace:
        """Train to ``stop_at``, or to the end if that is earlier.

        Raises:
            SweeperError: An error of the training; `trace` has the events before it.
            Exception: Any error of the user's code.
        """
        self._stop_at = stop_at
        self.loop._train = _Timed(self._train, self)
        try:
            self.loop.run()
        except Stopped:
            pass
        finally:
            self.loop._train = self._train
            self._stop_at = _NEVER
            for look in self._look:
                self.loop._callbacks.callbacks.remove(look)
        return self.trace()

    def trace(self) -> Trace:
        """Return the events so far."""
        return Trace(tuple(self._state()[0]), tuple(self._events))

    def digests(self) -> tuple[str, ...]:
        """Return the present digest of each variable of the model and its optimizers."""
        return tuple(self._state()[1])

    def variables(self) -> tuple[str, ...]:
        """Return the component and path of each of these variables."""
        return tuple(self._state()[0])

    def time_steps(self, seconds: float) -> tuple[int, float]:
        """Run further steps after `run`, in blocks as a trial does, for about this many seconds.

        Returns:
            The number of steps, and their seconds.
        """
        epoch, begin, block = self.position.epoch, self.position.step_in_epoch, 1
        ran, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds:
            end = begin + block
            if self.loop._steps is not None:
                end = min(end, self.loop._steps)
            did, logs = self._train.run(epoch, begin, end) if end > begin else (0, {})
            for value in logs.values():
                np.asarray(value)
            ran, begin = ran + did, begin + did
            block = min(4 * block, max(1, int(ran / max(spent, 1e-3) * seconds)))
            if did == 0 or begin == self.loop._steps:
                self._train.end_epoch(epoch)
                epoch, begin = epoch + 1, 0
                self._train.begin_epoch(epoch)
        return ran, time.perf_counter() - started

    def time_validation(self) -> tuple[int | None, float]:
        """Run one validation after `run`; return its batches (None if unknown) and its seconds."""
        test = self.loop._test
        if test is None:
            return 0, 0.0
        started = time.perf_counter()
        self.loop._validate(test, self.position.epoch)
        return test.steps, time.perf_counter() - started

    def started(self, position: Position, steps_per_epoch: int) -> None:
        del steps_per_epoch
        self.position = position
        self.record("start", None, "")

    def steps_done(self, position: Position) -> None:
        self.position = position
        self.record("step", None, "")

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        del record, step, seconds

    def steps_until_due(self, position: Position) -> int:
        del position
        return 1

    def is_due(self, position: Position) -> bool:
        del position
        return False

    def keep(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        saved: Any = snapshot.state["position"]
        self.position = Position.restored(saved, snapshot.tensors)

    def stop_requested(self) -> bool:
        # A trial takes no checkpoint after an epoch's last step, but once the epoch has ended.
        at_the_end = self.position.step_in_epoch == self.loop._steps
        return self.position.step >= self._stop_at and not at_the_end

    def record(self, what: str, owner: int | None, hook: str) -> None:
        """Record the present state."""
        began = time.perf_counter()
        state = tuple(self._state()[1])
        self._events.append(Event(what, owner, hook, self.position.step, state))
        self.seconds += time.perf_counter() - began

    def _state(self) -> tuple[list[str], list[str]]:
        paths: list[str] = []
        digests: list[str] = []
        for component in self.loop._state.components:
            if component.name in _WATCHED:
                tensors: dict[str, Any] = {}
                names = component.capture(tensors)
                paths += [f"{component.name} variable {name}" for name in names]
                digests += [digest_of(tensor) for tensor in tensors.values()]
        return paths, digests

    def _interleave(self) -> list[keras.callbacks.Callback]:
        """Put a recording callback before the user's first callback and after each."""
        looks: list[keras.callbacks.Callback] = []
        mixed: list[Any] = []
        ours = {id(callback): i for i, callback in enumerate(self._plan.callbacks)}
        for callback in self.loop._callbacks.callbacks:
            if id(callback) in ours and not looks:
                looks.append(_Look(self, None))
                mixed.append(looks[-1])
            mixed.append(callback)
            if id(callback) in ours:
                looks.append(_Look(self, ours[id(callback)]))
                mixed.append(looks[-1])
        self.loop._callbacks.callbacks[:] = mixed
        return looks


class _Timed:
    """A wrapper of a runner that times its steps."""

    def __init__(self, runner: Any, watched: WatchedTraining) -> None:
        self._runner = runner
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Mapping[str, Any]]:
        began = time.perf_counter()
        ran, logs = self._runner.run(epoch, begin, end)
        for value in logs.values():
            np.asarray(value)
        self._watched.step_seconds += time.perf_counter() - began
        return ran, logs


class _Look(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that records the state after callback number ``owner``; None before the first."""

    def __init__(self, watched: WatchedTraining, owner: int | None) -> None:
        super().__init__()
        self._watched = watched
        self._owner = owner

    def _note(self, hook: str) -> None:
        what = "elsewhere" if self._owner is None else "callback"
        self._watched.record(what, self._owner, hook)


def _noting(hook: str) -> Callable[..., None]:
    def note(look: _Look, *_shown: Any, **_logs: Any) -> None:
        look._note(hook)

    return note


for _hook in HOOKS:
    setattr(_Look, _hook, _noting(_hook))
