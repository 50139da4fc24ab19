"""A training step in parts: with all defaults it is Keras's own, and each part can be replaced."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted
from steps import GroupsStep, compiled, settings, two_outputs, two_targets, uncompiled
from trainings import digits, equal, small_data, unvalidated, weights

from sweeper import Data, TrainingStep
from sweeper.gradients import clip_by_global_norm, clip_by_value, nan_to_zero, non_finite_to_zero

CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy


def alike(a, b):
    return equal(weights(a.model), weights(b.model)) and a.history == b.history


def lean():
    """One layer, with a regularizer."""
    dense = keras.layers.Dense(4, "softmax", kernel_regularizer=keras.regularizers.L2(0.01))
    return keras.Sequential([keras.Input((8,)), dense])


def simple():
    """As `settings`, with an optimizer that is quickly traced; which it is, no part asks."""
    return {**settings(), "optimizer": keras.optimizers.SGD(0.05), "metrics": None}


def two_layers():
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((8,)), dense(4, "relu"), dense(4, "softmax")])


def plain():
    return TrainingStep(**simple())


def weighted(validation=True):
    x, y = digits()
    scale = np.linspace(0.5, 2.0, len(x)).astype("float32")
    held_out = (x[:30], y[:30]) if validation else None
    return Data(train=(x, y, scale), validation=held_out, batch_size=16)


def momentum():
    """As `settings`, with an optimizer that has one slot for each weight instead of two."""
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 40)
    return {**settings(), "optimizer": keras.optimizers.SGD(schedule, momentum=0.5)}


class Louder(TrainingStep):
    def per_example_loss(self, targets, predictions):
        return 1.001 * super().per_example_loss(targets, predictions)


def test_with_all_defaults_a_step_is_keras_own_and_with_another_loss_it_is_not():
    expected = fitted(lambda: compiled(momentum))
    assert set(expected.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert alike(fitted(uncompiled, step=lambda: TrainingStep(**momentum())), expected)
    assert alike(fitted(lambda: compiled(momentum), step=TrainingStep), expected)
    assert not alike(fitted(uncompiled, step=lambda: Louder(**momentum())), expected), "the control"


class Sequences(keras.losses.Loss):
    """A loss for each of several values of an example."""

    def call(self, y_true, y_pred):
        return keras.ops.square(keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 4) - y_pred)


def in_half(build=lean):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return build()
    finally:
        keras.config.set_dtype_policy(policy)


def masked():
    inputs = keras.Input((8,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(embedded))


def words():
    drawn = np.random.default_rng(1).integers(0, 9, (64, 8))
    return Data(train=(drawn, np.ones((64, 8, 4), "float32")), batch_size=16)


def accumulating():
    return {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)}


def row(name, *values, whole=False):
    return pytest.param(*values, id=name, marks=pytest.mark.whole if whole else ())


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("build", "data", "options"),
    [
        row("a loss of several values", lean, small_data, lambda: {"loss": Sequences()}),
        row("a sum", lean, weighted, lambda: {"loss": CROSSENTROPY(reduction="sum")}),
        row(
            "a mean by weights",
            *(lean, weighted, lambda: {"loss": CROSSENTROPY(reduction="mean_with_sample_weight")}),
        ),
        row(
            "weights of losses and metrics",
            *(lean, weighted, lambda: {"loss_weights": 0.5, "weighted_metrics": ["accuracy"]}),
        ),
        row(
            "losses by the outputs' names",
            two_outputs,
            two_targets,
            lambda: {
                "loss": {"kind": CROSSENTROPY(reduction="sum"), "size": "mse"},
                "loss_weights": {"kind": 1.0, "size": 0.25},
            },
        ),
        row(
            "losses in order",
            *(two_outputs, two_targets, lambda: {"loss": [CROSSENTROPY(), "mse"]}),
            whole=True,
        ),
        row(
            "a loss of one output",
            *(two_outputs, two_targets, lambda: {"loss": [CROSSENTROPY(reduction="sum"), None]}),
            whole=True,
        ),
        row("a mask", masked, words, lambda: {"loss": "mse"}, whole=True),
        row("eagerly", lean, weighted, lambda: {"run_eagerly": True}, whole=True),
        row("accumulated gradients", lean, small_data, accumulating, whole=True),
        row("mixed precision", in_half, small_data, dict, whole=True),
        row("every kind of state", uncompiled, weighted, settings, whole=True),
    ],
)
def test_whatever_it_is_compiled_with_it_is_keras_own(build, data, options):
    def given():
        return {**simple(), **options()}

    expected = fitted(lambda: compiled(given, build), data, epochs=1)
    assert alike(fitted(build, data, step=lambda: TrainingStep(**given()), epochs=1), expected)


@pytest.mark.whole
def test_compiled_by_xla_it_is_keras_own():
    """Keras turns XLA off where kernels must be deterministic, as they must here."""

    class Compiled(TrainingStep):
        def on_bind(self):
            self.model._jit_compile = True

    class Unknown(Compiled):
        def make_batch(self, batch, *, training):
            x, y = batch
            return x + tf.strings.to_number(tf.strings.as_string(x)), y

    def by_keras():
        model = compiled()
        model._jit_compile = True
        return model

    mine = fitted(uncompiled, step=lambda: Compiled(**settings()))
    expected = fitted(by_keras)
    np.testing.assert_allclose(mine.history["loss"], expected.history["loss"], rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        fitted(lean, step=lambda: Unknown(**simple()))


class Norm(TrainingStep):
    """Reports the norm of the gradients that are applied."""

    def __init__(self, **options):
        super().__init__(**{**simple(), **options})
        self.norm = keras.metrics.Mean("norm")

    def process_gradients(self, gradients, values):
        processed = super().process_gradients(gradients, values)
        self.norm.update_state(tf.linalg.global_norm(processed))
        return processed


def scaling(scale):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), scale)


@pytest.mark.whole
def test_in_mixed_precision_gradients_are_processed_in_the_losses_own_units():
    one, half = (
        fitted(model, unvalidated, step=lambda: Norm(optimizer=scaling(64.0)))
        for model in (lean, in_half)
    )
    np.testing.assert_allclose(one.history["norm"], half.history["norm"], rtol=0.05)
    unlooked = fitted(
        in_half, unvalidated, step=lambda: TrainingStep(**{**simple(), "optimizer": scaling(64.0)})
    )
    assert equal(weights(half.model), weights(unlooked.model))


@pytest.mark.whole
def test_in_mixed_precision_a_scale_that_is_too_large_is_lowered_not_hidden():
    def step():
        return TrainingStep(
            **{**simple(), "optimizer": scaling(2.0**60)}, gradients=[non_finite_to_zero]
        )

    optimizer = fitted(in_half, unvalidated, step=step).model.optimizer
    assert float(optimizer.dynamic_scale) < 2.0**60


# Each part replaced.


def replaced(part, method, **options):
    kind = type("Replaced", (TrainingStep,), {part: method})
    return lambda: kind(**{**simple(), **options})


def test_make_batch_makes_another_batch_in_the_graph():
    def doubled(self, batch, *, training):
        x, y = batch
        return 2.0 * x, y

    def data():
        x, y = digits()
        return Data(train=(2 * x, y), validation=(2 * x[:30], y[:30]), batch_size=16)

    assert alike(fitted(lean, step=replaced("make_batch", doubled)), fitted(lean, data, step=plain))


@pytest.mark.whole
def test_inputs_and_loss_inputs_choose_from_a_batch_of_any_form():
    x, y = digits(96)

    def batches(epoch):
        for begin in range(0, 96, 16):
            yield {"rows": x[begin : begin + 16], "kinds": y[begin : begin + 16]}

    class Chooses(TrainingStep):
        def inputs(self, batch):
            return batch["rows"]

        def loss_inputs(self, batch, outputs):
            return batch["kinds"], outputs

    selecting = fitted(lean, lambda: Data(train=batches), step=lambda: Chooses(**simple()))
    usual = fitted(lean, lambda: Data(train=(x, y), batch_size=16, shuffle=False), step=plain)
    np.testing.assert_allclose(selecting.history["loss"], usual.history["loss"], rtol=1e-5)


@pytest.mark.whole
def test_outputs_are_what_the_step_makes_them():
    def outputs(self, inputs, *, training):
        return self.model(inputs, training=False)

    ended = fitted(uncompiled, unvalidated, step=replaced("outputs", outputs))
    assert not np.any(ended.model.layers[2].moving_mean.numpy()), "nothing ran in training mode"


def test_a_per_example_loss_of_ones_own_is_reduced_and_weighted():
    def squared(self, targets, predictions):
        one_hot = tf.one_hot(tf.cast(targets, tf.int32), 4)
        return tf.reduce_mean(tf.square(one_hot - predictions), -1)

    class Squared(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return squared(None, y_true, y_pred)

    steps = (
        replaced("per_example_loss", squared, loss=None),
        replaced("__doc__", None, loss=Squared()),
    )
    assert alike(*(fitted(lean, lambda: weighted(validation=False), step=step) for step in steps))


@pytest.mark.whole
def test_extra_losses_are_added_and_may_be_left_out():
    def times(count):
        return replaced("extra_losses", lambda self: count * list(self.model.losses))

    without, usual, more = (
        fitted(lean, step=step, epochs=1).history["val_loss"][0]
        for step in (times(0), plain, times(2))
    )
    assert without < usual < more


def changed(step):
    """Whether a training changes the weights of each layer."""
    model = two_layers()
    weights = model.get_weights()
    fitted(lambda: model, unvalidated, step=step, epochs=1)
    pairs = zip(weights, model.get_weights(), strict=True)
    return [not np.array_equal(a, b) for a, b in pairs]


def test_only_the_trainable_variables_are_trained():
    def last(self):
        return self.model.trainable_variables[-2:]

    assert changed(plain) == [True] * 4
    assert changed(replaced("trainable_variables", last)) == [False, False, True, True]


def test_process_gradients_sees_what_the_step_has_worked_out():
    def only_if_wrong(self, gradients, values):
        assert values.training
        assert values.outputs.shape[-1] == 4
        on = tf.cast(values.loss > 1e9, tf.float32)
        return [gradient * on for gradient in gradients]

    assert changed(replaced("process_gradients", only_if_wrong)) == [False] * 4


def test_logs_are_what_the_step_reports():
    def logs(self, values):
        return {"loss": values.loss, "largest": tf.reduce_max(values.outputs)}

    ended = fitted(lean, step=replaced("logs", logs), epochs=1)
    assert set(ended.history) == {"loss", "largest", "val_loss", "val_largest"}


@pytest.mark.whole
def test_the_steps_own_metrics_begin_anew_with_each_epoch_and_validation():
    class Counts(TrainingStep):
        def __init__(self):
            super().__init__(**simple())
            self.counted = {"of": [keras.metrics.Sum("counted")]}

        def inputs(self, batch):
            self.counted["of"][0].update_state(tf.shape(batch[0])[0])
            return super().inputs(batch)

    history = fitted(lean, step=Counts).history
    assert history["counted"] == [100.0, 100.0]
    assert history["val_counted"] == [30.0, 30.0]


# Gradients.


@tf.custom_gradient
def poison(values):
    return tf.identity(values), lambda upstream: upstream * float("nan")


def poisoned(self, targets, predictions):
    """A loss whose gradients are NaN in every batch, and which is finite itself."""
    return poison(TrainingStep.per_example_loss(self, targets, predictions))


@pytest.mark.parametrize(
    ("gradients", "finite"), [([nan_to_zero], True), ([non_finite_to_zero], True), ([], False)]
)
def test_gradients_that_are_nan_are_put_to_zero_where_asked(gradients, finite):
    step = replaced("per_example_loss", poisoned, gradients=gradients)
    ended = fitted(lean, unvalidated, step=step, epochs=1, notice=lambda _: None)
    assert np.isfinite(ended.model.layers[-1].kernel.numpy()).all() == finite


@pytest.mark.whole
def test_gradients_are_clipped_by_their_common_norm():
    free, clipped = (
        fitted(lean, unvalidated, step=partial(Norm, gradients=gradients)).history["norm"]
        for gradients in ([], [clip_by_global_norm(0.1)])
    )
    assert min(free) > 0.2
    np.testing.assert_allclose(clipped, 0.1, rtol=1e-4)


def test_gradients_of_embeddings_and_none_pass_through_all_that_are_on_offer():
    sparse = tf.IndexedSlices(tf.constant([[np.nan, 30.0]]), tf.constant([1]), tf.constant([4, 2]))
    gradients = [tf.constant([np.inf, -3.0]), None, sparse]
    zeroed = nan_to_zero(gradients)
    assert zeroed[1] is None
    assert np.isinf(zeroed[0][0])
    assert zeroed[2].values.numpy().tolist() == [[0.0, 30.0]]
    finite = non_finite_to_zero(gradients)
    assert finite[0].numpy().tolist() == [0.0, -3.0]
    valued = clip_by_value(1.0)(finite)
    assert valued[0].numpy().tolist() == [0.0, -1.0]
    assert valued[2].values.numpy().tolist() == [[0.0, 1.0]]
    clipped = clip_by_global_norm(1.0)(finite)
    assert clipped[1] is None
    np.testing.assert_allclose(tf.linalg.global_norm(clipped), 1.0, rtol=1e-6)


@pytest.mark.whole
def test_each_group_of_variables_may_have_an_optimizer():
    """Of several networks and optimizers there are rows in `test_exactness_suite.py`."""
    model = fitted(two_layers, unvalidated, step=GroupsStep).model
    step = model.training_step
    assert int(step.of_head.iterations) == int(step.optimizer.iterations) == 14
    assert [v.path for v in step.of_head._trainable_variables] == [
        v.path for v in model.trainable_variables[-2:]
    ]


# The page.

PAGE = (Path(__file__).parents[2] / "docs/how-to/own-training-step.md").read_text()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("step", "data", "callbacks"),
    [
        ("RobustStep", "load_data", True),
        ("HeadStep", "load_data", False),
        ("GanStep", "load_data", False),
        ("NoisyStep", "load_batches", False),
    ],
)
def test_each_step_of_the_page_trains(step, data, callbacks, tmp_path, monkeypatch):
    # `tf.summary.scalar` is TensorBoard's, which need not be installed here.
    monkeypatch.setattr(tf.summary, "scalar", tf.summary.write)
    namespace = {"__name__": "shown"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "page", "exec"), namespace)
    trial = SimpleNamespace(
        seed=1, directory=tmp_path, suggest_float=lambda name, low, high, **options: low
    )
    ended = fitted(
        lambda: namespace["build_model"](trial),
        lambda: namespace[data](trial),
        step=lambda: namespace[step](trial),
        callbacks=lambda: namespace["build_callbacks"](trial) if callbacks else [],
        epochs=3,
    )
    assert all(np.isfinite(ended.history["loss"]))
    assert len(list(tmp_path.glob("summaries/events*"))) == int(callbacks)
    if callbacks:
        assert float(ended.model.training_step.width.numpy()) == 0.5


def test_every_part_and_every_hook_has_a_row_in_the_page():
    parts = [
        *("on_bind", "make_batch", "inputs", "outputs", "loss_inputs", "per_example_loss"),
        *("reduce", "extra_losses", "trainable_variables", "process_gradients", "update", "logs"),
    ]
    hooks = [
        *("every_steps", "at_step", "create_dataset", "make_batches", "create_model"),
        *("create_loss", "create_opt", "create_ckpt", "input_pre", "loss_pre"),
        *("grad_pre", "update_pre"),
    ]
    assert re.findall(r"^\| `(\w+)[(\[]", PAGE, re.MULTILINE) == parts + hooks
    assert all(callable(getattr(TrainingStep, part)) for part in parts)
