"""Keras's own ``train_step`` and ``test_step`` as a function of a graph, and what runs them.

Everything is traced before the first step runs: tracing creates the variables that do not exist
yet (optimizer slots, metrics, layers of unbuilt models), so that a restore finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from sweeper.errors import FactoryError, UncapturableError
from sweeper.training.encoding import Json, Tensors
from sweeper.training.randomops import STATEFUL_RANDOM

__all__ = ["GraphStep", "Logs", "Runner", "StepFunction", "refuse_hidden_randomness"]

Logs = Mapping[str, Any]
StepFunction = Callable[[Any], Logs]


class Runner(Protocol):
    """Runs steps of a model over a source, from any step of any epoch."""

    @property
    def steps(self) -> int | None:
        """Steps in an epoch; None where only its end tells."""
        ...

    @property
    def log_names(self) -> tuple[str, ...] | None:
        """What the step reports, known after `trace`; None for a model that runs eagerly."""
        ...

    @property
    def kind(self) -> str:
        """The kind of source, which a resumed training must have again."""
        ...

    def example(self) -> Any:
        """Arrays in the form of a batch, for shapes and types; None where they are not known."""
        ...

    def trace(self) -> None:
        """Build the graphs, and with them every variable that training will change.

        Raises:
            DataError: The batches have no form that a graph could be traced for.
            FactoryError: The step reports something other than a dict of metrics.
            UncapturableError: A stateful random op, whose state no checkpoint could hold.
        """
        ...

    def begin_epoch(self, epoch: int) -> None:
        """``epoch`` begins; called again for the same one after a resume, to no effect."""
        ...

    def run(self, epoch: int, begin: int, end: int) -> tuple[int, Logs]:
        """Run steps ``begin`` to ``end`` (excluded) of ``epoch``.

        Returns:
            The steps that were run, fewer than asked for where the epoch ended, and what the last
            of them reported; no logs where there was none.
        """
        ...

    def end_epoch(self, epoch: int) -> None:
        """``epoch`` is over; called again for the same one after a resume, to no effect."""
        ...

    def capture(self, name: str, tensors: Tensors) -> Json:
        """Where the source stands, beyond the position; see `CapturableSource.capture`."""
        ...

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Bring back what was captured."""
        ...

    def describe(self) -> str:
        """The source, for a person."""
        ...


class GraphStep:
    """The step for one batch: a function of a graph, or of Python for a model that runs eagerly.

    Args:
        model: A compiled model.
        step: ``model.train_step`` or ``model.test_step``.
        batch_of: Makes the batch of the function's arguments.
    """

    def __init__(
        self, model: keras.Model, step: StepFunction, batch_of: Callable[..., Any]
    ) -> None:
        self.eager = bool(model.run_eagerly)
        self.log_names: tuple[str, ...] | None = None
        self.zeros: Any = None
        self._model = model
        self._step = step
        self._batch_of = batch_of
        self._call: Any = self._on_arguments

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def trace(self, signature: Sequence[Any]) -> None:
        """Trace for arguments of this ``signature``; a model that runs eagerly stays as it is."""
        if self.eager:
            return
        self._call = tf.function(
            self._on_arguments,
            input_signature=list(signature),
            autograph=False,
            jit_compile=self._model.jit_compile or None,
        )
        traced = self._call.get_concrete_function()
        refuse_hidden_randomness(traced.graph.as_graph_def())
        outputs = traced.structured_outputs
        if not isinstance(outputs, dict):
            msg = (
                f"{self._step.__name__} of {type(self._model).__name__} returned a "
                f"{type(outputs).__name__}; expected a dict of metric names to values"
            )
            raise FactoryError(msg)
        self.log_names = tuple(outputs)
        self.zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), outputs)

    def specialized(self) -> Callable[..., Any]:
        """The same, without looking the traced function up at every call; after `trace`."""
        return self if self.eager else self._call.get_concrete_function()

    def _on_arguments(self, *arguments: Any) -> Any:
        batch = self._batch_of(*arguments)
        return self._model.distribute_strategy.run(self._step, args=(batch,))


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
        if node.op in STATEFUL_RANDOM:
            msg = (
                f"the training step holds the random op {node.op} ({node.name}), whose state lives "
                "in TensorFlow's kernel where no checkpoint can reach it, so a resumed trial would "
                "draw other numbers; use keras.random with a keras.random.SeedGenerator, "
                "tf.random.stateless_* or a tf.random.Generator"
            )
            raise UncapturableError(msg)
