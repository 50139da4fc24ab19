"""The training loop: everything ``model.fit`` does and calls back, stoppable after any step.

The order of calls is ``fit``'s, and so are their values; the tests hold it against ``fit`` itself,
bit for bit. What ``fit`` cannot do is begin in the middle of an epoch: here a training starts from
any `Position` that a checkpoint holds. Two things in it look odd and are needed:

- ``on_train_begin`` is called *before* state is restored, because Keras's callbacks reset
  themselves in it; ``on_epoch_begin`` is not called again for an epoch that had begun.
- A snapshot is held while validation runs. A stop in the middle of a long validation writes that
  one; the resumed trial begins its validation again, which has no lasting effect of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.errors import FactoryError, NonFiniteError, ObjectiveError
from sweeper.results import EpochRecord
from sweeper.training.building import build_before_tracing
from sweeper.training.callbacks import listens_to_batches
from sweeper.training.eager import take_one_step
from sweeper.training.plan import Observer, Stopped, TrainingPlan
from sweeper.training.runners import make_runner
from sweeper.training.sources.opening import open_sources
from sweeper.training.state import HistoryRecord, Position, TrainingState, default_components
from sweeper.training.steps import Runner

__all__ = ["Observer", "Stopped", "TrainingLoop", "TrainingPlan"]

_LOG = logging.getLogger(__name__)

_BLOCK_SECONDS = 0.2
"""How long a block of steps should take: the time a request to stop may have to wait."""


_NO_END = 1 << 40
"""More steps than any epoch has."""


class TrainingLoop:
    """One training, from its beginning or from a checkpoint to its end.

    Args:
        plan: What to train.
        observer: Who watches it, and keeps its snapshots.
        notice: Told what the user should know about the data: what a resume reads again, what
            cannot be checked. A warning in the log by default.

    Raises:
        FactoryError, DataError, ObjectiveError, UncapturableError: The plan cannot be trained, or
            not exactly; nothing has run yet.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        observer: Observer,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._plan = plan
        self._observer = observer
        model = plan.model
        if not model.compiled:
            msg = (
                f"the model factory returned {type(model).__name__} {model.name!r}, which is not "
                "compiled; call model.compile(optimizer=…, loss=…) before returning it"
            )
            raise FactoryError(msg)
        data = plan.data
        source, validation = open_sources(data, plan.order_seed, notice)
        self._train = make_runner(
            model, source, model.train_step, steps_per_epoch=data.steps_per_epoch
        )
        self._steps = self._train.steps
        example = self._train.example()
        if isinstance(example, tuple):
            build_before_tracing(model, example)
        self._train.trace()
        self._test: Runner | None = None
        if validation is not None:
            self._test = make_runner(
                model,
                validation,
                model.test_step,
                steps_per_epoch=data.validation_steps,
                goes_on=False,
                name="validation",
            )
            self._test.trace()
        self._callbacks = keras.callbacks.CallbackList(
            list(plan.callbacks),
            add_history=True,
            model=model,
            verbose=0,
            epochs=plan.epochs,
            steps=self._steps,
        )
        # A callback dispatched to a thread could still be running when a snapshot is taken.
        self._callbacks._async_train = self._callbacks._async_test = False
        self._listening = listens_to_batches(self._callbacks.callbacks, test=False)
        self._listening_to_tests = listens_to_batches(self._callbacks.callbacks, test=True)
        self.history: keras.callbacks.History = model.history
        self._record = HistoryRecord(self.history)
        self._state = TrainingState(
            default_components(
                model,
                plan.callbacks,
                self._record,
                self._train,
                self._test,
                tracked=plan.tracked,
            )
        )
        self._block_steps = 1
        self._position = Position()
        self._held: Snapshot | None = None
        self.pruned = False
        self._check_objectives()

    def run(self, loaded: LoadedCheckpoint | None = None) -> Position:
        """Train to the end and return where that is; ``pruned`` says whether the judge ended it.

        Args:
            loaded: The checkpoint to go on from, or None to begin.

        Raises:
            Stopped: The observer asked for it; the snapshot was handed to it.
            RestoreError: The checkpoint does not fit the model.
            UncapturableError: A callback holds what no checkpoint can; no step has run.
            NonFiniteError: The loss or the objective became NaN or infinite.
        """
        model = self._plan.model
        model.stop_training = False
        if loaded is not None and model.run_eagerly:
            take_one_step(model, self._train.example(), self._plan.data.batch_size)
        self._state.before_train_begin(loaded)
        self._callbacks.on_train_begin()
        if loaded is None:
            self._snapshot()
        else:
            self._position = self._state.restore(loaded)
            model.stop_training = self._position.stopped
        self._observer.started(self._position, self._steps or 0)
        # Asked again: the answer to whoever wrote the checkpoint may never have been acted upon.
        self.pruned = self._position.step_in_epoch == 0 and self._is_to_end()
        while self._position.epoch < self._plan.epochs and not self.pruned:
            if self._position.stopped and self._position.step_in_epoch == 0:
                break
            self._run_epoch()
        self._finish()
        return self._position

    def _run_epoch(self) -> None:
        model = self._plan.model
        started = time.monotonic()
        epoch = self._position.epoch
        if self._position.step_in_epoch == 0:
            model.reset_metrics()
            self._callbacks.on_epoch_begin(epoch)
            self._train.begin_epoch(epoch)
        logs = self._train_steps(epoch)
        self._train.end_epoch(epoch)
        epoch_logs = dict(_metrics_or_logs(model, logs))
        if self._test is not None and self._plan.data.validates_after(epoch):
            self._position = replace(self._position, logs=_to_python(logs))
            self._held = self._snapshot()
            validation = self._validate(self._test, epoch)
            self._held = None
            epoch_logs.update({f"val_{name}": value for name, value in validation.items()})
        epoch_logs = _to_python(epoch_logs)
        recorded = {name: len(values) for name, values in self.history.history.items()}
        self._callbacks.on_epoch_end(epoch, epoch_logs)
        logged = {
            name: float(values[-1])
            for name, values in self.history.history.items()
            if len(values) > recorded.get(name, 0) and isinstance(values[-1], int | float)
        }
        self._record.epochs.append(EpochRecord(epoch, logged))
        self._position = replace(
            self._position,
            epoch=epoch + 1,
            step_in_epoch=0,
            stopped=bool(model.stop_training),
            logs=epoch_logs,
        )
        seconds = time.monotonic() - started
        self._observer.epoch_ended(epoch, self._position.step, logged, seconds)
        self._check_finite(epoch, logged)
        self.pruned = self._is_to_end()
        last = self.pruned or self._is_last()
        stopping = self._observer.stop_requested() and not last
        if last or stopping or self._observer.is_due(self._position):
            self._observer.keep(self._snapshot())
        if stopping:
            raise Stopped

    def _is_last(self) -> bool:
        """Whether the epoch that is over was the last one."""
        return self._position.stopped or self._position.epoch == self._plan.epochs

    def _is_to_end(self) -> bool:
        """Whether the judge ends training here; after the last epoch there is nothing to ask."""
        judge, over = self._plan.judge, self._record.epochs
        if judge is None or not over or self._is_last():
            return False
        return judge(tuple(over))

    def _train_steps(self, epoch: int) -> Mapping[str, Any]:
        model = self._plan.model
        logs: Mapping[str, Any] = {}
        if self._position.step_in_epoch > 0 and self._position.logs is not None:
            logs = self._position.logs
        while self._more_steps() and not (model.stop_training and self._position.step_in_epoch > 0):
            begin = self._position.step_in_epoch
            end = begin + self._block_size()
            told = self._told_step(begin)
            if self._listening:
                self._callbacks.on_train_batch_begin(told)
            started = time.monotonic()
            ran, reported = self._train.run(epoch, begin, end)
            if not ran:
                break
            logs = reported
            if self._listening:
                self._callbacks.on_train_batch_end(told + model.steps_per_execution - 1, logs)
            else:
                self._adapt_block(ran, logs, started)
            self._position = replace(self._position.after(ran), stopped=bool(model.stop_training))
            self._after_block(logs)
        return logs

    def _told_step(self, step: int) -> int:
        """What ``fit`` calls ``step``: it counts whole executions, the last short one included."""
        execution = int(self._plan.model.steps_per_execution)
        return -(-step // execution) * execution

    def _more_steps(self) -> bool:
        """Whether the epoch may have a step left; only its end tells where it has no length."""
        return self._steps is None or self._position.step_in_epoch < self._steps

    def _after_block(self, logs: Mapping[str, Any]) -> None:
        self._observer.steps_done(self._position)
        stopping = self._observer.stop_requested()
        due = self._more_steps() and self._observer.is_due(self._position)
        if stopping or due:
            self._position = replace(self._position, logs=_to_python(logs))
            self._observer.keep(self._snapshot())
        if stopping:
            raise Stopped

    def _block_size(self) -> int:
        """Steps for the next graph call: to the epoch's end, the next snapshot or 0.2 s away."""
        left = (self._steps or _NO_END) - self._position.step_in_epoch
        if self._listening:
            return int(min(self._plan.model.steps_per_execution, left))
        return max(1, min(left, self._block_steps, self._observer.steps_until_due(self._position)))

    def _adapt_block(self, steps: int, logs: Mapping[str, Any], started: float) -> None:
        """Grow or shrink blocks towards `_BLOCK_SECONDS`; their size changes no result."""
        for value in logs.values():
            np.asarray(value)
        seconds = max(time.monotonic() - started, 1e-6)
        wanted = _BLOCK_SECONDS / (seconds / steps)
        self._block_steps = max(1, min(round(wanted), self._block_steps * 16, 1 << 20))

    def _validate(self, test: Runner, epoch: int) -> Mapping[str, float]:
        model = self._plan.model
        self._callbacks.on_test_begin()
        logs: Mapping[str, Any] = {}
        model.reset_metrics()
        model.stop_evaluating = False
        test.begin_epoch(epoch)
        steps = test.steps or _NO_END
        begin, block = 0, 1
        while begin < steps and not model.stop_evaluating:
            if self._listening_to_tests:
                block = model.steps_per_execution
                self._callbacks.on_test_batch_begin(self._told_step(begin))
            end = min(begin + block, steps)
            started = time.monotonic()
            ran, reported = test.run(epoch, begin, end)
            if not ran:
                break
            logs = reported
            if self._listening_to_tests:
                self._callbacks.on_test_batch_end(self._told_step(begin) + block - 1, logs)
            else:
                seconds = max(time.monotonic() - started, 1e-6)
                block = max(1, min(round(_BLOCK_SECONDS * ran / seconds), block * 64))
            begin += ran
            if begin < steps and self._observer.stop_requested():
                self._stop_inside_validation()
        test.end_epoch(epoch)
        logs = _to_python(_metrics_or_logs(model, logs))
        self._callbacks.on_test_end(logs)
        return logs

    def _stop_inside_validation(self) -> None:
        if self._held is not None:
            self._observer.keep(self._held)
        raise Stopped

    def _finish(self) -> None:
        model = self._plan.model
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.on_train_end(self._position.logs)
        self._state.after_train_end()

    def _snapshot(self) -> Snapshot:
        epochs = self._record.epochs
        between = self._position.step_in_epoch == 0 and epochs
        return self._state.capture(self._position, epochs[-1].metrics if between else {})

    def _check_objectives(self) -> None:
        """Refuse an objective that no epoch will report, before any step runs."""
        train, test = self._train.log_names, self._test
        if train is None or (test is not None and test.log_names is None):
            return
        names = list(train)
        if test is not None:
            names += [f"val_{name}" for name in test.log_names or ()]
        for objective in self._plan.objectives:
            if objective in names or objective.removeprefix("val_") == "learning_rate":
                continue
            hint = ""
            if objective.startswith("val_") and test is None:
                hint = ", and Data(validation=…) is not given"
            msg = (
                f"the objective is {objective!r}, and the model reports no such metric{hint}; it "
                f"reports {', '.join(map(repr, sorted(names)))}"
            )
            raise ObjectiveError(msg)

    def _check_finite(self, epoch: int, logs: Mapping[str, float]) -> None:
        for name in ("loss", *self._plan.objectives):
            value = logs.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                msg = (
                    f"{name} is {value} at the end of epoch {epoch + 1} of {self._plan.epochs}; "
                    "training cannot recover from that: lower the learning rate, clip the "
                    "gradients, or look for invalid samples"
                )
                raise NonFiniteError(msg)


def _metrics_or_logs(model: keras.Model, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's metrics, unless a custom step reports others; as ``fit`` decides it."""
    metrics: Mapping[str, Any] = model.get_metrics_result()
    return metrics if set(metrics) == set(logs) else logs


def _to_python(logs: Mapping[str, Any]) -> dict[str, Any]:
    from keras.src.utils.python_utils import pythonify_logs

    return dict(pythonify_logs(logs))
