"""What the parts of a step may not return, and steps that do not fit: each error, whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from steps import compiled, default, settings, uncompiled
from trainings import Watcher, plan, small_data

import sweeper
from sweeper import AtStep, EverySteps, FactoryError, TrainingStep
from sweeper.errors import DefinitionError
from sweeper.gradients import clip_by_global_norm, clip_by_value
from sweeper.train.loop.loop import TrainingLoop


def returns(value: Any) -> Callable[..., Any]:
    return lambda self, *given, **named: value


def train_step(self: TrainingStep, batch: Any) -> Any:
    """Forgets to return anything."""


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "make_batch": (
        {"make_batch": returns(None)},
        (
            "MyStep.make_batch(batch, training=…) returned None; expected a batch (does it end with "
            "`return`?)"
        ),
    ),
    "inputs": (
        {"inputs": returns(None)},
        (
            "MyStep.inputs(batch) returned None; expected the model's inputs (does it end with "
            "`return`?)"
        ),
    ),
    "outputs": (
        {"outputs": returns(None)},
        (
            "MyStep.outputs(inputs, training=…) returned None; expected the model's outputs (does it "
            "end with `return`?)"
        ),
    ),
    "loss_inputs": (
        {"loss_inputs": lambda self, batch, outputs: outputs},
        (
            "MyStep.loss_inputs(batch, outputs) returned a float32 tensor of shape (None, 4); expected "
            "a tuple (targets, predictions) or (targets, predictions, weights)"
        ),
    ),
    "per_example_loss is None": (
        {"per_example_loss": returns(None)},
        (
            "MyStep.per_example_loss(targets, predictions) returned None; expected one loss "
            "for each example, of shape (examples, …) (does it end with `return`?)"
        ),
    ),
    "per_example_loss is a number": (
        {"per_example_loss": lambda self, targets, predictions: tf.reduce_sum(predictions)},
        (
            "MyStep.per_example_loss(targets, predictions) returned a float32 tensor of shape "
            "(); expected one loss for each example, of shape (examples, …); return losses "
            "that belong to no example from extra_losses()"
        ),
    ),
    "reduce": (
        {"reduce": lambda self, values, weights=None, reduction="": values},
        (
            "MyStep.reduce(values, weights) returned a float32 tensor of shape (None,); expected one "
            "number; self.reduce(values) makes one"
        ),
    ),
    "extra_losses": (
        {"extra_losses": returns(None)},
        "MyStep.extra_losses() returned None; expected a list of losses, [] for none",
    ),
    "trainable_variables": (
        {"trainable_variables": returns([])},
        (
            "MyStep.trainable_variables() returned a list of 0; expected a list of variables, at least "
            "one"
        ),
    ),
    "process_gradients is None": (
        {"process_gradients": returns(None)},
        (
            "MyStep.process_gradients(gradients, values) returned None; expected 6 gradients, "
            "one for each variable"
        ),
    ),
    "process_gradients is too short": (
        {"process_gradients": lambda self, gradients, values: gradients[:2]},
        (
            "MyStep.process_gradients(gradients, values) returned a list of 2; expected 6 "
            "gradients, one for each variable"
        ),
    ),
    "process_gradients has another order": (
        {"process_gradients": lambda self, gradients, values: gradients[::-1]},
        (
            "MyStep.process_gradients(gradients, values) returned a float32 tensor of shape "
            "(4,); expected 6 gradients, one for each variable: 'hidden/kernel' has the shape "
            "[8, 16]"
        ),
    ),
    "logs": (
        {"logs": returns(None)},
        "MyStep.logs(values) returned None; expected a dict of metric names to values",
    ),
    "train_step": (
        {"train_step": train_step},
        "train_step of MyStep returned a NoneType; expected a dict of metric names to values",
    ),
}


def named() -> keras.Model:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model(inputs, keras.layers.Dense(4, "softmax")(hidden))


@pytest.mark.parametrize("what", BAD)
def test_a_bad_return_is_told_with_the_methods_name(what: str) -> None:
    methods, message = BAD[what]
    step = type("MyStep", (TrainingStep,), methods)
    planned = plan(model=named, step=lambda: step(**settings()))
    with pytest.raises(FactoryError) as raised:
        TrainingLoop(planned, Watcher())
    assert str(raised.value) == message


def refused(step: TrainingStep, model: keras.Model) -> str:
    with pytest.raises(FactoryError) as raised:
        step.bind(model)
    return str(raised.value)


class MyStep(TrainingStep):
    """A step with a name."""


def test_a_step_without_an_optimizer_is_refused() -> None:
    assert refused(MyStep(loss="mse"), uncompiled()) == (
        "MyStep has no optimizer; give one, super().__init__(optimizer=…), or override "
        "update(gradients, variables, values) or train_step(batch) to use others"
    )


def test_a_step_without_a_loss_is_refused() -> None:
    planned = plan(
        model=lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]),
        step=lambda: MyStep(optimizer="sgd"),
    )
    with pytest.raises(FactoryError) as raised:
        TrainingLoop(planned, Watcher())
    assert str(raised.value) == (
        "MyStep has no loss; give one, super().__init__(loss=…), or override "
        "per_example_loss(targets, predictions) or extra_losses()"
    )


def test_what_model_and_step_are_both_compiled_with_is_refused() -> None:
    model = compiled()
    assert refused(MyStep(optimizer="sgd", loss="mse"), model) == (
        f"the model {model.name!r} is compiled, but MyStep was also given optimizer=; leave "
        "model.compile(…) out of the model factory, or give the step no such argument: then it "
        "uses those of compile"
    )


def test_a_model_with_a_step_of_its_own_is_refused() -> None:
    class OwnLoss(keras.Sequential):
        def compute_loss(self, **given: Any) -> Any:
            return super().compute_loss(**given)

    name = OwnLoss.__qualname__
    assert refused(MyStep(optimizer="sgd"), OwnLoss()) == (
        f"the model's class {name} has its own compute_loss, which step= would replace; leave out "
        "step=, or move it into MyStep"
    )


def test_a_step_that_is_used_twice_is_refused() -> None:
    step = default()
    step.bind(uncompiled())
    assert refused(step, uncompiled()) == (
        "the TrainingStep that the step factory returned is already bound to another model; "
        "make a new one in the factory"
    )


def test_a_step_whose_init_forgets_its_base_is_refused() -> None:
    class Forgets(TrainingStep):
        def __init__(self) -> None:
            pass

    assert refused(Forgets(), uncompiled()) == (
        f"{Forgets.__qualname__}.__init__ does not call super().__init__(…); call it first"
    )


def test_other_optimizers_in_an_update_are_refused_in_mixed_precision() -> None:
    class Both(TrainingStep):
        def __init__(self, optimizer: Any) -> None:
            super().__init__(optimizer=optimizer, loss="mse")
            self.others = [keras.optimizers.SGD(0.1)]

        def update(self, gradients: Any, variables: Any, values: Any) -> None:
            """Never called here."""

    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert refused(Both(scaling), uncompiled()) == (
        f"{Both.__qualname__}.update uses other optimizers than self.optimizer, and in mixed precision "
        "gradients are scaled only for self.optimizer; call minimize(loss, variables, "
        "optimizer) for each in train_step(batch), or leave mixed precision"
    )
    Both("sgd").bind(uncompiled())


def test_an_attribute_that_hides_a_part_is_refused() -> None:
    step = MyStep(optimizer="sgd", loss="mse")
    step.logs = keras.metrics.Mean("logs")  # type: ignore[method-assign,assignment]
    assert refused(step, uncompiled()) == (
        "MyStep has an attribute 'logs', which hides its method logs(); give it another name"
    )


def test_gradient_functions_that_are_none_are_refused() -> None:
    with pytest.raises(FactoryError) as raised:
        MyStep(gradients=10.0)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "MyStep(gradients=10.0): expected a list of functions, such as "
        "[sweeper.gradients.nan_to_zero]"
    )
    for function in (clip_by_global_norm, clip_by_value):
        with pytest.raises(DefinitionError) as refusal:
            function(0)
        name = function.__name__
        assert str(refusal.value) == f"{name}(0): expected a number above 0, such as {name}(10.0)"


def test_outputs_without_losses_of_their_names_are_refused() -> None:
    def model() -> keras.Model:
        inputs = keras.Input((8,))
        return keras.Model(
            inputs, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)}
        )

    def data() -> sweeper.Data:
        x = np.ones((32, 8), "float32")
        return sweeper.Data(train=(x, {"a": x[:, :1], "b": x[:, :1]}), batch_size=16)

    planned = plan(
        model=model,
        data=data,
        step=lambda: MyStep(optimizer="sgd", loss={"a": "mse", "c": "mse"}),
    )
    with pytest.raises(FactoryError) as raised:
        TrainingLoop(planned, Watcher())
    assert str(raised.value) == (
        "the model has the outputs 'a', 'b'; loss= has 'a', 'c', and the targets have 'a', 'b'; "
        "give loss= and the targets the structure of the outputs, or override "
        "per_example_loss(targets, predictions)"
    )


def test_a_step_that_is_no_factory_is_refused() -> None:
    step = MyStep(optimizer="sgd")
    with pytest.raises(DefinitionError) as raised:
        sweeper.Study(
            name="a",
            model=lambda trial: None,
            data=lambda trial: None,
            step=step,
            epochs=1,
            trials=1,
        )
    assert str(raised.value) == (
        f"step={step!r} cannot be called; give a function, trial -> TrainingStep"
    )


@pytest.mark.parametrize("kind", [EverySteps, AtStep])
def test_steps_that_are_no_whole_numbers_are_refused(kind: Any) -> None:
    for n in (0, 2.5, True):
        with pytest.raises(DefinitionError) as raised:
            kind(n, print)
        assert str(raised.value) == (
            f"{kind.__name__}({n!r}, …): expected a whole number of steps, at least 1"
        )
    with pytest.raises(DefinitionError) as raised:
        kind(1, None)
    assert str(raised.value) == (
        f"{kind.__name__}(…, None): expected a function of three arguments, (step, logs, model)"
    )


def test_a_step_that_fits_is_not_refused() -> None:
    """Negative control of all of the above."""
    TrainingLoop(plan(model=named, step=default, data=small_data), Watcher())
