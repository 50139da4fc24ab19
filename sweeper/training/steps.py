"""Running Keras's own ``train_step`` and ``test_step``, several steps in one call of a graph.

Batches of arrays are gathered by index inside the graph, and a loop in the graph runs as many steps
as asked for. The loop is the same graph for one step and for an epoch of them, so where a block of
steps begins and ends changes no bit of the result; only who is called in between differs.

Everything is traced before the first step runs: tracing creates the variables that do not exist
yet (optimizer slots, metrics, layers of unbuilt models), so that a restore finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sweeper.errors import FactoryError, UncapturableError
from sweeper.training.data import ArraySource

__all__ = ["BlockRunner", "refuse_hidden_randomness"]

Logs = Mapping[str, Any]

_STATEFUL_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


class BlockRunner:
    """Runs consecutive steps of one epoch over an `ArraySource`.

    Args:
        model: A compiled model.
        source: Where the batches come from.
        step: ``model.train_step`` or ``model.test_step``.
    """

    def __init__(
        self, model: keras.Model, source: ArraySource, step: Callable[[Any], Logs]
    ) -> None:
        self.source = source
        self._model = model
        self._step = step
        self._order: tuple[int, Any] | None = None
        self._eager = bool(model.run_eagerly)
        self._arrays = tf.nest.map_structure(
            lambda array: None if array is None else tf.constant(array), source.arrays
        )
        self._one: Any = self._on_indices
        self._block: Any = None
        self.log_names: tuple[str, ...] | None = None
        """What the step reports, known after `trace`; None for a model that runs eagerly."""

    def trace(self) -> None:
        """Build the graphs, and with them every variable that training will change.

        Raises:
            FactoryError: The step reports something other than a dict of metrics.
            UncapturableError: A stateful random op, whose state no checkpoint could hold.
        """
        if self._eager:
            return
        indices = tf.TensorSpec((None,), tf.int64)
        self._one = tf.function(
            self._on_indices,
            input_signature=[indices],
            autograph=False,
            jit_compile=self._model.jit_compile or None,
        )
        traced = self._one.get_concrete_function()
        refuse_hidden_randomness(traced.graph.as_graph_def())
        outputs = traced.structured_outputs
        if not isinstance(outputs, dict):
            msg = (
                f"{self._step.__name__} of {type(self._model).__name__} returned a "
                f"{type(outputs).__name__}; expected a dict of metric names to values"
            )
            raise FactoryError(msg)
        self.log_names = tuple(outputs)
        first = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), outputs)
        scalar = tf.TensorSpec((), tf.int64)

        def block(order: Any, begin: Any, end: Any) -> Any:
            size = tf.constant(self.source.batch_size, tf.int64)

            def body(step: Any, _: Any) -> Any:
                last = tf.minimum((step + 1) * size, tf.size(order, out_type=tf.int64))
                return step + 1, self._one(order[step * size : last])

            return tf.while_loop(
                lambda step, _: step < end, body, (begin, first), parallel_iterations=1
            )[1]

        self._block = tf.function(block, input_signature=[indices, scalar, scalar], autograph=False)
        self._block.get_concrete_function()

    def run(self, epoch: int, begin: int, end: int) -> Logs:
        """Run steps ``begin`` to ``end`` (excluded) of ``epoch``; return the last one's logs."""
        order = self._order_of(epoch)
        if not self._eager:
            return self._block(  # type: ignore[no-any-return]
                order, tf.constant(begin, tf.int64), tf.constant(end, tf.int64)
            )
        logs: Logs = {}
        size = self.source.batch_size
        for step in range(begin, end):
            logs = self._on_indices(order[step * size : (step + 1) * size])
        return logs

    def _on_indices(self, indices: Any) -> Any:
        batch = tf.nest.map_structure(
            lambda array: None if array is None else tf.gather(array, indices), self._arrays
        )
        return self._model.distribute_strategy.run(self._step, args=(batch,))

    def _order_of(self, epoch: int) -> Any:
        if self._order is None or self._order[0] != epoch:
            indices: npt.NDArray[np.int64] = self.source.order(epoch)
            self._order = (epoch, tf.constant(indices, tf.int64))
        return self._order[1]


def refuse_hidden_randomness(graph: Any) -> None:
    """Refuse a graph with random ops whose state lives in their kernels.

    Args:
        graph: A ``GraphDef``, with its library of functions.

    Raises:
        UncapturableError: It has one; its op and name are told.
    """
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    for node in nodes:
        if node.op in _STATEFUL_RANDOM:
            msg = (
                f"the training step holds the random op {node.op} ({node.name}), whose state lives "
                "in TensorFlow's kernel where no checkpoint can reach it, so a resumed trial would "
                "draw other numbers; use keras.random with a keras.random.SeedGenerator, "
                "tf.random.stateless_* or a tf.random.Generator"
            )
            raise UncapturableError(msg)
