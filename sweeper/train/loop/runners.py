"""Runners of steps: one step as a graph function, and one runner for each way of reading the data.

Everything is traced before the first step runs, so a restore finds all variables (optimizer slots,
metrics, layers of unbuilt models).

`IndexRunner` and `DatasetRunner` run any number of steps in a loop inside the graph. The loop is the same graph for
one step and for an epoch, so the bounds of a block of steps do not affect the result; they only decide
when callbacks are called.

Tracing creates all variables before training starts. But TensorFlow traces a function twice if the
first trace creates variables, and a trace is the longest part of a short trial's start. Keras can
create the variables from shapes alone, and a `TrainingStep` knows what its optimizer trains. Otherwise
(a model that is built by its first batch, a ``train_step`` of the user's own) the trace creates them.
A step that runs eagerly creates variables when it first runs. A resumed training therefore runs one
step, whose other changes the restore overwrites.

Arrays stay in the host's memory, and a batch is gathered there, as in ``fit``: GPU memory is needed for the
model, and a data set that fills it would end the trial at its first step.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.errors import DataError, FactoryError
from sweeper.inspection.sorts import class_name
from sweeper.train.data import Data, DataSource, PartName
from sweeper.train.loop.logs import log_shapes, to_python
from sweeper.train.randomness.tracing import refuse_hidden_randomness
from sweeper.train.replicas import ReplicatedStep
from sweeper.train.sources.arrays import ArraySource, is_ragged
from sweeper.train.sources.runner import Logs, Reader, Runner, Shapes
from sweeper.train.sources.tfdata import TfDataSource, ops
from sweeper.train.state.variables import Reach
from sweeper.train.step import TrainingStep
from sweeper.train.step_callbacks import StepCallback

_LOG = logging.getLogger(__name__)

_STRING = tf.string.as_datatype_enum
_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
StepFunction = Callable[[Any], Logs]


class GraphStep:
    """The step for one batch: a graph function, or a Python function for an eager model.

    ``batch_of`` returns the batch for the function's arguments. For a loop of steps, ``zeros`` are the logs'
    initial values, and ``invariants`` their shapes in all steps.
    """

    def __init__(
        self,
        model: keras.Model,
        step: StepFunction,
        batch_of: Callable[..., Any],
        data: PartName,
    ) -> None:
        self.eager = bool(model.run_eagerly)
        self.calls_python = self.eager
        self.reads_texts_as_numbers = False
        self.log_shapes: Shapes | None = None
        self.zeros: Any = None
        self.invariants: Any = None
        self._model = model
        self._step = step
        self._batch_of = batch_of
        self._call: Any = self._on_arguments
        self.replicas = ReplicatedStep(model, step, data)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def trace(self, signature: Sequence[Any]) -> None:
        """Trace for arguments of ``signature``; do nothing for an eager model."""
        if self.eager:
            return
        # Calls of a concrete function look up no trace.
        self._call = traced = tf.function(
            self._on_arguments,
            input_signature=list(signature),
            autograph=False,
            jit_compile=self._model.jit_compile or None,
        ).get_concrete_function()
        kind = "validation" if self._step.__name__ == "test_step" else "training"
        refuse_hidden_randomness(traced.graph, f"the {kind} step")
        graph = traced.graph.as_graph_def()
        self.calls_python = any(node.op in _PYTHON for node in ops(graph))
        self.reads_texts_as_numbers = any(
            node.op == "Cast" and node.attr["SrcT"].type == _STRING for node in ops(graph)
        )
        outputs = traced.structured_outputs
        if not isinstance(outputs, dict):
            owner = type(getattr(self._step, "__self__", self._model)).__name__
            raise FactoryError(
                f"{self._step.__name__} of {owner} returned a {type(outputs).__name__}; "
                "expected a dict of metric names to values"
            )
        self.log_shapes = log_shapes(outputs)
        self.invariants = tf.nest.map_structure(lambda spec: spec.shape, outputs)
        self.zeros = tf.nest.map_structure(_zeros, outputs)

    def _on_arguments(self, *arguments: Any) -> Any:
        return self.replicas(self._batch_of(*arguments))


def _zeros(spec: Any) -> Any:
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)


_HOST = "/device:CPU:0"


def gathering(arrays: Any) -> Callable[[Any], Any]:
    """Return a function that returns the rows of every array at given indices."""
    with tf.device(_HOST):
        tensors = tf.nest.map_structure(
            lambda array: array if array is None or is_ragged(array) else tf.constant(array), arrays
        )

    def gather(indices: Any) -> Any:
        with tf.device(_HOST):
            return tf.nest.map_structure(
                lambda tensor: None if tensor is None else tf.gather(tensor, indices), tensors
            )

    return gather


def make_runner(
    model: keras.Model,
    source: DataSource,
    step: StepFunction,
    steps_per_epoch: int | None,
    *,
    continues: bool = True,
) -> Runner:
    """Return the runner of ``step``, a ``train_step`` or ``test_step``, for ``source``; see `Reader`."""
    reader = Reader(source, steps_per_epoch, continues=continues)
    if isinstance(source, ArraySource):
        return IndexRunner(reader, GraphStep(model, step, gathering(source.packed), source.name))
    spec = source.spec()
    one = GraphStep(model, step, spec.pack, source.name)
    if isinstance(source, TfDataSource):
        return DatasetRunner(reader, one, spec)
    return BatchRunner(reader, one, spec)


class IndexRunner(Runner):
    """Runner over an `ArraySource`, whose rows are gathered in the graph."""

    source: ArraySource
    one: GraphStep

    def __init__(self, reader: Reader, one: GraphStep) -> None:
        super().__init__(reader, one)
        self._order: tuple[int, Any] | None = None
        self._block: Any = None
        steps = self.source.steps
        one.replicas.check_arrays(
            self.source.samples,
            self.source.batch_size,
            last=reader.continues or reader.within(steps) == steps,
        )

    def example(self) -> Any:
        return self.source.arrays

    def building_batch(self) -> Any:
        size = self.source.batch_size
        return tf.nest.map_structure(
            lambda array: None if array is None else array[:size], self.source.packed
        )

    def trace(self) -> None:
        if self.one.eager:
            return
        # As in ``fit``, the size is static if all batches have it: a stateful layer's shape may depend on it.
        rows = min(self.source.batch_size, self.source.samples)
        static = (rows if self.source.samples % rows == 0 else None,)
        self.one.trace([tf.TensorSpec(static, tf.int64)])
        indices = tf.TensorSpec((None,), tf.int64)
        scalar = tf.TensorSpec((), tf.int64)

        def block(order: Any, begin: Any, end: Any) -> Any:
            size = tf.constant(self.source.batch_size, tf.int64)

            def body(step: Any, _: Any) -> Any:
                last = tf.minimum((step + 1) * size, tf.size(order, out_type=tf.int64))
                batch = order[step * size : last]
                batch.set_shape(static)
                return step + 1, self.one(batch)

            return tf.while_loop(
                lambda step, _: step < end,
                body,
                (begin, self.one.zeros),
                shape_invariants=(tf.TensorShape([]), self.one.invariants),
                parallel_iterations=1,
            )[1]

        self._block = tf.function(block, input_signature=[indices, scalar, scalar], autograph=False)
        self._block.get_concrete_function()

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        end = self.reader.within(end)
        logs: Logs = {}
        length = self.source.steps
        if self.reader.continues:
            length = self.reader.limit or 0
            epoch -= self.reader.first_epoch
        position = epoch * length + begin
        last = epoch * length + end
        while position < last:
            pass_, step = divmod(position, self.source.steps)
            stop = min(self.source.steps, step + last - position)
            logs = self._run_in_pass(pass_, step, stop)
            position += stop - step
        return max(0, end - begin), logs

    def _run_in_pass(self, pass_: int, begin: int, end: int) -> Logs:
        if self._order is None or self._order[0] != pass_:
            self._order = (pass_, tf.constant(self.source.order(pass_), tf.int64))
        order = self._order[1]
        if not self.one.eager:
            return self._block(  # type: ignore[no-any-return]
                order, tf.constant(begin, tf.int64), tf.constant(end, tf.int64)
            )
        logs: Logs = {}
        size = self.source.batch_size
        for step in range(begin, end):
            logs = self.one(order[step * size : (step + 1) * size])
        return logs


class BatchRunner(Runner):
    """Runner over batches from Python code, with one graph call for each batch."""

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        logs: Logs = {}
        for step in range(begin, end):
            batch = self.reader.next(epoch, step)
            if batch is None:
                return step - begin, logs
            label = f"batch {step + 1} of epoch {epoch + 1}"
            tensors = self._spec.tensors(batch, label)
            with self.one.replicas.checked(label):
                logs = self.one(*tensors)
        return end - begin, logs


class DatasetRunner(Runner):
    """Runner over a ``tf.data`` iterator, from which the graph draws."""

    _block: Any = None

    def trace(self) -> None:
        super().trace()
        if self.one.eager:
            return

        def block(iterator: Any, limit: Any) -> Any:
            def body(ran: Any, _: Any, logs: Any) -> Any:
                drawn = iterator.get_next_as_optional()
                more = drawn.has_value()
                logs = tf.cond(
                    more,
                    lambda: self.one(*self._spec.leaves(drawn.get_value())),
                    lambda: logs,
                )
                return ran + tf.cast(more, tf.int64), more, logs

            ran, _, logs = tf.while_loop(
                lambda ran, more, _: tf.logical_and(more, ran < limit),
                body,
                (tf.constant(0, tf.int64), tf.constant(True), self.one.zeros),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), self.one.invariants),
                parallel_iterations=1,
            )
            return ran, logs

        iterator = tf.data.IteratorSpec(self._spec.structure)
        self._block = tf.function(
            block, input_signature=[iterator, tf.TensorSpec((), tf.int64)], autograph=False
        )
        self._block.get_concrete_function()

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        logs: Logs = {}
        step = begin
        end = self.reader.within(end)
        while step < end:
            opened = self.reader.at(epoch, step)
            if opened is None:
                break
            with self.one.replicas.checked():
                ran, latest = self._run_in_pass(opened, end - step)
            self.reader.drew(ran)
            logs = latest if ran else logs
            step += ran
            if step < end and not self.reader.exhausted():
                break
        return step - begin, logs

    def _run_in_pass(self, opened: Iterator[Any], limit: int) -> tuple[int, Logs]:
        logs: Logs = {}
        if not self.one.eager:
            ran, logs = self._block(opened, tf.constant(limit, tf.int64))
            return int(ran), logs
        ran = 0
        for batch in islice(opened, limit):
            logs = self.one(*self._spec.leaves(batch))
            ran += 1
        return ran, logs


def trace(runner: Runner) -> None:
    """Trace a runner's graphs; errors about its data name them.

    Raises:
        DataError: The loss needs targets that are not given, or a computation needs numbers and gets texts.
    """
    name = runner.source.name
    example = runner.example()
    parts = example if isinstance(example, tuple) else (example,)
    try:
        runner.trace()
    except ValueError as error:
        if "None values not supported" in str(error) and (*parts, None)[1] is None:
            raise DataError(
                f"{name} is given without targets (y), which the loss of the model needs"
            ) from error
        raise
    if runner.one.reads_texts_as_numbers:
        # Such a step would fail with an error that does not name the data.
        texts = [name.array(f"[{i}]") for i, part in enumerate(parts) if _has_texts(part)]
        raise DataError(
            f"{' and '.join(texts) or name} has texts where the model, its loss or a metric needs numbers; give "
            "numbers, or begin the model with a layer for texts, such as keras.layers.TextVectorization"
        )


def _has_texts(nest: Any) -> bool:
    texts = (np.dtype(object), tf.string)
    return any(getattr(leaf, "dtype", None) in texts for leaf in tf.nest.flatten(nest))


class Blocks:
    """Runner of blocks of steps that calls `StepCallback`s in between; ``stop_training`` ends a block."""

    def __init__(self, model: keras.Model, callbacks: Iterable[Any]) -> None:
        self._model = model
        self._callbacks = [c for c in callbacks if isinstance(c, StepCallback)]

    def run(
        self, runner: Runner, step: int, epoch: int, begin: int, end: int
    ) -> tuple[int, Mapping[str, Any]]:
        """Run the steps of ``epoch`` from ``begin`` to ``end``, after ``step`` steps of the training; see `Runner.run`."""
        if not self._callbacks:
            return runner.run(epoch, begin, end)
        ran = 0
        logs: Mapping[str, Any] = {}
        while begin + ran < end:
            steps = [callback.next_step(step + ran) for callback in self._callbacks]
            part = min([end - begin - ran, *(n - step - ran for n in steps if n is not None)])
            count, reported = runner.run(epoch, begin + ran, begin + ran + part)
            ran += count
            logs = reported if count else logs
            for callback, due in zip(self._callbacks, steps, strict=True):
                if count and due == step + ran:
                    callback.function(due, to_python(logs), callback.model)
            if count < part or self._model.stop_training:
                break
        return ran, logs


_BLOCK_SECONDS = 0.2
"""Target duration of a block of steps in seconds, and so the delay of a request to stop."""

NO_END = 1 << 40
"""Number larger than the steps of any epoch."""


def adapted_block(steps: int, ran: int, logs: Logs, started: float) -> int:
    """Return the size of the block after one of ``steps``, of which ``ran``; it does not affect results."""
    # Wait for the steps, which TensorFlow may still compute.
    for value in logs.values():
        np.asarray(value)
    seconds = max(time.monotonic() - started, 1e-6)
    target = round(_BLOCK_SECONDS * ran / seconds)
    return max(1, min(target, steps * 16, 1 << 20))


def callback_step(model: keras.Model, step: int) -> int:
    """Return the step number that ``fit`` reports, which counts a short last execution as complete."""
    execution = int(model.steps_per_execution)
    return -(-step // execution) * execution


_NOT_FROM_SHAPES = (ValueError, TypeError, RuntimeError)
"""Errors that Keras raises if shapes and dtypes are wrong or insufficient."""


def build_before_tracing(
    model: keras.Model, example: Any, step: TrainingStep | None = None
) -> None:
    """Create the variables of the model's compiled metrics and of its optimizer, if it is built.

    If Keras cannot, the reason is logged, and the trace creates them. Other errors, such as one in
    a metric of the user's, are raised. Of ``example``, a tuple of arrays, only shapes and dtypes are used.
    """
    arrays = example if isinstance(example, tuple) else None
    if model._distribute_strategy is not None:
        _build_in_scope(model, arrays)
        _refuse_unbuilt(model, step)
        return
    if arrays is None:
        return
    if model.run_eagerly or not all(layer.built for layer in model._flatten_layers()):
        return
    if step is not None and type(step) is not TrainingStep:
        _build_optimizer_of(step)
    elif type(model).train_step is keras.Model.train_step and (*arrays, None)[1] is not None:
        _build_from_shapes(model, arrays)


def _build_from_shapes(model: keras.Model, arrays: tuple[Any, ...]) -> None:
    batch = tf.nest.map_structure(lambda array: None if array is None else array[:2], arrays)
    # The trace reports wrong shapes and dtypes, because it has whole batches.
    # With a strategy, `fit` creates the variables by this private method.
    try:
        model._symbolic_build(data_batch=keras.utils.unpack_x_y_sample_weight(batch))
    except _NOT_FROM_SHAPES as error:
        _LOG.debug("%r is built by its trace, not from shapes: %s", model.name, error)


def _build_optimizer_of(step: TrainingStep) -> None:
    """Create the slots that the step's first trace would create."""
    if step._overrides("train_step", "trainable_variables", "update"):
        return
    # A method of the step may unfreeze layers before it applies gradients.
    if not all(layer.trainable for layer in step.model._flatten_layers()):
        return
    optimizer = step.optimizer
    variables = step.trainable_variables()
    if variables and not optimizer.built:
        optimizer.build(variables)


def _build_in_scope(model: keras.Model, arrays: Any) -> None:
    """Create variables in the scope of the model's strategy, as ``fit`` does.

    A trace would create an optimizer's slots on one replica only.
    """
    with model.distribute_strategy.scope():
        if arrays is not None:
            _build_from_shapes(model, arrays)
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def _refuse_unbuilt(model: keras.Model, step: TrainingStep | None) -> None:
    """Raise FactoryError for an optimizer whose slots a trace would create on one replica only."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    for reached in Reach(model, step).now.optimizers:
        path = reached.path
        optimizer = reached.value
        if optimizer.built:
            continue
        where = "on_bind() of the step" if path.startswith("step") else "the model factory"
        raise FactoryError(
            f"{path}, a {class_name(type(optimizer))}, is not built, and on the "
            f"{strategy.num_replicas_in_sync} replicas of the {type(strategy).__name__} its slots "
            "must exist before the first step: call its build(variables), with the variables "
            f"that it trains, in {where}, or use one optimizer"
        )


def take_one_step(model: keras.Model, train_step: Callable[[Any], Any], batch: Any) -> None:
    """Run ``train_step`` of a model that runs eagerly once, for the variables that it creates."""

    def tensor(array: Any) -> Any:
        composite = isinstance(array, tf.SparseTensor | tf.RaggedTensor)
        return array if array is None or composite else tf.convert_to_tensor(array)

    ReplicatedStep(model, train_step)(tf.nest.map_structure(tensor, batch))


def create_variables_of_training(
    model: keras.Model, step: TrainingStep | None, data: Data, source: DataSource
) -> None:
    """Create the variables that only a training step creates: trace one, or run it if eager."""
    train_step = (model if step is None else step).train_step
    runner = make_runner(model, source, train_step, data.steps_per_epoch)
    build_before_tracing(model, runner.example(), step)
    runner.trace()
    if model.run_eagerly:
        take_one_step(model, train_step, runner.building_batch())
