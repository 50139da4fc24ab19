"""The training loop: the computations and callbacks of ``model.fit``, stoppable after any step.

Calls have the order and the values of ``fit``; tests compare both bit for bit. Unlike ``fit``, a
training starts from any `Position` in a checkpoint, also in the middle of an epoch. Two details:

- ``on_train_begin`` is called *before* state is restored, because Keras's callbacks reset
  themselves in it. ``on_epoch_begin`` is not called again for an epoch that had started.
- A snapshot is held while validation runs. A stop during validation writes this snapshot, and the
  resumed trial starts the validation again, which has no lasting effect.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import keras

from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot
from sweeper.declarations.warm_start import WarmStartReport
from sweeper.errors import FactoryError
from sweeper.records.results import EpochRecord
from sweeper.train.data import DataSource
from sweeper.train.keras_methods import make_step_function
from sweeper.train.loop import runners
from sweeper.train.loop.logs import Reported, metrics_or_logs, to_python
from sweeper.train.loop.plan import Observer, Paused, Stopped, TrainingPlan, roots_of
from sweeper.train.loop.validating import Validation
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.replicas import check_model
from sweeper.train.sources.opening import open_sources, passes_end_within, validation_data
from sweeper.train.sources.runner import Runner
from sweeper.train.state.callbacks import (
    FinalAverages,
    listens_to_batches,
    may_report,
    summaries_to,
    without_superfluous,
    writing_by_batch,
)
from sweeper.train.state.state import HistoryRecord, Position, TrainingState, default_components
from sweeper.train.state.variables import Variables, weights_digest
from sweeper.train.userstate import UserState
from sweeper.train.warmstart.initial import WarmValues, match_warm_start

_LOG = logging.getLogger(__name__)


class TrainingLoop:
    """A training, from its start or a checkpoint to its end."""

    def __init__(
        self,
        plan: TrainingPlan,
        observer: Observer,
        notify: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._plan = plan = replace(plan, callbacks=without_superfluous(plan.callbacks, notify))
        self._observer = observer
        self._trainer = plan.trainer
        self._hidden = HiddenState(plan.order_seed, notify)
        with self._hidden:
            _refuse_uncompiled(plan.model)
            replicated = check_model(plan.model, plan.step)
            source, validation = open_sources(plan.data, plan.order_seed, notify)
            epochs = plan.epochs - plan.initial_epoch
            for remark in (replicated, passes_end_within(plan.data, source, epochs)):
                if remark is not None:
                    notify(remark)
            self._train, self._test = self._traced_runners(source, validation)
            self._validation = self._validation_of(self._test)
            self._callbacks = self._callback_list()
            self._averages = FinalAverages(plan.callbacks)
            self._blocks = runners.Blocks(plan.model, self._callbacks.callbacks)
            listed = self._callbacks.callbacks
            self._bars = [c for c in listed if type(c) is keras.callbacks.ProgbarLogger]
            self._listening = listens_to_batches(self._callbacks.callbacks, test=False)
            # Callbacks may change ``trainable`` later.
            self._trained = list(plan.model.trainable_weights)
            self.history: keras.callbacks.History = plan.model.history
            self._record = HistoryRecord(self.history)
            # Every variable that a graph creates exists now, and the callbacks know the model.
            self._state = TrainingState(
                default_components(
                    roots_of(plan, {"train": source, "validation": validation}),
                    self._record,
                    self._train,
                    self._test,
                    notify=notify,
                    hidden=self._hidden,
                ),
                eager=bool(plan.model.run_eagerly),
                cure=plan.cure,
            )
            self._reported = Reported(plan.objectives, plan.epochs, notify, plan.nonfinite)
            self._reported.check_before(
                self._train.one.log_shapes,
                None if self._test is None else self._test.one.log_shapes,
                validates=self._test is not None,
                by_callbacks=may_report(plan.callbacks)
                or (self._validation is not None and self._validation.is_overridden),
            )
        self._block_steps = 1
        self._position = Position(epoch=plan.initial_epoch)
        self._train.reader.first_epoch = plan.initial_epoch
        self._measured = ""
        self._notify = notify
        self._initial: WarmValues | None = None
        self.pruned = False

    def _traced_runners(
        self, source: DataSource, validation: DataSource | None
    ) -> tuple[Runner, Runner | None]:
        model = self._plan.model
        data = self._plan.data
        trainer = self._trainer
        train = runners.make_runner(model, source, trainer.train_step, data.steps_per_epoch)
        runners.build_before_tracing(model, train.example(), self._plan.step)
        test = None
        if validation is not None:
            test = runners.make_runner(
                model, validation, trainer.test_step, data.validation_steps, continues=False
            )
        for runner in filter(None, (train, test)):
            runners.trace(runner)
        return train, test

    def _validation_of(self, test: Runner | None) -> Validation | None:
        if test is None:
            return None
        data = self._plan.data
        return Validation(self._plan, test, lambda: validation_data(data), data.validation_steps)

    def _callback_list(self) -> keras.callbacks.CallbackList:
        plan = self._plan
        callbacks = keras.callbacks.CallbackList(
            list(plan.callbacks),
            add_history=True,
            add_progbar=plan.verbose != 0,
            model=plan.model,
            verbose=plan.verbose,
            epochs=plan.epochs,
            steps=self._train.reader.steps,
        )
        # A callback in another thread could still be running when a snapshot is taken.
        callbacks._async_train = callbacks._async_test = False
        board = writing_by_batch(callbacks.callbacks)
        if board is not None and not plan.model.run_eagerly:
            # Traced again, because the callback that writes the model's summaries has the model now.
            with summaries_to(board, "train"):
                self._train.trace()
            if self._test is not None:
                with summaries_to(board, "validation"):
                    self._test.trace()
        return callbacks

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the number of steps of an epoch; None if it is known only at its end."""
        return self._train.reader.steps

    def created(self) -> dict[int, Any]:
        """Return the objects that the training, and earlier ones of this process, have created, by identity."""
        components = self._state.components
        return next((part.created() for part in components if isinstance(part, UserState)), {})

    @property
    def position(self) -> Position:
        return self._position

    @property
    def epochs(self) -> Sequence[EpochRecord]:
        return tuple(self._record.epochs)

    def _weights_digest(self) -> str:
        """Return the digest of the weights that an epoch was measured with; empty without an objective."""
        return weights_digest(self._plan.model) if self._plan.objectives else ""

    def delivered_epoch(self, names: Collection[str]) -> int | None:
        """Return the last epoch (from 0) that reported these metrics with the weights that the model now has.

        None if there is none: callbacks, or the optimizer, changed the weights after it was measured.
        """
        digest = weights_digest(self._plan.model)
        for record, measured in zip(
            reversed(self.epochs), reversed(self._record.weights), strict=True
        ):
            if measured == digest and all(name in record.metrics for name in names):
                return record.epoch
        return None

    def measure(self) -> Mapping[str, float]:
        """Return the validation metrics of the model as it is now; empty without validation data.

        To be called after `run`. No callback is called.
        """
        if self._validation is None:
            return {}
        with self._hidden:
            # Another epoch, because the last one's validation has been read to its end.
            logs = self._validation.run(self._position.epoch)
            self._validation.end_epoch(self._position.epoch)
        return {f"val_{name}": value for name, value in logs.items()}

    def match_warm_start(self) -> WarmStartReport | None:
        """Find the initial values of the plan's warm start, once, and return the report; None without one."""
        options = self._plan.warm_start
        if options is None:
            return None
        if self._initial is None:
            self._initial = match_warm_start(options, self._plan.model)
            self._notify(self._initial.report.summary())
        return self._initial.report

    def run(
        self,
        loaded: LoadedCheckpoint | None = None,
        changed: Iterable[tuple[Any, Any]] = (),
        own_end: LoadedCheckpoint | None = None,
    ) -> Position:
        """Train from the start or ``loaded`` to the end; return the position, set ``pruned`` if the pruner ended it.

        Args:
            loaded: The checkpoint to resume from.
            changed: Variables whose values differ from the checkpoint's, with the values.
            own_end: The checkpoint of this training's own end, if ``loaded`` is of a longer one.

        Raises:
            Stopped: The observer requested a stop, and has the snapshot; `Paused` if the plan has
                a pause here.
        """
        with self._hidden:
            self._run(loaded, changed)
            if own_end is not None:
                self._go_back_to(own_end)
            self._finish()
        return self._position

    def _run(self, loaded: LoadedCheckpoint | None, changed: Iterable[tuple[Any, Any]]) -> None:
        model = self._plan.model
        # As `fit` does. This loop does not use it, but a callback's `train_on_batch` would make it otherwise, and
        # then it could not be distinguished from one that is made again during training.
        make_step_function(model, "train")
        if self._validation is not None:
            make_step_function(model, "test")
        model.stop_training = False
        if loaded is None and self.match_warm_start() and self._initial is not None:
            self._initial.assign()
            self._initial = None
        if loaded is not None and model.run_eagerly:
            batch = self._train.building_batch()
            self._state.build_by(
                lambda: runners.take_one_step(model, self._trainer.train_step, batch)
            )
        # Before the callbacks, because CSVLogger opens its file in ``on_train_begin``.
        self._state.before_train_begin(loaded, self._lost_from(loaded))
        self._callbacks.on_train_begin()
        if loaded is None:
            self._state.begin()
            self._snapshot()
        else:
            self._position = self._state.restore(loaded)
            # Afterwards, because the restore would overwrite them.
            for variable, value in changed:
                variable.assign(value)
            model.stop_training = self._position.stopped
        self._observer.started(self._position, self._train.reader.steps or 0)
        # The attempt that wrote the checkpoint may have ended before it acted on the answer.
        self.pruned = self._position.step_in_epoch == 0 and self._is_to_end()
        if self._is_to_pause():
            raise Paused
        while self._position.epoch < self._plan.epochs and not self.pruned:
            if self._position.stopped and self._position.step_in_epoch == 0:
                break
            self._run_epoch()

    def _lost_from(self, loaded: LoadedCheckpoint | None) -> int | None:
        """Return the first epoch after ``loaded`` of which a lost attempt may have written something, if any."""
        earlier = self._plan.earlier
        if loaded is None or (earlier is not None and earlier.continued):
            return None
        position = Position.restored(loaded.state["position"], loaded.tensors)
        stopped = position.stopped and position.step_in_epoch == 0
        return position.epoch if position.epoch < self._plan.epochs and not stopped else None

    def _go_back_to(self, loaded: LoadedCheckpoint) -> None:
        """Give the variables, the history and the position what they were at an earlier checkpoint.

        What callbacks wrote since stays: a later training continues from the newest checkpoint.
        """
        for component in self._state.components:
            if isinstance(component, Variables | HistoryRecord):
                component.restore(loaded.state[component.name], loaded.tensors)
        self._position = Position.restored(loaded.state["position"], loaded.tensors)

    def _run_epoch(self) -> None:
        model = self._plan.model
        started = time.monotonic()
        epoch = self._position.epoch
        if self._position.step_in_epoch == 0:
            self._trainer.reset_metrics()
            self._callbacks.on_epoch_begin(epoch)
            self._train.reader.begin_epoch(epoch)
        else:
            for bar in self._bars:
                bar.on_epoch_begin(epoch)
        logs = self._train_steps(epoch)
        self._train.reader.end_epoch(epoch)
        epoch_logs = dict(metrics_or_logs(self._trainer, logs))
        validates = self._plan.data.validates_after(epoch)
        if self._validation is not None and validates:
            self._position = replace(self._position, logs=to_python(logs))
            validation = self._validate(self._validation, epoch, self._snapshot())
            epoch_logs.update({f"val_{name}": value for name, value in validation.items()})
        else:
            self._measured = self._weights_digest()
        epoch_logs = to_python(epoch_logs)
        # A copy, because callbacks may change it, and the position keeps the logs of the steps alone.
        callback_logs = to_python(epoch_logs)
        record = self._end_epoch(epoch, callback_logs)
        self._position = replace(
            self._position,
            epoch=epoch + 1,
            step_in_epoch=0,
            stopped=bool(model.stop_training),
            logs=epoch_logs,
        )
        seconds = time.monotonic() - started
        complete = validates or self._test is None
        self._reported.check_after(callback_logs, self._record.epochs, validated=complete)
        self._observer.epoch_ended(record, self._position.step, seconds)
        self._reported.check_finite(self._record.epochs, ended=self._is_last())
        self.pruned = self._is_to_end()
        last = self.pruned or self._is_last()
        pausing = self._is_to_pause()
        stopping = self._observer.stop_requested() and not last
        if last or pausing or stopping or self._observer.is_due(self._position):
            self._observer.keep(self._snapshot())
        if pausing:
            raise Paused
        if stopping:
            raise Stopped

    def _end_epoch(self, epoch: int, logs: dict[str, Any]) -> EpochRecord:
        """Call the callbacks with ``logs``, and record the logs with the callbacks' additions."""
        for callback in self._callbacks.callbacks:
            callback.on_epoch_end(epoch, logs)
        numbers = (self._reported.numbers(name, value) for name, value in logs.items())
        record = EpochRecord(epoch, dict(chain.from_iterable(numbers)))
        self._record.epochs.append(record)
        self._record.weights.append(self._measured)
        return record

    def _is_last(self) -> bool:
        return self._position.stopped or self._position.epoch == self._plan.epochs

    def _is_to_pause(self) -> bool:
        """Return whether the training pauses here and has not ended."""
        due = self._position.epoch == self._plan.pause_after and self._position.step_in_epoch == 0
        return due and not self.pruned and not self._is_last()

    def _is_to_end(self) -> bool:
        """Return whether the pruner ends the training here; it is not called after the last epoch."""
        judge = self._plan.judge
        epochs = self._record.epochs
        if judge is None or not epochs or self._is_last():
            return False
        return judge(tuple(epochs))

    def _train_steps(self, epoch: int) -> Mapping[str, Any]:
        model = self._plan.model
        logs: Mapping[str, Any] = {}
        if self._position.step_in_epoch > 0 and self._position.logs is not None:
            logs = self._position.logs
        while self._more_steps() and not (model.stop_training and self._position.step_in_epoch > 0):
            begin = self._position.step_in_epoch
            end = begin + self._block_size()
            batch = runners.callback_step(model, begin)
            if self._listening:
                self._callbacks.on_train_batch_begin(batch)
            started = time.monotonic()
            ran, reported = self._blocks.run(self._train, self._position.step, epoch, begin, end)
            if not ran:
                break
            logs = reported
            if self._listening:
                self._callbacks.on_train_batch_end(batch + model.steps_per_execution - 1, logs)
            else:
                self._block_steps = runners.adapted_block(self._block_steps, ran, logs, started)
                for bar in self._bars:
                    bar.on_train_batch_end(batch + ran - 1, to_python(logs))
            self._position = replace(self._position.after(ran), stopped=bool(model.stop_training))
            self._after_block(logs)
        return logs

    def _more_steps(self) -> bool:
        """Return whether the epoch may have another step; True if its length is unknown."""
        return self._position.step_in_epoch < (self._train.reader.limit or runners.NO_END)

    def _after_block(self, logs: Mapping[str, Any]) -> None:
        self._state.first_step_done()
        self._observer.steps_done(self._position)
        stopping = self._observer.stop_requested()
        due = self._more_steps() and self._observer.is_due(self._position)
        if stopping or due:
            self._position = replace(self._position, logs=to_python(logs))
            self._observer.keep(self._snapshot())
        if stopping:
            raise Stopped

    def _block_size(self) -> int:
        """Return the steps of the next graph call: to the epoch's end, the next snapshot, or about 0.2 s."""
        remaining = (self._train.reader.limit or runners.NO_END) - self._position.step_in_epoch
        if self._listening or self._train.one.calls_python:
            return int(min(self._plan.model.steps_per_execution, remaining))
        return max(
            1, min(remaining, self._block_steps, self._observer.steps_until_due(self._position))
        )

    def _validate(
        self, validation: Validation, epoch: int, snapshot: Snapshot
    ) -> Mapping[str, float]:
        """Return the validation's metrics; a stop keeps ``snapshot``, taken before it."""

        def check_stop() -> None:
            if self._observer.stop_requested():
                self._observer.keep(snapshot)
                raise Stopped

        def measured() -> None:
            validation.end_epoch(epoch)
            self._measured = self._weights_digest()

        return validation.run(epoch, self._callbacks, check_stop, measured)

    def _finish(self) -> None:
        model = self._plan.model
        if self._position.epoch == self._plan.epochs:
            self._averages.finalize()
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(self._trained)
        self._callbacks.on_train_end(self._position.logs)
        # Last: until the callbacks have finished, a new attempt may have to remove the rows of this one.
        self._state.after_train_end()

    def _snapshot(self) -> Snapshot:
        epochs = self._record.epochs
        between = self._position.step_in_epoch == 0 and epochs
        history = [record.metrics for record in epochs]
        return self._state.capture(self._position, history[-1] if between else {}, history)


def _refuse_uncompiled(model: keras.Model) -> None:
    if not model.compiled:
        raise FactoryError(
            f"the model, {type(model).__name__} {model.name!r}, is not compiled; call "
            "model.compile(optimizer=…, loss=…) before it is trained"
        )
