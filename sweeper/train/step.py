"""`TrainingStep`: a training step in parts, each of which can be replaced.

Keras's ``train_step`` is one method: to change one thing in it is to write all of it anew. Here it is
a row of methods, called in the order in which they stand in the class. With all defaults a step gives
what Keras's own gives, bit for bit.

What is a step's own (optimizer, losses, metrics) is compiled into the model, so that callbacks find
``model.optimizer``, and checkpoints, guard and replays treat it as they treat a compiled model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.gradients import GradientProcessor
from sweeper.train import step_checks as checked
from sweeper.train.step_checks import check_binding, compile_with, metrics_in
from sweeper.train.step_losses import (
    MEAN,
    as_mean,
    by_output,
    examples_in,
    for_each,
    in_units_of_the_loss,
    reduced,
    reduction_of,
    scaled_extra,
    unreduced,
)


@dataclass(frozen=True, slots=True)
class StepValues:
    """Values that a step has computed from a batch, for its later methods.

    Attributes:
        batch: As `TrainingStep.make_batch` returned it.
        inputs: What the model was given.
        outputs: What it returned.
        targets: What the loss compares with.
        predictions: What the loss compares.
        weights: Of the examples; None where there are none.
        per_example: The loss of each example, or a structure of those.
        loss: The number whose gradients are taken: reduced losses and extra losses. On several
            replicas it is this replica's share; the shares add up to the loss.
        training: Whether this is a step of training; False in validation.

    Examples:
        >>> class Reporting(sweeper.TrainingStep):
        ...     def logs(self, values):
        ...         return {"loss": values.loss, "largest": abs(values.predictions).max()}
    """

    batch: Any
    inputs: Any
    outputs: Any
    targets: Any
    predictions: Any
    weights: Any
    per_example: Any
    loss: Any
    training: bool


class TrainingStep:
    """A training step in methods; override those that should differ.

    ``Study(step=factory)`` takes a function ``trial -> TrainingStep``; a class whose ``__init__``
    takes the trial is one. Make optimizers, loss objects, metrics, variables and networks of the
    step's own in it. The parts are traced into one graph, so they hold TensorFlow or Keras ops; what
    changes from step to step is kept in variables, and lies in every checkpoint. What the parts take
    and give is in `StepValues`, which some of them take as ``values``.

    Every metric that is an attribute of the step, or in a list, tuple or dict that is one, is reset
    when an epoch and when a validation begins, and reported by its name.

    Args:
        optimizer: As for ``model.compile``; None where the model is compiled, or where `update` or
            `train_step` use optimizers of their own.
        loss: As for ``model.compile``; None where `per_example_loss` needs none.
        loss_weights: As for ``model.compile``.
        metrics: As for ``model.compile``; they see what the loss sees.
        weighted_metrics: As for ``model.compile``; they see what the loss sees.
        gradients: What is done with the gradients, one function after the other; see
            `sweeper.gradients`.
        run_eagerly: As for ``model.compile``.
        jit_compile: As for ``model.compile``.
        steps_per_execution: As for ``model.compile``.

    Attributes:
        compile_arguments: What the model is compiled with.
        model: The trial's model; there from `on_bind` on. Callbacks reach the step as
            ``self.model.training_step``.

    Examples:
        >>> def build_step(trial):
        ...     clip = sweeper.gradients.clip_by_global_norm(1.0)
        ...     return sweeper.TrainingStep(optimizer="sgd", loss="mse", gradients=[clip])
    """

    model: Any

    def __init__(
        self,
        *,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        gradients: Sequence[GradientProcessor] = (),
        run_eagerly: bool = False,
        jit_compile: bool | str = "auto",
        steps_per_execution: int = 1,
    ) -> None:
        if not isinstance(gradients, Sequence) or not all(map(callable, gradients)):
            msg = (
                f"{type(self).__qualname__}(gradients={gradients!r}): expected a list of functions, "
                "such as [sweeper.gradients.nan_to_zero]"
            )
            raise FactoryError(msg)
        self.model = None
        self.loss = loss
        self.loss_weights = loss_weights
        self.gradients = tuple(gradients)
        self.compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "jit_compile": jit_compile,
            "steps_per_execution": steps_per_execution,
        }

    # What a step is made of, in the order in which it is called.

    def on_bind(self) -> None:
        """Called once before the first step, when ``self.model`` is set; nothing by default."""

    def make_batch(self, batch: Any, *, training: bool) -> Any:
        """Return the batch to use, made from the batch of the data; by default the same.

        Args:
            batch: ``(x,)``, ``(x, y)`` or ``(x, y, weights)``; or a dict, where the data give dicts.
            training: False in validation.
        """
        del training
        return batch

    def inputs(self, batch: Any) -> Any:
        """Return the model's inputs; by default ``x``.

        Args:
            batch: As `make_batch` returned it.
        """
        return keras.utils.unpack_x_y_sample_weight(batch)[0]

    def outputs(self, inputs: Any, *, training: bool) -> Any:
        """Return the model's outputs; by default ``self.model(inputs)``.

        Args:
            inputs: As `inputs` returned them.
            training: False in validation.
        """
        if self.model._call_has_training_arg:
            return self.model(inputs, training=training)
        return self.model(inputs)

    def loss_inputs(self, batch: Any, outputs: Any) -> tuple[Any, ...]:
        """Return the loss's arguments: ``(targets, predictions)`` or ``(targets, predictions, weights)``.

        By default ``y`` and the sample weights of the batch, and the model's outputs.

        Args:
            batch: As `make_batch` returned it.
            outputs: As `outputs` returned them.
        """
        _, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
        return targets, outputs, weights

    def per_example_loss(self, targets: Any, predictions: Any) -> Any:
        """Return the loss of each example: a tensor of shape ``(examples, …)``, or a list or dict of such.

        By default what the loss objects give, before any mean is taken and weights are applied.
        """
        names = getattr(self.model, "output_names", None)
        if isinstance(predictions, list | tuple):
            targets = by_output(targets, names)
        return unreduced(self.loss, targets, predictions)

    def reduce(self, values: Any, weights: Any = None, *, reduction: str = MEAN) -> Any:
        """Reduce the examples' losses to one number; only this method counts examples.

        The contract is that of ``tf.distribute``: the sum over this replica's values, divided by the
        number of values in the *global* batch. So the replicas' gradients add up to those of one
        replica with the whole batch, and on one replica it is the mean. Values that Keras's masks
        leave out count in neither.

        Args:
            values: A tensor of shape ``(examples, …)``.
            weights: Multiplied with the values, if given; not counted.
            reduction: That of ``keras.losses``: ``"sum"`` does not divide at all, and
                ``"mean_with_sample_weight"`` divides by the sum of the weights.
        """
        return reduced(values, weights, reduction)

    def extra_losses(self) -> Sequence[Any]:
        """Return losses that belong to no example, such as regularizers'; by default ``self.model.losses``.

        On several replicas each counts once, not once a replica.
        """
        return list(self.model.losses)

    def trainable_variables(self) -> Sequence[Any]:
        """Return the variables to train; by default ``self.model.trainable_variables``."""
        return list(self.model.trainable_variables)

    def process_gradients(
        self, gradients: Sequence[Any], values: StepValues | None
    ) -> Sequence[Any]:
        """Return the gradients to apply; by default the result of the functions in ``gradients=``.

        Args:
            gradients: One a variable; None where the loss does not depend on it. In mixed precision
                they are unscaled, on several replicas summed over all of them. Where a loss scale was
                too large, they are not finite, and what is returned for them is not used: the
                optimizer leaves the step out and takes a smaller scale.
            values: What the step has worked out; None in `minimize`.
        """
        del values
        for process in self.gradients:
            gradients = process(gradients)
        return gradients

    def update(
        self, gradients: Sequence[Any], variables: Sequence[Any], values: StepValues
    ) -> None:
        """Apply the gradients; with ``self.optimizer`` by default.

        Args:
            gradients: As `process_gradients` returned them.
            variables: As `trainable_variables` returned them.
            values: What the step has worked out.
        """
        del values
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def logs(self, values: StepValues) -> Mapping[str, Any]:
        """Return the logs of the step by name; arrays are allowed.

        By default the mean loss, the compiled metrics and the step's own, over the epoch so far.
        On several replicas, what has a metric's name is reported as that metric over all of them
        (see `results`), and anything else as the mean of what they report, by shares of the batch.
        """
        logs = self.model.compute_metrics(
            values.inputs, values.targets, values.predictions, values.weights
        )
        return {**logs, **self._own_results()}

    # What is made of these parts.

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Train one step on a batch of the data; return the logs."""
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            values = self._forward(batch, training=True)
            loss = values.loss if optimizer is None else optimizer.scale_loss(values.loss)
        variables = checked.variables(self, self.trainable_variables())
        gradients = self._processed(tape.gradient(loss, variables), variables, optimizer, values)
        self.update(gradients, variables, values)
        return checked.logs(self, "logs(values)", self.logs(values))

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Validate on one batch, with the same methods."""
        values = self._forward(batch, training=False)
        return checked.logs(self, "logs(values)", self.logs(values))

    def minimize(
        self, loss: Callable[[], Any], variables: Sequence[Any], optimizer: Any = None
    ) -> Any:
        """Update ``variables`` once to minimize ``loss()``, and return the loss before the update.

        Args:
            loss: Gives one number; what depends on examples is brought to one by `reduce`.
            variables: What is trained.
            optimizer: ``self.optimizer`` by default.
        """
        used = self.optimizer if optimizer is None else optimizer
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in variables:
                tape.watch(getattr(variable, "value", variable))
            value = checked.scalar(self, "minimize(loss, …): loss()", loss())
            scaled = used.scale_loss(value)
        gradients = self._processed(tape.gradient(scaled, variables), variables, used, None)
        used.apply_gradients(zip(gradients, variables, strict=True))
        return value

    # What it has.

    @property
    def optimizer(self) -> Any:
        """Return the model's optimizer, which scales losses in mixed precision."""
        return None if self.model is None else self.model.optimizer

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics that are attributes of the step, in the order in which they were set."""
        mine = {name: value for name, value in vars(self).items() if name != "compile_arguments"}
        return metrics_in(mine)

    def results(self) -> dict[str, Any]:
        """Return the results of all metrics, the model's and the step's own, by name.

        Called outside of the replicas they are over all of them; inside, `logs` has this replica's.
        """
        return {**self.model.get_metrics_result(), **self._own_results()}

    def _own_results(self) -> dict[str, Any]:
        return {metric.name: metric.result() for metric in self.metrics}

    def reset_metrics(self) -> None:
        """Reset all metrics, the model's and the step's own."""
        self.model.reset_metrics()
        for metric in self.metrics:
            metric.reset_state()

    @property
    def is_keras_own(self) -> bool:
        """Return whether nothing is overridden, so that it equals Keras's own step."""
        return type(self) is TrainingStep and not keras.tree.is_nested(self.loss)

    def bind(self, model: keras.Model) -> None:
        """Bind the step to ``model``, and compile it with the step's arguments.

        Args:
            model: One that is compiled already keeps what it was compiled with, and the step uses it.

        Raises:
            FactoryError: Both were given, or neither; or the model has a step of its own.
        """
        check_binding(self, model)
        self.model = model
        self.loss, self.loss_weights = compile_with(
            self,
            model,
            self.compile_arguments,
            needs_optimizer=not self._overrides("train_step", "update"),
            own_update=self._overrides("update") and not self._overrides("train_step"),
        )
        model.training_step = self
        self.on_bind()

    def _overrides(self, *methods: str) -> bool:
        return any(getattr(type(self), m) is not getattr(TrainingStep, m) for m in methods)

    def _forward(self, batch: Any, *, training: bool) -> StepValues:
        made = self.make_batch(batch, training=training)
        made = checked.something(self, "make_batch(batch, training=…)", made, "a batch")
        inputs = checked.something(
            self, "inputs(batch)", self.inputs(made), "what the model is called with"
        )
        outputs = checked.something(
            self,
            "outputs(inputs, training=…)",
            self.outputs(inputs, training=training),
            "what the model returned",
        )
        # Replicas take turns where they add something up, and a model has one list of losses.
        extra = checked.extra_losses(self, self.extra_losses())
        targets, predictions, weights = checked.loss_inputs(self, self.loss_inputs(made, outputs))
        losses: list[Any] = []
        per_example = None
        if self.loss is not None or self._overrides("per_example_loss"):
            per_example = self.per_example_loss(targets, predictions)
            losses.append(self._reduced(checked.per_example(self, per_example), weights))
        losses += [scaled_extra(tf.convert_to_tensor(loss)) for loss in extra]
        if not losses:
            msg = (
                f"{type(self).__qualname__} has no loss; give one, super().__init__(loss=…), or "
                "override per_example_loss(targets, predictions) or extra_losses()"
            )
            raise FactoryError(msg)
        loss = losses[0] if len(losses) == 1 else keras.ops.sum(losses)
        examples = examples_in(inputs, per_example)
        self.model._loss_tracker.update_state(as_mean(loss, examples), sample_weight=examples)
        return StepValues(
            made, inputs, outputs, targets, predictions, weights, per_example, loss, training
        )

    def _reduced(self, parts: Sequence[Any], weights: Any) -> Any:
        """Return the losses of all outputs, reduced, weighted and added."""
        reductions = map(reduction_of, for_each(self.loss, parts))
        options = zip(
            parts,
            for_each(weights, parts),
            for_each(self.loss_weights, parts),
            reductions,
            strict=True,
        )
        losses = []
        for values, own, loss_weight, reduction in options:
            if values is not None:
                loss = self.reduce(values, own, reduction=reduction)
                loss = checked.scalar(self, "reduce(values, weights)", loss)
                losses.append(loss if loss_weight is None else loss * loss_weight)
        return losses[0] if len(losses) == 1 else keras.ops.sum(losses)

    def _processed(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        optimizer: Any,
        values: StepValues | None,
    ) -> list[Any]:
        """Return the result of `process_gradients` in the form for the optimizer."""
        if not self.gradients and not self._overrides("process_gradients"):
            return list(gradients)

        def process(plain: Sequence[Any]) -> list[Any]:
            method = "process_gradients(gradients, values)"
            done = self.process_gradients(plain, values)
            return checked.gradients(self, method, done, variables)

        return in_units_of_the_loss(process, gradients, optimizer)
