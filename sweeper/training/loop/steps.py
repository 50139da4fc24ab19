"""Keras's own ``train_step`` and ``test_step`` as a function of a graph, and what runs them.

Everything is traced before the first step runs: tracing creates the variables that do not exist
yet (optimizer slots, metrics, layers of unbuilt models), so that a restore finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.training.loop.logs import log_shapes
from sweeper.training.randomness.tracing import refuse_hidden_randomness
from sweeper.training.replicas.step import replicated
from sweeper.training.sources.runner import Logs, Shapes
from sweeper.training.sources.tfnodes import ops

_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
StepFunction = Callable[[Any], Logs]


class GraphStep:
    """The step for one batch: a function of a graph, or of Python for a model that runs eagerly.

    Args:
        model: A compiled model.
        step: ``train_step`` or ``test_step`` of the model, or of a `TrainingStep`.
        batch_of: Makes the batch of the function's arguments.

    Attributes:
        log_shapes: What the step reports; see `Runner.log_shapes`.
        zeros: In the form of what it reports, to begin a loop of steps with.
        invariants: The shapes that stay the same from step to step, None where a size varies.
        replicas: Takes the step on all replicas of the model's strategy; None where there is one.
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
        self.replicas = replicated(model, step)

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
                f"{self._step.__name__} of {type(self._owner()).__name__} returned a "
                f"{type(outputs).__name__}; expected a dict of metric names to values"
            )
            raise FactoryError(msg)
        self.log_shapes = log_shapes(outputs)
        self.invariants = tf.nest.map_structure(lambda spec: spec.shape, outputs)
        self.zeros = tf.nest.map_structure(_zeros, outputs)

    def specialized(self) -> Callable[..., Any]:
        """The same, without looking the traced function up at every call; after `trace`."""
        return self if self.eager else self._call.get_concrete_function()

    def _owner(self) -> object:
        return getattr(self._step, "__self__", self._model)

    def _on_arguments(self, *arguments: Any) -> Any:
        batch = self._batch_of(*arguments)
        if self.replicas is not None:
            return self.replicas(batch)
        return self._model.distribute_strategy.run(self._step, args=(batch,))


def _zeros(spec: Any) -> Any:
    """What a loop in the graph begins with; nothing, along what only the step's results tell."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)
