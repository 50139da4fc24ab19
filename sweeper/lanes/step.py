"""One model's training and test step as functions of tensors: state and batch in, state out.

Keras's step changes variables in place. Here the same calls are made under a
``keras.StatelessScope``, so that nothing but the arguments tells what a step gives, and lanes of
the same graph can be stacked. What the step would change or read beside the model's, the
optimizer's and the metrics' variables is refused by name: it would be shared by all lanes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from sweeper.errors import LanesError
from sweeper.lanes.signature import operations, signature_of
from sweeper.train.loop.logs import log_shapes
from sweeper.train.randomness.generators import global_seed_generator
from sweeper.train.randomness.tracing import refuse_hidden_randomness

Kind = Literal["train", "test"]

_CHANGING_VARIABLES = (
    *("assign", "assign_add", "assign_sub", "_apply_weight_decay", "_backend_update_step"),
    *(
        "_overwrite_model_variables_with_average_value",
        "_backend_increment_gradient_accumulators",
    ),
)
"""Methods with which Keras's optimizers for TensorFlow change ``tf.Variable``s, not Keras's."""

_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})


class LaneStep:
    """The traced step of one model.

    Args:
        model: A compiled model, built, with its optimizer and metrics.
        batch: Specifications of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, with batches of any
            size.
        kind: Which step.

    Attributes:
        variables: Everything that the step reads or changes, in the order of the state.
        handles: Of the variables, in this order.
        trained: How many of them, the first ones, are trained.
        concrete: Takes the values of the variables and the leaves of the batch; returns new values of
            the variables, and what the step reports.
        logs: The names of what the step reports.
        log_shapes: See `Runner.log_shapes`.
        signature: See `signature_of`.

    Raises:
        LanesError: The step cannot be fused; the reason is named.
        UncapturableError: It holds a random operation whose state is hidden.
    """

    def __init__(self, model: keras.Model, batch: Any, kind: Kind) -> None:
        if kind == "train":
            _refuse_optimizer(model.optimizer)
        self.kind: Kind = kind
        self.variables = state_variables(model, kind)
        self.handles = [variable.value.handle for variable in self.variables]
        self.trained = trained = len(model.trainable_variables)
        self.logs: tuple[str, ...] = ()
        strangers: list[str] = []

        def step(*arguments: Any) -> list[Any]:
            values = list(arguments[: len(self.variables)])
            leaves = list(arguments[len(self.variables) :])
            data = _with_leaves(batch, leaves)
            mapping = list(zip(self.variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                logs = _run_step(model, data, values[:trained], kind)
            self.logs = tuple(logs)
            strangers[:] = _strangers(scope, self.variables)
            new = [_current(scope, v, value) for v, value in mapping]
            return [*new, *(tf.convert_to_tensor(each) for each in logs.values())]

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self.variables]
        leaves = [each for each in tf.nest.flatten(batch) if each is not None]
        function = tf.function(step, input_signature=[*specs, *leaves], autograph=False)
        with _stateless_optimizers():
            self.concrete: Any = function.get_concrete_function()
        strangers += _resources(self.concrete.graph)
        what = "the training step" if kind == "train" else "the validation step"
        refuse_hidden_randomness(self.concrete.graph, what)
        if strangers:
            msg = (
                f"{what} uses {', '.join(sorted(set(strangers)))}, which is no variable of the model, "
                "its optimizer or its metrics, so every lane would share it; make it a keras.Variable "
                "of a layer, or leave out lanes="
            )
            raise LanesError(msg)
        python = sorted(operations(self.concrete) & _PYTHON)
        if python:
            msg = (
                f"{what} calls Python ({', '.join(python)}), which sees one lane at a time; write "
                "it with keras.ops, or leave out lanes="
            )
            raise LanesError(msg)
        reported: list[Any] = self.concrete.outputs[len(self.variables) :]
        named: dict[str, Any] = dict(zip(self.logs, reported, strict=True))
        self.log_shapes = log_shapes(named)
        for name, each in named.items():
            if not each.shape.is_fully_defined():
                msg = (
                    f"{what} reports {name!r} in a shape that only its values tell, which cannot be "
                    "fused; leave out lanes="
                )
                raise LanesError(msg)
        self.signature = signature_of(self.concrete)


def state_variables(model: keras.Model, kind: Kind) -> list[Any]:
    """Return what a step reads or changes, the trainable variables first, each once."""
    generator = global_seed_generator()
    found = [
        *model.trainable_variables,
        *model.non_trainable_variables,
        *(model.optimizer.variables if kind == "train" and model.optimizer is not None else ()),
        *model.metrics_variables,
        *(() if generator is None else (generator.state,)),
    ]
    return list({id(variable): variable for variable in found}.values())


def _resources(graph: Any) -> list[str]:
    """Return the names of variables that a traced step captures, or of the operations that use others."""
    variables = {id(variable.handle): variable.name for variable in graph.variables}
    found = []
    for outside, inside in graph.captures:
        if outside.dtype == tf.resource:
            users = ", ".join(op.name for op in inside.consumers())
            found.append(variables.get(id(outside)) or f"a resource (in {users})")
    return found


def _refuse_optimizer(optimizer: Any) -> None:
    """Refuse optimizers that change variables inside a condition, which a stateless scope cannot record."""
    shown = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        msg = f"the optimizer is a {shown}, which skips updates whose gradients are infinite"
    elif getattr(optimizer, "gradient_accumulation_steps", None):
        msg = f"the optimizer {shown} accumulates gradients (gradient_accumulation_steps)"
    elif getattr(optimizer, "ema_overwrite_frequency", None):
        msg = f"the optimizer {shown} overwrites weights by their average (ema_overwrite_frequency)"
    else:
        return
    msg = f"{msg}, and what happens at some steps only cannot be fused; leave out lanes="
    raise LanesError(msg)


def _run_step(model: Any, data: Any, trained: Sequence[Any], kind: Kind) -> Mapping[str, Any]:
    """Take one step as ``keras.Model.train_step`` or ``test_step`` does, under a stateless scope."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    training = kind == "train"
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(trained)
        y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )
        first = next(each for each in tf.nest.flatten(x) if each is not None)
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(first)[0])
        scaled = model.optimizer.scale_loss(loss) if training and model.optimizer else loss
    if training and trained:
        gradients = [
            each if each is None else tf.convert_to_tensor(each)
            for each in tape.gradient(scaled, trained)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.optimizer.apply(gradients, model.trainable_variables)
    reported: Mapping[str, Any] = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return reported


def _with_leaves(batch: Any, leaves: Sequence[Any]) -> Any:
    """Return the structure of ``batch`` with its leaves, except None, replaced."""
    given = iter(leaves)
    flat = [None if each is None else next(given) for each in tf.nest.flatten(batch)]
    return tf.nest.pack_sequence_as(batch, flat)


def _current(scope: Any, variable: Any, before: Any) -> Any:
    value = scope.get_current_value(variable)
    value = before if value is None else tf.convert_to_tensor(value)
    return tf.cast(value, before.dtype)


def _strangers(scope: Any, known: Sequence[Any]) -> list[str]:
    """Return the names of variables that were changed under the scope and are not ``known``."""
    ids = {id(variable) for variable in known}
    return ["a keras.Variable that it changes" for key in scope.state_mapping if key not in ids]


@contextmanager
def _stateless_optimizers() -> Iterator[None]:
    """Have Keras's optimizers change Keras's variables, as the scope records them."""
    before = {name: vars(TFOptimizer)[name] for name in (*_CHANGING_VARIABLES, "_var_key")}

    def key(_optimizer: Any, variable: Any) -> Any:
        inner = variable._value if isinstance(variable, keras.Variable) else variable
        return inner._unique_id

    for name in _CHANGING_VARIABLES:
        setattr(TFOptimizer, name, getattr(BaseOptimizer, name))
    TFOptimizer._var_key = key
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(TFOptimizer, name, method)
