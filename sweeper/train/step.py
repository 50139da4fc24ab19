"""`TrainingStep`: a training step in methods, each of which can be overridden.

Keras's ``train_step`` is one method, which has to be rewritten completely to change a part of it. Here it
is a sequence of methods, called in the order in which the class defines them. With all defaults, a step
gives the same results as Keras's own step, bit for bit.

A step's optimizer, losses and metrics are compiled into the model, so callbacks find ``model.optimizer``,
and checkpoints, guard and replays treat the model like any compiled model.

In mixed precision the loss is scaled before it is differentiated, and each replica has the gradients of
its own share. Processing such as clipping needs unscaled gradients of the whole loss. Afterwards they are
converted to the form for the optimizer: scaled, and each replica's share of the sum.

All replicas have slices of equal size, so Keras's mean over a slice, divided by the number of replicas, is
the replica's share of the mean. Where not every example counts alike, `TrainingStep.reduce` corrects that share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import keras
import tensorflow as tf

# Keras's own `compute_loss` uses these; there are no public names.
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.losses.loss import reduce_weighted_values, unscale_loss_for_distribution
from keras.src.trainers.compile_utils import get_loss

from sweeper.errors import FactoryError
from sweeper.gradients import GradientProcessor

MEAN = "sum_over_batch_size"


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
    when an epoch or a validation starts, and reported by their names.

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

    model: Any = None
    gradients: tuple[GradientProcessor, ...] = ()
    compile_arguments: Mapping[str, Any] = MappingProxyType({})

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
            raise FactoryError(
                f"{type(self).__qualname__}(gradients={gradients!r}): expected a list of functions, "
                "such as [sweeper.gradients.nan_to_zero]"
            )
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
        losses = for_each("loss=", self.model.loss, predictions, names)
        nested = targets if keras.tree.is_nested(targets) else [targets]
        flat_targets = for_each("the targets", nested, predictions, names)
        values = map(_values, losses, flat_targets, keras.tree.flatten(predictions))
        return keras.tree.pack_sequence_as(predictions, list(values))

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
        mask = get_keras_mask(values)
        dtype = keras.config.floatx()
        loss = reduce_weighted_values(values, weights, mask, reduction, dtype)
        weighted = reduction == "mean_with_sample_weight" and weights is not None
        if replicas() == 1 or reduction == "sum" or (mask is None and not weighted):
            return loss
        ones = keras.ops.ones_like(keras.ops.cast(values, dtype))
        total = reduce_weighted_values(ones, weights if weighted else None, mask, "sum", dtype)
        # The gradient of a sum over replicas would be wrong.
        mean = _sum_over_replicas(tf.stop_gradient(total)) / replicas()
        return loss * tf.math.divide_no_nan(total, mean)

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
        variables = list(self._call("trainable_variables"))
        if not variables:
            raise self._refusal("trainable_variables()", [], "at least one variable")
        gradients = self._processed(tape.gradient(loss, variables), variables, optimizer, values)
        self.update(gradients, variables, values)
        return dict(self._call("logs", values))

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Validate on one batch of the data, and return the logs."""
        return dict(self._call("logs", self._forward(batch, training=False)))

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
            value = self._number("minimize(loss, …): loss()", loss())
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
        mine = [value for name, value in vars(self).items() if name != "compile_arguments"]
        metrics = [m for m in keras.tree.flatten(mine) if isinstance(m, keras.metrics.Metric)]
        return list({id(metric): metric for metric in metrics}.values())

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

    def bind(self, model: keras.Model) -> None:
        """Bind the step to a model, and compile the model unless it is compiled.

        Args:
            model: The trial's model.

        Raises:
            FactoryError: Model and step both have arguments of ``compile``, or neither has; or the
                model has its own step.
        """
        self._check_names()
        name = type(self).__qualname__
        if self.model is not None:
            raise FactoryError(
                f"the {name} that the step factory returned is already bound to another model; make a "
                "new one in the factory"
            )
        overridden = own_methods(model)
        if overridden:
            raise FactoryError(
                f"the model's class {type(model).__qualname__} has its own {overridden[0]}, which step= "
                f"would replace; leave out step=, or move it into {name}"
            )
        defaults = TrainingStep.__init__.__kwdefaults__ or {}
        arguments = [n for n, value in self.compile_arguments.items() if value != defaults[n]]
        if model.compiled and arguments:
            raise FactoryError(
                f"the model {model.name!r} is compiled, but {name} was also given {arguments[0]}=; "
                "leave model.compile(…) out of the model factory, or give the step no such argument: "
                "then it uses those of compile"
            )
        if not model.compiled:
            if "optimizer" not in arguments and not self._overrides("train_step", "update"):
                raise FactoryError(
                    f"{name} has no optimizer; give one, super().__init__(optimizer=…), or override "
                    "update(gradients, variables, values) or train_step(batch) to use others"
                )
            model.compile(**self.compile_arguments)
        self._check_scale(model.optimizer)
        self.model = model
        model.training_step = self
        self.on_bind()

    def _check_names(self) -> None:
        """Refuse an attribute that hides a method."""
        for attribute, value in vars(self).items():
            method = getattr(type(self), attribute, None)
            if isinstance(method, FunctionType) and not isinstance(
                value, FunctionType | MethodType
            ):
                raise FactoryError(
                    f"{type(self).__qualname__} has an attribute {attribute!r}, which hides its method "
                    f"{attribute}(); give it another name"
                )

    def _check_scale(self, optimizer: Any) -> None:
        """Refuse an optimizer that would get gradients scaled for another one."""
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if not scaled or self._overrides("train_step") or not self._overrides("update"):
            return
        values = keras.tree.flatten(list(vars(self).values()))
        optimizers = [value for value in values if isinstance(value, keras.optimizers.Optimizer)]
        if any(other is not self.compile_arguments.get("optimizer") for other in optimizers):
            raise FactoryError(
                f"{type(self).__qualname__}.update uses other optimizers than self.optimizer, and in mixed "
                "precision gradients are scaled only for self.optimizer; call minimize(loss, variables, "
                "optimizer) for each in train_step(batch), or leave mixed precision"
            )

    def _overrides(self, *methods: str) -> bool:
        return any(getattr(type(self), m) is not getattr(TrainingStep, m) for m in methods)

    def _forward(self, batch: Any, *, training: bool) -> StepValues:
        prepared = self._call("make_batch", batch, training=training)
        inputs = self._call("inputs", prepared)
        outputs = self._call("outputs", inputs, training=training)
        # Read before any reduction: replicas take turns there, and share the model's list of losses.
        extra = self._call("extra_losses")
        loss_inputs = self._call("loss_inputs", prepared, outputs)
        if len(loss_inputs) not in (2, 3):
            raise self._refusal("loss_inputs()", loss_inputs, _RETURNS["loss_inputs"][1])
        targets, predictions, weights = (
            loss_inputs if len(loss_inputs) == 3 else (*loss_inputs, None)
        )
        losses: list[Any] = []
        per_example = None
        if self.model._compile_loss is not None or self._overrides("per_example_loss"):
            per_example = self._call("per_example_loss", targets, predictions)
            of_outputs = list(self._reduced(per_example, weights))
            losses.append(of_outputs[0] if len(of_outputs) == 1 else sum(of_outputs))
        losses += [self.model._aggregate_additional_loss(tf.convert_to_tensor(e)) for e in extra]
        if not losses:
            raise FactoryError(
                f"{type(self).__qualname__} has no loss; give one, super().__init__(loss=…), or "
                "override per_example_loss(targets, predictions) or extra_losses()"
            )
        loss = losses[0] if len(losses) == 1 else keras.ops.sum(losses)
        flat = (*keras.tree.flatten(inputs), *keras.tree.flatten(per_example))
        first = next(tensor for tensor in flat if len(getattr(tensor, "shape", ())) > 0)
        examples = tf.shape(first)[0]
        # As Keras's own `train_step` does, by which the logs have the same values.
        tracked = unscale_loss_for_distribution(loss)
        self.model._loss_tracker.update_state(tracked, sample_weight=examples)
        return StepValues(
            prepared, inputs, outputs, targets, predictions, weights, per_example, loss, training
        )

    def _reduced(self, per_example: Any, weights: Any) -> Iterator[Any]:
        """Yield the losses of the outputs, reduced and weighted, and record each in its metric."""
        compiled = self.model._compile_loss
        loss = self.model.loss
        names = getattr(self.model, "output_names", None)
        parts = keras.tree.flatten(per_example)
        if not keras.tree.is_nested(per_example):
            # The model has one output, or the user's `per_example_loss` has joined several.
            flat = keras.tree.flatten(loss)
            loss = flat[0] if len(flat) == 1 else None
        shares = None if compiled is None else compiled._user_loss_weights
        for values, output_weights, of_loss, share, metric in zip(
            parts,
            for_each("the batch's weights", weights, per_example, names),
            for_each("loss=", loss, per_example, names),
            for_each("loss_weights=", shares, per_example, names),
            metrics_for_each(compiled, per_example),
            strict=True,
        ):
            if values is None:
                continue
            if len(values.shape) == 0:
                expected = f"{_RETURNS['per_example_loss'][1]}; return others from extra_losses()"
                raise self._refusal("per_example_loss()", values, expected)
            reduction = getattr(of_loss, "reduction", None)
            reduction = MEAN if reduction in (None, "none") else reduction
            value = self._number(
                "reduce()", self.reduce(values, output_weights, reduction=reduction)
            )
            if metric is not None:
                tracked = unscale_loss_for_distribution(value)
                metric.update_state(tracked, sample_weight=values.shape[0])
            yield value if share is None else value * share

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
            processed = self._call("process_gradients", plain, values)
            self._check_gradients(processed, variables)
            return list(processed)

        return in_units_of_the_loss(process, gradients, optimizer)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method that can be overridden, and return its result if it is of the right kind."""
        value = getattr(self, method)(*arguments, **options)
        kind, expected = _RETURNS[method]
        if value is None or not isinstance(value, kind):
            raise self._refusal(method + "()", value, expected)
        return value

    def _number(self, method: str, value: Any) -> Any:
        if value is None or len(getattr(value, "shape", ())) > 0:
            expected = "one number, the loss; self.reduce(values) makes one"
            raise self._refusal(method, value, expected)
        return value

    def _check_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        expected = f"{len(variables)} gradients, one for each variable"
        if len(gradients) != len(variables):
            raise self._refusal("process_gradients()", gradients, expected)
        for gradient, variable in zip(gradients, variables, strict=True):
            shape = tf.TensorShape(variable.shape)
            if gradient is not None and not shape.is_compatible_with(
                getattr(gradient, "shape", ())
            ):
                name = getattr(variable, "path", None) or variable.name
                expected += f": {name!r} has the shape {list(variable.shape)}"
                raise self._refusal("process_gradients()", gradient, expected)

    def _refusal(self, method: str, value: Any, expected: str) -> FactoryError:
        """Return the error for a method that returned ``value``."""
        returned = "None" if value is None else f"a {type(value).__name__}"
        if tf.is_tensor(value):
            returned = f"a {value.dtype.name} tensor of shape {value.shape}"
        elif isinstance(value, list | tuple | dict):
            returned += f" of {len(value)}"
        hint = " (does it end with `return`?)" if value is None else ""
        msg = f"{type(self).__qualname__}.{method} returned {returned}; expected {expected}{hint}"
        return FactoryError(msg)


_RETURNS: Mapping[str, tuple[type, str]] = {
    "make_batch": (object, "a batch"),
    "inputs": (object, "the model's inputs"),
    "outputs": (object, "the model's outputs"),
    "loss_inputs": (tuple, "a tuple (targets, predictions) or (targets, predictions, weights)"),
    "per_example_loss": (object, "one loss for each example, of shape (examples, …)"),
    "extra_losses": (Sequence, "a list of losses, [] for none"),
    "trainable_variables": (Sequence, "a list of variables"),
    "process_gradients": (Sequence, "a list of gradients, one for each variable"),
    "logs": (Mapping, "a dict of metric names to values"),
}
"""The type of each method's result, and what is expected."""


def own_methods(model: keras.Model) -> list[str]:
    """Return the names of the model's methods for steps that are the user's own."""
    names = ("train_step", "test_step", "compute_loss")
    return [m for m in names if getattr(type(model), m) is not getattr(keras.Model, m)]


def for_each(label: str, structure: Any, like: Any, names: Any) -> list[Any]:
    """Return the element of ``structure`` for each output in ``like``; a single element is used for all.

    An output that a dict leaves out has None. Where ``like`` is a list, ``names`` are the keys of the outputs.
    FactoryErrors call the structure ``label``.
    """
    if not keras.tree.is_nested(structure):
        return [structure] * len(keras.tree.flatten(like))
    keys = list(like) if isinstance(like, Mapping) else names or ()
    if isinstance(structure, Mapping) and set(structure) <= set(keys):
        complete = {key: structure.get(key) for key in keys}
        structure = complete if isinstance(like, Mapping) else list(complete.values())
    expected = _paths(like)
    actual = _paths(structure)
    if actual != expected and not len(actual) == len(expected) == 1:
        if isinstance(structure, Mapping) and not isinstance(like, Mapping) and names:
            expected = [repr(name) for name in names]
        raise FactoryError(
            f"the losses are for the outputs {', '.join(expected)}; {label} has {', '.join(actual)}: give it "
            "the structure of the outputs, or override per_example_loss(targets, predictions)"
        )
    flat: list[Any] = keras.tree.flatten(structure)
    return flat


def _paths(structure: Any) -> list[str]:
    paths = [path for path, _ in keras.tree.flatten_with_path(structure)]
    return [repr("/".join(map(str, path))) for path in paths]


def metrics_for_each(compiled: Any, structure: Any) -> list[Any]:
    """Return the metric in which Keras logs each loss of ``structure``, or None."""
    built = compiled is not None and compiled.built
    paths = [loss.path for loss in compiled._flat_losses] if built else []
    metrics = dict(zip(paths, compiled.metrics, strict=False)) if built else {}
    return [metrics.get(path) for path, _ in keras.tree.flatten_with_path(structure)]


def _values(loss: Any, targets: Any, predictions: Any) -> Any:
    resolved = get_loss(loss, targets, predictions)
    if resolved is None:
        return None
    # Without a reduction, the loss returns a value for each sample, with its own conversions and mask.
    reduction = resolved.reduction
    resolved.reduction = None
    try:
        values = resolved(targets, predictions)
    finally:
        resolved.reduction = reduction
    if values.shape.rank == 0:
        raise FactoryError(
            f"the loss {resolved.name!r} returns one number for a whole batch; return a value for each "
            "sample, and Keras takes the mean"
        )
    mask = get_keras_mask(predictions)
    if mask is not None:
        set_keras_mask(values, mask)
    return values


def replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _sum_over_replicas(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def in_units_of_the_loss(
    process: Callable[[Sequence[Any]], Sequence[Any]], gradients: Sequence[Any], optimizer: Any
) -> list[Any]:
    """Apply ``process`` to the unscaled ``gradients``, and return them in the scale of ``optimizer``."""
    one = tf.ones(())
    scale = one if optimizer is None else optimizer.scale_loss(one)
    if scale is one and replicas() == 1:
        return list(process(gradients))
    raw = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    if replicas() > 1:
        sums = iter(_sum_over_replicas([gradient for gradient in raw if gradient is not None]))
        raw = [None if gradient is None else next(sums) for gradient in raw]
    processed = process(raw if scale is one else _times(raw, 1.0 / scale))
    if scale is not one:
        # If they are not finite, the scale was too large, and the optimizer reduces it.
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in raw if g is not None])
        processed = [
            None if new is None or old is None else tf.where(finite, new, old)
            for new, old in zip(_times(processed, scale), raw, strict=True)
        ]
    # The optimizer adds the replicas' gradients, and each replica already has the sum.
    return _times(processed, 1.0 / replicas())


def _times(gradients: Sequence[Any], factor: Any) -> list[Any]:
    return [
        None if gradient is None else gradient * tf.cast(factor, gradient.dtype)
        for gradient in gradients
    ]
