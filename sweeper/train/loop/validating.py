"""Validation: test steps over a pass of data, by the model's ``evaluate``, as ``fit`` validates.

``fit`` calls ``model.evaluate`` after an epoch, with the validation data, its own callbacks and the private argument by
which Keras's ``evaluate`` reads data that ``fit`` has opened. An override may measure more, or change what it returns.
So it is called in the same way, and its call of Keras's ``evaluate`` with this argument runs the test steps here. A call
without the argument is another evaluation, which is Keras's.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from sweeper.errors import FactoryError
from sweeper.support.shown import shown_value
from sweeper.train.keras_methods import is_overridden, replacing_keras, shown_method
from sweeper.train.loop.logs import metrics_or_logs, to_python
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.loop.runners import NO_END, adapted_block, callback_step
from sweeper.train.sources.runner import Logs, Runner
from sweeper.train.state.callbacks import listens_to_batches

_CACHED = "_use_cached_eval_dataset"
"""Argument of Keras's ``evaluate``: whether it reads the data that ``fit`` has opened for it."""


def _nothing() -> None:
    """Do nothing."""


class Validation:
    """Validation of a model by test steps.

    Args:
        plan: The training.
        test: Runner of the test steps.
        data: Returns the data of the steps, as the user gave them: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        limit: Maximum number of batches, None for all.
    """

    def __init__(
        self, plan: TrainingPlan, test: Runner, data: Callable[[], Any], limit: int | None
    ) -> None:
        self._plan = plan
        self._test = test
        self._data = data
        self._limit = limit
        self._thread = threading.get_ident()
        self._epoch = 0
        self._between = self._measured = _nothing
        self._measures = False
        self.is_overridden = is_overridden(plan.model, "evaluate")
        """True if an override may measure more than the test steps report."""

    def run(
        self,
        epoch: int,
        callbacks: keras.callbacks.CallbackList | None = None,
        between: Callable[[], None] = _nothing,
        measured: Callable[[], None] = _nothing,
    ) -> dict[str, Any]:
        """Run the test steps of ``epoch``, and return the logs.

        Args:
            epoch: Number of the epoch.
            callbacks: Called as by ``fit``; none by default.
            between: Called after each block of steps but the last.
            measured: Called after the last step, before ``on_test_end`` of the callbacks.

        Raises:
            FactoryError: An override of ``evaluate`` returned no dict, or read the data twice.
        """
        model = self._plan.model
        self._epoch = epoch
        self._between = between
        self._measured = measured
        self._measures = False
        self._thread = threading.get_ident()
        if callbacks is None:
            callbacks = keras.callbacks.CallbackList(model=model)
        if not self.is_overridden:
            logs = self._run_steps(callbacks)
        else:
            size = self._plan.data.validation_batch_size or self._plan.data.batch_size
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._data())
            with replacing_keras("evaluate", self):
                logs = model.evaluate(
                    x=x,
                    y=y,
                    sample_weight=weight,
                    batch_size=size,
                    steps=self._limit,
                    callbacks=callbacks,
                    return_dict=True,
                    **{_CACHED: True},
                )
        if not isinstance(logs, Mapping):
            raise FactoryError(
                f"{shown_method(model, 'evaluate')} was called with return_dict=True, as model.fit calls it, and "
                f"returned {shown_value(logs)}; expected a dict of metric names to values"
            )
        return dict(logs)

    def end_epoch(self, epoch: int) -> None:
        """Call the data source's hook for the end of a pass."""
        self._test.reader.end_epoch(epoch)

    def stands_for(self, model: keras.Model, named: Mapping[str, Any]) -> bool:
        """Return whether a call of Keras's ``evaluate`` of ``model`` is this validation."""
        here = threading.get_ident() == self._thread
        return model is self._plan.model and here and bool(named.get(_CACHED))

    def __call__(
        self,
        *_: Any,
        verbose: Any = "auto",
        callbacks: Any = None,
        return_dict: bool = False,
        **__: Any,
    ) -> Any:
        """Run the test steps, in the place of Keras's ``evaluate``, which ignores ``x`` and ``y`` in this call."""
        model = self._plan.model
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=self._test.reader.steps,
                model=model,
            )
        logs = self._run_steps(callbacks)
        return logs if return_dict else model._flatten_metrics_in_order(logs)

    def _run_steps(self, callbacks: keras.callbacks.CallbackList) -> dict[str, Any]:
        plan = self._plan
        model = plan.model
        test = self._test
        listening = listens_to_batches(callbacks.callbacks, test=True)
        if self._measures:
            raise FactoryError(
                f"{shown_method(model, 'evaluate')} calls keras.Model.evaluate a second time on the data of this "
                f"validation; give a further evaluation its own data, without {_CACHED}"
            )
        self._measures = True
        callbacks.on_test_begin()
        logs: Logs = {}
        plan.trainer.reset_metrics()
        model.stop_evaluating = False
        test.reader.begin_epoch(self._epoch)
        steps = test.reader.limit or NO_END
        begin = 0
        block = 1
        while begin < steps and not model.stop_evaluating:
            if listening or test.one.calls_python:
                block = int(model.steps_per_execution)
            if listening:
                callbacks.on_test_batch_begin(callback_step(model, begin))
            started = time.monotonic()
            ran, reported = test.run(self._epoch, begin, min(begin + block, steps))
            if not ran:
                break
            logs = reported
            if listening:
                callbacks.on_test_batch_end(callback_step(model, begin) + block - 1, logs)
            else:
                block = adapted_block(block, ran, logs, started)
            begin += ran
            if begin < steps:
                self._between()
        self._measured()
        metrics = to_python(metrics_or_logs(plan.trainer, logs))
        callbacks.on_test_end(metrics)
        return metrics
