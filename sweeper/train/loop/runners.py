"""Runners of steps, one for each way of passing a batch to the step.

- `IndexRunner`: arrays, gathered by index inside the graph;
- `DatasetRunner`: a ``tf.data`` iterator, drawn from inside the graph;
- `BatchRunner`: everything that Python code makes, handed over batch by batch.

In the first two a loop in the graph runs as many steps as asked for. The loop is the same graph for
one step and for an epoch of them, so where a block of steps begins and ends changes no bit of the
result; only who is called in between differs.

Gathering a batch inside the graph is fastest from the device that trains. But a GPU's memory is for
the model, and a data set that fills it ends the trial at its first step. Where the arrays lie
changes no bit: a gathered batch is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sweeper.train.codec import Json, Tensors
from sweeper.train.data import DataSource
from sweeper.train.loop.steps import GraphStep, StepFunction
from sweeper.train.sources.arrays import ArraySource, is_ragged
from sweeper.train.sources.batches import BatchSpec
from sweeper.train.sources.runner import Logs, Reader, Runner, Shapes
from sweeper.train.sources.tfdata import TfDataPass, TfDataSource

MOST_ON_GPU = 2**30
"""Maximum size in bytes of a data set on a GPU."""

_SHARE = 4
"""Maximum share of a process's limited GPU memory for a data set."""

_HOST = "/device:CPU:0"


class ArrayPlacement:
    """Tensors of arrays on the device chosen by `put_arrays`, which gathers rows there.

    Args:
        arrays: A structure of arrays and Nones.
        device: TensorFlow's name of the device; None to leave it to TensorFlow.
    """

    def __init__(self, arrays: Any, device: str | None) -> None:
        self.device = device
        with self._there():
            self._tensors = tf.nest.map_structure(
                lambda array: array if array is None or is_ragged(array) else tf.constant(array),
                arrays,
            )

    def gather(self, indices: Any) -> Any:
        """Return the rows with these indices of every array."""
        with self._there():
            return tf.nest.map_structure(
                lambda tensor: None if tensor is None else tf.gather(tensor, indices), self._tensors
            )

    def _there(self) -> AbstractContextManager[object]:
        return nullcontext() if self.device is None else tf.device(self.device)


def put_arrays(arrays: Any, name: str, notice: Callable[[str], None]) -> ArrayPlacement:
    """Place ``arrays`` on the GPU if there is one and they are small, otherwise in host memory.

    Args:
        arrays: A structure of arrays and Nones.
        name: What the user calls the data.
        notice: Called with where they stay in the host's memory although there is a GPU.
    """
    room = _room_on_gpu()
    size = sum(_size(array) for array in tf.nest.flatten(arrays) if array is not None)
    if room is None or size <= room:
        return ArrayPlacement(arrays, None)
    notice(
        f"the {name} data have {size / 2**20:,.0f} MiB, and at most {room / 2**20:,.0f} MiB are "
        "placed on a GPU; they stay in the host's memory, and each batch is copied from there"
    )
    return ArrayPlacement(arrays, _HOST)


def _size(array: Any) -> int:
    parts = tf.nest.flatten(array, expand_composites=True)
    return sum(int(np.prod(part.shape)) * tf.as_dtype(part.dtype).size for part in parts)


def _room_on_gpu() -> int | None:
    """Return the bytes for a data set on the first GPU; None without a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    limits = tf.config.get_logical_device_configuration(gpus[0]) or ()
    megabytes = [each.memory_limit for each in limits if each.memory_limit is not None]
    return min([MOST_ON_GPU, *(int(each * 2**20) // _SHARE for each in megabytes)])


def make_runner(
    model: keras.Model,
    source: DataSource,
    step: StepFunction,
    *,
    steps_per_epoch: int | None = None,
    goes_on: bool = True,
    name: str = "train",
    notice: Callable[[str], None] = lambda _message: None,
) -> Runner:
    """Return the runner for ``source``.

    Args:
        model: A compiled model.
        source: Where the batches come from.
        step: ``model.train_step`` or ``model.test_step``.
        steps_per_epoch: Steps in an epoch at most; None for one pass.
        goes_on: See `Reader`.
        name: What the user calls the data, for errors.
        notice: Called with what the user should know of where the data are kept.
    """
    if isinstance(source, ArraySource):
        kept = put_arrays(source.packed, name, notice)
        return IndexRunner(
            model, source, step, kept, steps_per_epoch=steps_per_epoch, goes_on=goes_on
        )
    if not isinstance(source, _Specified):
        msg = f"{type(source).__name__} does not describe its batches; give it a method spec()"
        raise TypeError(msg)
    reader = Reader(source, steps_per_epoch, goes_on=goes_on, name=name, notice=notice)
    if isinstance(source, TfDataSource):
        return DatasetRunner(model, source, step, reader)
    return BatchRunner(model, source, step, reader)


class IndexRunner:
    """Runner over an `ArraySource`, whose rows are gathered in the graph.

    Args:
        model: A compiled model.
        source: Where the batches come from.
        step: ``model.train_step`` or ``model.test_step``.
        kept: Where the source's arrays are kept.
        steps_per_epoch: Steps in an epoch; None for one pass.
        goes_on: Whether a pass goes on from epoch to epoch, with ``steps_per_epoch``.
    """

    def __init__(
        self,
        model: keras.Model,
        source: ArraySource,
        step: StepFunction,
        kept: ArrayPlacement,
        *,
        steps_per_epoch: int | None = None,
        goes_on: bool = True,
    ) -> None:
        self.source = source
        self._limit = steps_per_epoch
        self._goes_on = goes_on and steps_per_epoch is not None
        self._order: tuple[int, Any] | None = None
        self._one = GraphStep(model, step, kept.gather)
        self._block: Any = None
        if self._one.replicas is not None:
            self._one.replicas.rule.check_arrays(
                source.samples,
                source.batch_size,
                last=self._goes_on or (self._limit or source.steps) >= source.steps,
            )

    @property
    def steps(self) -> int | None:
        if self._goes_on or self._limit is None:
            return self._limit or self.source.steps
        return min(self._limit, self.source.steps)

    @property
    def limit(self) -> int | None:
        return self.steps

    @property
    def one_by_one(self) -> bool:
        return self._one.calls_python

    @property
    def log_shapes(self) -> Shapes | None:
        return self._one.log_shapes

    @property
    def reader(self) -> Reader | None:
        return None

    @property
    def kind(self) -> str:
        return type(self.source).__name__

    def example(self) -> Any:
        return self.source.arrays

    def trial_batch(self) -> Any:
        size = self.source.batch_size
        return tf.nest.map_structure(
            lambda array: None if array is None else array[:size], self.source.packed
        )

    def trace(self) -> None:
        if self._one.eager:
            return
        indices = tf.TensorSpec((None,), tf.int64)
        self._one.trace([indices])
        scalar = tf.TensorSpec((), tf.int64)

        def block(order: Any, begin: Any, end: Any) -> Any:
            size = tf.constant(self.source.batch_size, tf.int64)

            def body(step: Any, _: Any) -> Any:
                last = tf.minimum((step + 1) * size, tf.size(order, out_type=tf.int64))
                return step + 1, self._one(order[step * size : last])

            return tf.while_loop(
                lambda step, _: step < end,
                body,
                (begin, self._one.zeros),
                shape_invariants=(tf.TensorShape([]), self._one.invariants),
                parallel_iterations=1,
            )[1]

        self._block = tf.function(block, input_signature=[indices, scalar, scalar], autograph=False)
        self._block.get_concrete_function()

    def begin_epoch(self, epoch: int) -> None:
        """Arrays have no hook for it."""

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        end = min(end, self.steps or end)
        if not self._goes_on:
            return max(0, end - begin), self._run_in_pass(epoch, begin, end)
        logs: Logs = {}
        at, last = epoch * (self._limit or 0) + begin, epoch * (self._limit or 0) + end
        while at < last:
            pass_, step = divmod(at, self.source.steps)
            stop = min(self.source.steps, step + last - at)
            logs = self._run_in_pass(pass_, step, stop)
            at += stop - step
        return max(0, end - begin), logs

    def end_epoch(self, epoch: int) -> None:
        """Arrays have no hook for it."""

    def capture(self, name: str, tensors: Tensors) -> Json:
        """Nothing: the order is a function of seed and position."""
        del name, tensors

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Nothing was captured."""
        del name, saved, tensors

    def describe(self) -> str:
        return self.source.describe()

    def _run_in_pass(self, pass_: int, begin: int, end: int) -> Logs:
        logs: Logs = {}
        if begin >= end:
            return logs
        order = self._order_of(pass_)
        if not self._one.eager:
            return self._block(  # type: ignore[no-any-return]
                order, tf.constant(begin, tf.int64), tf.constant(end, tf.int64)
            )
        size = self.source.batch_size
        for step in range(begin, end):
            logs = self._one(order[step * size : (step + 1) * size])
        return logs

    def _order_of(self, pass_: int) -> Any:
        if self._order is None or self._order[0] != pass_:
            indices: npt.NDArray[Any] = self.source.order(pass_)
            self._order = (pass_, tf.constant(indices, tf.int64))
        return self._order[1]


@runtime_checkable
class _Specified(Protocol):
    def spec(self) -> BatchSpec: ...


class _ReadingRunner:
    """Base of the runners over a `Reader`."""

    def __init__(
        self, model: keras.Model, source: _Specified, step: StepFunction, reader: Reader
    ) -> None:
        self._reader = reader
        self._spec = source.spec()
        self._one = GraphStep(model, step, self._spec.pack)

    @property
    def reader(self) -> Reader:
        """Reader of the source."""
        return self._reader

    @property
    def kind(self) -> str:
        return type(self._reader.source).__name__

    def example(self) -> Any:
        return self._spec.example()

    def trial_batch(self) -> Any:
        return self._spec.zeros()

    @property
    def steps(self) -> int | None:
        return self._reader.steps

    @property
    def limit(self) -> int | None:
        return self._reader.limit

    @property
    def one_by_one(self) -> bool:
        return self._one.calls_python

    @property
    def log_shapes(self) -> Shapes | None:
        return self._one.log_shapes

    def begin_epoch(self, epoch: int) -> None:
        self._reader.begin_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        self._reader.end_epoch(epoch)

    def capture(self, name: str, tensors: Tensors) -> Json:
        return self._reader.capture(name, tensors)

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        self._reader.restore(name, saved, tensors)

    def describe(self) -> str:
        return self._reader.describe()


class BatchRunner(_ReadingRunner):
    """Runner over batches from Python code, with one graph call for each batch."""

    _call: Any = None

    def trace(self) -> None:
        self._one.trace(self._spec.signature)
        self._call = self._one.specialized()

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        logs: Logs = {}
        for step in range(begin, end):
            batch = self._reader.next(epoch, step)
            if batch is None:
                return step - begin, logs
            shown = f"batch {step + 1} of epoch {epoch + 1}"
            tensors = self._spec.tensors(batch, shown)
            if self._one.replicas is not None:
                self._one.replicas.rule.check(int(tensors[0].shape[0]), shown)
            logs = self._call(*tensors)
        return end - begin, logs


class DatasetRunner(_ReadingRunner):
    """Runner over a ``tf.data`` iterator, from which the graph draws."""

    _block: Any = None

    def trace(self) -> None:
        self._one.trace(self._spec.signature)
        if self._one.eager:
            return

        def block(iterator: Any, wanted: Any) -> Any:
            def body(done: Any, _: Any, logs: Any) -> Any:
                drawn = iterator.get_next_as_optional()
                more = drawn.has_value()
                logs = tf.cond(
                    more,
                    lambda: self._one(*self._spec.leaves(drawn.get_value())),
                    lambda: logs,
                )
                return done + tf.cast(more, tf.int64), more, logs

            done, _, logs = tf.while_loop(
                lambda done, more, _: tf.logical_and(more, done < wanted),
                body,
                (tf.constant(0, tf.int64), tf.constant(True), self._one.zeros),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), self._one.invariants),
                parallel_iterations=1,
            )
            return done, logs

        iterator = tf.data.IteratorSpec(self._spec.structure)
        self._block = tf.function(
            block, input_signature=[iterator, tf.TensorSpec((), tf.int64)], autograph=False
        )
        self._block.get_concrete_function()

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        logs: Logs = {}
        at, end = begin, self._reader.within(end)
        while at < end:
            opened = self._reader.at(epoch, at)
            if opened is None:
                break
            with self._explained():
                ran, latest = self._run_in_pass(opened, end - at)
            self._reader.drew(ran)
            logs = latest if ran else logs
            at += ran
            if at < end and not self._reader.exhausted():
                break
        return at - begin, logs

    def _explained(self) -> AbstractContextManager[None]:
        replicas = self._one.replicas
        return nullcontext() if replicas is None else replicas.rule.explained()

    def _run_in_pass(self, opened: Iterator[Any], wanted: int) -> tuple[int, Logs]:
        logs: Logs = {}
        if isinstance(opened, TfDataPass) and not self._one.eager:
            ran, logs = self._block(opened.iterator, tf.constant(wanted, tf.int64))
            return int(ran), logs
        ran = 0
        for batch in islice(opened, wanted):
            logs = self._one(*self._spec.leaves(batch))
            ran += 1
        return ran, logs
