"""Keras's own ``train_step`` and ``test_step`` as a function of a graph, and what runs them.

Everything is traced before the first step runs: tracing creates the variables that do not exist
yet (optimizer slots, metrics, layers of unbuilt models), so that a restore finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.training.encoding import Json, Tensors
from sweeper.training.logs import Shapes, log_shapes
from sweeper.training.reading import Reader
from sweeper.training.sources.tfnodes import ops
from sweeper.training.tracing import refuse_hidden_randomness

__all__ = ["GraphStep", "Logs", "Runner", "StepFunction"]

Logs = Mapping[str, Any]
_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
StepFunction = Callable[[Any], Logs]


class Runner(Protocol):
    """Runs steps of a model over a source, from any step of any epoch."""

    @property
    def steps(self) -> int | None:
        """Steps in an epoch; None where only its end tells."""
        ...

    @property
    def limit(self) -> int | None:
        """Steps in an epoch at most, where data of unknown length may have fewer; None for no limit."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether a step calls Python, which may ask for an end after any step; after `trace`."""
        ...

    @property
    def log_shapes(self) -> Shapes | None:
        """What the step reports, known after `trace`; None for a model that runs eagerly."""
        ...

    @property
    def kind(self) -> str:
        """The kind of source, which a resumed training must have again."""
        ...

    @property
    def reader(self) -> Reader | None:
        """Follows the source; None where an order of indices tells all."""
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

        Never runs past the epoch's limit, whatever ``end`` is: callers ask for as much as fits
        into a span of time, so results would depend on the clock.

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

    Attributes:
        log_shapes: What the step reports; see `Runner.log_shapes`.
        zeros: In the form of what it reports, to begin a loop of steps with.
        invariants: The shapes that stay the same from step to step, None where a size varies.
    """

    def __init__(
        self, model: keras.Model, step: StepFunction, batch_of: Callable[..., Any]
    ) -> None:
        self.eager = bool(model.run_eagerly)
        self.calls_python = self.eager
        self.log_shapes: Shapes | None = None
        self.zeros: Any = None
        self.invariants: Any = None
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
        kind = "validation" if self._step.__name__ == "test_step" else "training"
        refuse_hidden_randomness(traced.graph, f"the {kind} step")
        graph = traced.graph.as_graph_def()
        self.calls_python = any(node.op in _PYTHON for node in ops(graph))
        outputs = traced.structured_outputs
        if not isinstance(outputs, dict):
            msg = (
                f"{self._step.__name__} of {type(self._model).__name__} returned a "
                f"{type(outputs).__name__}; expected a dict of metric names to values"
            )
            raise FactoryError(msg)
        self.log_shapes = log_shapes(outputs)
        self.invariants = tf.nest.map_structure(lambda spec: spec.shape, outputs)
        self.zeros = tf.nest.map_structure(_zeros, outputs)

    def specialized(self) -> Callable[..., Any]:
        """The same, without looking the traced function up at every call; after `trace`."""
        return self if self.eager else self._call.get_concrete_function()

    def _on_arguments(self, *arguments: Any) -> Any:
        batch = self._batch_of(*arguments)
        return self._model.distribute_strategy.run(self._step, args=(batch,))


def _zeros(spec: Any) -> Any:
    """What a loop in the graph begins with; nothing, along what only the step's results tell."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)
