"""What the parts of a step may not return, and steps that do not fit: by the names that the user wrote."""

import keras
import pytest
import tensorflow as tf
from fitted import fitted
from steps import compiled, default, settings, two_outputs, two_targets, uncompiled
from trainings import small_data

import sweeper
from sweeper import AtStep, EverySteps, FactoryError, TrainingStep
from sweeper.errors import DefinitionError
from sweeper.gradients import clip_by_global_norm, clip_by_value


def returns(value):
    return lambda self, *arguments, **named: value


def train_step(self, batch):
    """Forgets to return anything."""


def identity(self, *arguments, **_named):
    return arguments[0]


BAD = {
    "make_batch": ("make_batch", returns(None), ("None", "a batch")),
    "inputs": ("inputs", returns(None), ("None", "the model's inputs")),
    "outputs": ("outputs", returns(None), ("None", "the model's outputs")),
    "loss_inputs": (
        "loss_inputs",
        lambda self, batch, outputs: outputs,
        ("shape (None, 4)", "(targets, predictions, weights)"),
    ),
    "too many inputs": (
        "loss_inputs",
        lambda self, batch, outputs: (*batch, outputs, None),
        ("a tuple of 4", "(targets, predictions, weights)"),
    ),
    "no losses": ("per_example_loss", returns(None), ("None", "one loss for each example")),
    "one loss": (
        "per_example_loss",
        lambda self, targets, predictions: tf.reduce_sum(predictions),
        ("shape ()", "extra_losses()"),
    ),
    "reduce": ("reduce", identity, ("shape (None,)", "self.reduce(values)")),
    "extra_losses": ("extra_losses", returns(None), ("None", "[] for none")),
    "no variables": ("trainable_variables", returns([]), ("a list of 0", "at least one")),
    "no gradients": ("process_gradients", returns(None), ("None", "one for each variable")),
    "too few": (
        "process_gradients",
        lambda self, gradients, values: gradients[:2],
        ("a list of 2", "6 gradients"),
    ),
    "another order": (
        "process_gradients",
        lambda self, gradients, values: gradients[::-1],
        ("shape (4,)", "'hidden/kernel' has the shape [8, 16]"),
    ),
    "logs": ("logs", returns(None), ("None", "a dict of metric names")),
    "train_step": ("train_step", train_step, ("NoneType", "a dict of metric names")),
}
"""The method, what it is, and what its error names beside it."""


def named():
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model(inputs, keras.layers.Dense(4, "softmax")(hidden))


@pytest.mark.parametrize("case", BAD)
def test_a_bad_return_is_told_with_the_methods_name(case):
    method, function, names = BAD[case]
    step = type("MyStep", (TrainingStep,), {method: function})
    with pytest.raises(FactoryError, match=rf"MyStep\.{method}\(|{method} of MyStep") as raised:
        fitted(named, step=lambda: step(**settings()))
    assert all(name in str(raised.value) for name in names), raised.value


class MyStep(TrainingStep):
    """A step with a name."""


class OwnLoss(keras.Sequential):
    def compute_loss(self, **arguments):
        return super().compute_loss(**arguments)


class Forgets(TrainingStep):
    def __init__(self):
        pass


class Both(TrainingStep):
    def __init__(self, optimizer):
        super().__init__(optimizer=optimizer, loss="mse")
        self.others = [keras.optimizers.SGD(0.1)]

    def update(self, gradients, variables, values):
        """Never called here."""


def hiding():
    step = MyStep(optimizer="sgd", loss="mse")
    step.logs = keras.metrics.Mean("logs")
    return step


def used():
    step = default()
    step.bind(uncompiled())
    return step


def scaled():
    return Both(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))


def of_other_outputs():
    return MyStep(optimizer="sgd", loss={"kind": "mse", "c": "mse"})


@pytest.mark.parametrize(
    ("step", "model", "data", "names"),
    [
        (lambda: MyStep(loss="mse"), uncompiled, None, ("MyStep has no optimizer", "update(")),
        (lambda: MyStep(optimizer="sgd"), compiled, None, ("compiled", "optimizer=")),
        (lambda: MyStep(optimizer="sgd"), named, None, ("MyStep has no loss", "per_example_loss")),
        (default, OwnLoss, None, ("OwnLoss", "compute_loss", "TrainingStep")),
        (used, uncompiled, None, ("already bound to another model",)),
        (Forgets, uncompiled, None, ("Forgets has no optimizer", "__init__(optimizer=…)")),
        (scaled, uncompiled, None, ("Both.update", "mixed precision", "minimize(")),
        (hiding, uncompiled, None, ("attribute 'logs'", "logs()")),
        (
            of_other_outputs,
            two_outputs,
            two_targets,
            ("outputs 'kind', 'size'; loss= has 'c', 'kind'",),
        ),
    ],
)
def test_a_step_that_does_not_fit_is_refused(step, model, data, names):
    with pytest.raises(FactoryError) as raised:
        fitted(model, data or small_data, step=step)
    assert all(name in str(raised.value) for name in names), raised.value


def test_other_optimizers_without_a_loss_scale_are_taken():
    step = Both("sgd")
    model = uncompiled()
    step.bind(model)
    assert step.model is model


def study(step):
    sweeper.Study(name="a", model=print, data=print, step=step, epochs=1, trials=1)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: MyStep(gradients=10.0), FactoryError, "MyStep(gradients=10.0)"),
        (lambda: clip_by_global_norm(0), DefinitionError, "clip_by_global_norm(0)"),
        (lambda: clip_by_value(0), DefinitionError, "clip_by_value(0)"),
        (lambda: study(MyStep(optimizer="sgd")), DefinitionError, "trial -> TrainingStep"),
        (lambda: EverySteps(0, print), DefinitionError, "EverySteps(0, …)"),
        (lambda: EverySteps(2.5, print), DefinitionError, "EverySteps(2.5, …)"),
        (lambda: AtStep(True, print), DefinitionError, "AtStep(True, …)"),
        (lambda: AtStep(1, None), DefinitionError, "AtStep(…, None)"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(call, error, names):
    with pytest.raises(error) as raised:
        call()
    assert names in str(raised.value)
