"""A lane's runner: the training loop asks it for steps, and it takes them with the other lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.errors import LanesError
from sweeper.lanes.block import StepRequest
from sweeper.lanes.scheduler import Lane
from sweeper.lanes.step import Kind, LaneStep
from sweeper.train.data import DataSource
from sweeper.train.loop.runners import IndexRunner, StepFunction
from sweeper.train.sources.arrays import ArraySource, is_ragged
from sweeper.train.sources.runner import Logs, Runner, Shapes
from sweeper.train.state.callbacks import listens_to_batches

_OUT = "; leave out lanes="


def runner_of(lane: Lane) -> Callable[..., Runner]:
    """Return what makes the runners of ``lane``, in place of `make_runner`."""

    def make(
        model: keras.Model,
        source: DataSource,
        step: StepFunction,
        *,
        steps_per_epoch: int | None = None,
        goes_on: bool = True,
        name: str = "train",
        notice: Callable[[str], None] = lambda _message: None,
    ) -> Runner:
        del notice
        arrays = checked(model, source, step, name)
        return LaneRunner(lane, model, arrays, step, steps_per_epoch, goes_on=goes_on)

    return make


class LaneRunner(IndexRunner):
    """Runs consecutive steps over an `ArraySource` together with the steps of other lanes."""

    def __init__(
        self,
        lane: Lane,
        model: keras.Model,
        source: ArraySource,
        step: StepFunction,
        steps_per_epoch: int | None,
        *,
        goes_on: bool,
    ) -> None:
        self._arrays = lane.arrays(source.packed)
        super().__init__(
            model,
            source,
            step,
            self._arrays,  # type: ignore[arg-type]
            steps_per_epoch=steps_per_epoch,
            goes_on=goes_on,
        )
        self._lane = lane
        self._model = model
        self._kind: Kind = "test" if step.__name__ == "test_step" else "train"
        self._step: Any = None

    @property
    def log_shapes(self) -> Shapes | None:
        shapes: Shapes | None = None if self._step is None else self._step.log_shapes
        return shapes

    @property
    def block_steps(self) -> int | None:
        """Return the steps in a block, the same number for all lanes of a graph: otherwise each would cut the others' blocks."""
        return self._lane.block_steps(self._step)

    def trace(self) -> None:
        self._step = LaneStep(self._model, _specified(self.source.packed), self._kind)
        self._lane.prepare(self._step)

    def _run_in_pass(self, pass_: int, begin: int, end: int) -> Logs:
        logs: Logs = {}
        order = self._order_of(pass_)
        size = self.source.batch_size
        whole = len(order) // size
        while begin < end:
            rows = order[begin * size : min(end, whole) * size].reshape(-1, size)
            if begin >= whole:
                rows = order[begin * size :][np.newaxis]
            taken, logs = self._lane.run_steps(StepRequest(self._step, self._arrays.tensors, rows))
            begin += taken
        return logs

    def _order_of(self, pass_: int) -> Any:
        if self._order is None or self._order[0] != pass_:
            self._order = (pass_, self.source.order(pass_))
        return self._order[1]


def checked(model: keras.Model, source: DataSource, step: StepFunction, name: str) -> ArraySource:
    """Return the source; refuse what has no fused form. What only a trace tells `LaneStep` refuses.

    Raises:
        LanesError: The reason, and what to do.
    """
    shown = f"the model {model.name!r}"
    own = [
        method
        for method in ("train_step", "test_step", "make_train_function", "make_test_function")
        if getattr(type(model), method) is not getattr(keras.Model, method)
    ]
    if getattr(step, "__self__", model) is not model:
        msg = f"lanes cannot be fused where step= is given{_OUT}, or step="
    elif own:
        msg = f"{shown} has a {own[0]} of its own, which cannot be fused{_OUT}"
    elif model.run_eagerly:
        msg = f"{shown} is compiled with run_eagerly=True, and only graphs can be fused{_OUT}"
    elif model._compile_config.config.get("jit_compile") is True:
        msg = f"{shown} is compiled with jit_compile=True, which has no fused form{_OUT}"
    elif model.distribute_strategy.num_replicas_in_sync > 1:
        msg = f"{shown} trains on several replicas, which lanes cannot{_OUT}, or strategy="
    elif not isinstance(source, ArraySource):
        msg = f"Data({name}=…) is a {type(source).__name__}; lanes take arrays only{_OUT}"
    elif any(is_ragged(each) for each in tf.nest.flatten(source.packed)):
        msg = f"Data({name}=…) holds a ragged tensor; lanes take arrays of one shape only{_OUT}"
    else:
        return source
    raise LanesError(msg)


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that want to be called for every batch.

    Raises:
        LanesError: One is named.
    """
    for callback in callbacks:
        if any(listens_to_batches([callback], test=test) for test in (False, True)):
            msg = (
                f"the callback {type(callback).__name__} is called for every batch, and lanes take "
                f"many batches at once; use sweeper.EverySteps{_OUT.replace(';', ', or')}"
            )
            raise LanesError(msg)


def _specified(packed: Any) -> Any:
    return tf.nest.map_structure(
        lambda array: (
            None if array is None else tf.TensorSpec((None, *array.shape[1:]), array.dtype)
        ),
        packed,
    )
