"""`TrainingStep`: a training step in methods, each of which can be overridden.

Keras's ``train_step`` is one method, which has to be rewritten completely to change a part of it. Here it
is a sequence of methods, called in the order in which the class defines them. With all defaults, a step
gives the same results as Keras's own step, bit for bit.

A step's optimizer, losses and metrics are compiled into the model, so callbacks find ``model.optimizer``,
and checkpoints, guard and replays treat the model like any compiled model.
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
        batch: Result of `TrainingStep.make_batch`.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        targets: Targets of the loss.
        predictions: Predictions for the loss.
        weights: Weights of the examples, or None.
        per_example: The loss of each example, or a structure of losses.
        loss: The scalar to differentiate: the sum of reduced and extra losses. On several replicas
            it is this replica's share; the shares add up to the loss.
        training: False in validation.

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

    ``Study(step=factory)`` takes a function ``trial -> TrainingStep``, or a class whose ``__init__``
    takes the trial. Create the step's own optimizers, loss objects, metrics, variables and networks in
    it. The methods are traced into one graph, so use TensorFlow or Keras ops, and variables for
    everything that changes between steps. Variables are in every checkpoint. The arguments and results
    of the methods are in `StepValues`, which some of them take as ``values``.

    Metrics that are attributes of the step, or in a list, tuple or dict that is an attribute, are reset
    when an epoch or a validation begins, and reported by their names.

    Args:
        optimizer: As for ``model.compile``; None if the model is compiled, or if `update` or
            `train_step` use their own optimizers.
        loss: As for ``model.compile``; None if `per_example_loss` needs none.
        loss_weights: As for ``model.compile``.
        metrics: As for ``model.compile``, with the arguments of the loss.
        weighted_metrics: As for ``model.compile``, with the arguments of the loss.
        gradients: Functions to apply to the gradients, in order; see `sweeper.gradients`.
        run_eagerly: As for ``model.compile``.
        jit_compile: As for ``model.compile``.
        steps_per_execution: As for ``model.compile``.

    Attributes:
        compile_arguments: Arguments of ``model.compile``.
        model: The trial's model, from `on_bind` on. Callbacks reach the step as
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

    # Parts of a step, in the order in which they are called.

    def on_bind(self) -> None:
        """Prepare the step; called once before the first step, when ``self.model`` is set."""

    def make_batch(self, batch: Any, *, training: bool) -> Any:
        """Return the batch to use; by default the batch of the data.

        Args:
            batch: ``(x,)``, ``(x, y)`` or ``(x, y, weights)``; or a dict, if the data have dicts.
            training: False in validation.
        """
        del training
        return batch

    def inputs(self, batch: Any) -> Any:
        """Return the model's inputs; by default ``x``.

        Args:
            batch: Result of `make_batch`.
        """
        return keras.utils.unpack_x_y_sample_weight(batch)[0]

    def outputs(self, inputs: Any, *, training: bool) -> Any:
        """Return the model's outputs; by default ``self.model(inputs)``.

        Args:
            inputs: Result of `inputs`.
            training: False in validation.
        """
        if self.model._call_has_training_arg:
            return self.model(inputs, training=training)
        return self.model(inputs)

    def loss_inputs(self, batch: Any, outputs: Any) -> tuple[Any, ...]:
        """Return the loss's arguments: ``(targets, predictions)`` or ``(targets, predictions, weights)``.

        By default ``y``, the model's outputs, and the sample weights of the batch.

        Args:
            batch: Result of `make_batch`.
            outputs: Result of `outputs`.
        """
        _, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
        return targets, outputs, weights

    def per_example_loss(self, targets: Any, predictions: Any) -> Any:
        """Return the loss of each example: a tensor of shape ``(examples, …)``, or a list or dict of these.

        By default the values of the loss objects before reduction and weighting.
        """
        names = getattr(self.model, "output_names", None)
        if isinstance(predictions, list | tuple):
            targets = by_output(targets, names)
        return unreduced(self.loss, targets, predictions)

    def reduce(self, values: Any, weights: Any = None, *, reduction: str = MEAN) -> Any:
        """Return the losses of the examples reduced to one number.

        As required by ``tf.distribute``, this is the sum of this replica's values divided by the number
        of values in the *global* batch; on one replica it is the mean. So the replicas' gradients add up
        to those of one replica with the whole batch. Masked values count in neither.

        Args:
            values: A tensor of shape ``(examples, …)``.
            weights: Factors of the values, if given.
            reduction: As in ``keras.losses``: ``"sum"`` does not divide, and
                ``"mean_with_sample_weight"`` divides by the sum of the weights.
        """
        return reduced(values, weights, reduction)

    def extra_losses(self) -> Sequence[Any]:
        """Return losses that belong to no example, such as regularizers'; by default ``self.model.losses``.

        On several replicas each counts once, not once per replica.
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
            gradients: One for each variable; None if the loss does not depend on it. They are unscaled
                in mixed precision, and summed over all replicas. If the loss scale was too large, they
                are not finite, and the result is not used: the optimizer skips the step and reduces
                the scale.
            values: Values of the step; None in `minimize`.
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
            gradients: Result of `process_gradients`.
            variables: Result of `trainable_variables`.
            values: Values of the step.
        """
        del values
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def logs(self, values: StepValues) -> Mapping[str, Any]:
        """Return the logs of the step by name; arrays are allowed.

        By default the mean loss, the compiled metrics and the step's own, over the epoch so far.
        On several replicas, an entry with a metric's name is that metric over all replicas (see
        `results`); other entries are means of the replicas' values, weighted by shares of the batch.
        """
        logs = self.model.compute_metrics(
            values.inputs, values.targets, values.predictions, values.weights
        )
        return {**logs, **self._own_results()}

    # Steps that consist of these parts.

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Train one step on a batch of the data, and return the logs."""
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            values = self._forward(batch, training=True)
            loss = values.loss if optimizer is None else optimizer.scale_loss(values.loss)
        variables = checked.variables(self, self.trainable_variables())
        gradients = self._processed(tape.gradient(loss, variables), variables, optimizer, values)
        self.update(gradients, variables, values)
        return checked.logs(self, "logs(values)", self.logs(values))

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Validate on one batch of the data, and return the logs."""
        values = self._forward(batch, training=False)
        return checked.logs(self, "logs(values)", self.logs(values))

    def minimize(
        self, loss: Callable[[], Any], variables: Sequence[Any], optimizer: Any = None
    ) -> Any:
        """Update ``variables`` once to minimize ``loss()``, and return the loss before the update.

        Args:
            loss: Returns one number; use `reduce` for losses of examples.
            variables: The variables to update.
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

    @property
    def optimizer(self) -> Any:
        """Return the model's optimizer, which scales losses in mixed precision."""
        return None if self.model is None else self.model.optimizer

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Return the step's own metrics, in the order in which they were set."""
        mine = {name: value for name, value in vars(self).items() if name != "compile_arguments"}
        return metrics_in(mine)

    def results(self) -> dict[str, Any]:
        """Return the results of all metrics, the model's and the step's own, by name.

        Outside of the replicas they cover all replicas; inside, as in `logs`, only the current one.
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
        """Return whether nothing is overridden, so the step equals Keras's own."""
        return type(self) is TrainingStep and not keras.tree.is_nested(self.loss)

    def bind(self, model: keras.Model) -> None:
        """Bind the step to a model, and compile the model unless it is compiled.

        Args:
            model: The trial's model.

        Raises:
            FactoryError: Model and step both have arguments of ``compile``, or neither has; or the
                model has its own step.
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
        checked.something(self, "make_batch(batch, training=…)", made, "a batch")
        inputs = self.inputs(made)
        checked.something(self, "inputs(batch)", inputs, "the model's inputs")
        outputs = self.outputs(inputs, training=training)
        checked.something(self, "outputs(inputs, training=…)", outputs, "the model's outputs")
        # Read before any reduction: replicas take turns there, and share the model's list of losses.
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
