"""Keras's own ``train_step`` and ``test_step`` as a function of a graph, and blocks of steps.

Everything is traced before the first step runs: tracing creates the variables that do not exist
yet (optimizer slots, metrics, layers of unbuilt models), so that a restore finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.train.loop.logs import log_shapes, to_python
from sweeper.train.randomness.tracing import refuse_hidden_randomness
from sweeper.train.replicas import replicated
from sweeper.train.sources.runner import Logs, Runner, Shapes
from sweeper.train.sources.tfdata import ops
from sweeper.train.step_callbacks import StepCallback, call_at, wanted

_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
StepFunction = Callable[[Any], Logs]


class GraphStep:
    """The step for one batch: a graph function, or a Python function for an eager model.

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
        """Trace for arguments of this ``signature``; an eager model is not traced."""
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
        """Return the same function without the lookup of its trace at every call; call it after `trace`."""
        return self if self.eager else self._call.get_concrete_function()

    def _owner(self) -> object:
        return getattr(self._step, "__self__", self._model)

    def _on_arguments(self, *arguments: Any) -> Any:
        batch = self._batch_of(*arguments)
        if self.replicas is not None:
            return self.replicas(batch)
        return self._model.distribute_strategy.run(self._step, args=(batch,))


def _zeros(spec: Any) -> Any:
    """Return the initial values of a loop in the graph; dimensions that are unknown are empty."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)


class Blocks:
    """Runner of blocks of steps, which calls `EverySteps`, `AtStep` and similar in between.

    Args:
        model: Whose ``stop_training`` ends a block.
        callbacks: All of the training's.
    """

    def __init__(self, model: keras.Model, callbacks: Iterable[Any]) -> None:
        self._model = model
        self._callbacks = [c for c in callbacks if isinstance(c, StepCallback)]

    def run(
        self, runner: Runner, step: int, epoch: int, begin: int, end: int
    ) -> tuple[int, Mapping[str, Any]]:
        """Run the steps of ``epoch`` from ``begin`` to ``end``; see `Runner.run`.

        Args:
            runner: Runs them.
            step: Steps of the training that are over.
            epoch: The epoch.
            begin: Steps of the epoch that are over.
            end: Where to stop, at the latest.
        """
        if not self._callbacks:
            return runner.run(epoch, begin, end)
        ran = 0
        logs: Mapping[str, Any] = {}
        while begin + ran < end:
            next_step = wanted(self._callbacks, step + ran)
            left = end - begin - ran
            part = left if next_step is None else min(left, next_step - step - ran)
            done, reported = runner.run(epoch, begin + ran, begin + ran + part)
            ran += done
            logs = reported if done else logs
            if done and next_step == step + ran:
                call_at(self._callbacks, step + ran, to_python(logs))
            if done < part or self._model.stop_training:
                break
        return ran, logs
