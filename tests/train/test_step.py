"""A training step in parts: with all defaults it is Keras's own, and each part can be replaced."""

from dataclasses import replace
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from steps import GanStep, GroupsStep, maker, settings, uncompiled
from trainings import Watcher, digits, equal, plan, small_data, train, unvalidated, weights

from sweeper import Data, TrainingStep
from sweeper.gradients import clip_by_global_norm, clip_by_value, nan_to_zero, non_finite_to_zero


def trained(step, model=None, **options):
    options.setdefault("epochs", 2)
    return train(plan(model=model or lean, step=step, **options), Watcher())


def result(loop):
    return weights(loop._plan.model), loop.history.history


def alike(a, b):
    (first, logs), (second, others) = result(a), result(b)
    return equal(first, second) and logs == others


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


def weighted():
    x, y = digits()
    scale = np.linspace(0.5, 2.0, len(x)).astype("float32")
    return Data(train=(x, y, scale), validation=(x[:30], y[:30]), batch_size=16)


def weighted_alone():
    return replace(weighted(), validation=None)


def momentum():
    """As `settings`, with an optimizer that has one slot for each weight instead of two."""
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 40)
    return {**settings(), "optimizer": keras.optimizers.SGD(schedule, momentum=0.5)}


def compiled_with(given, build=uncompiled):
    model = build()
    model.compile(**given())
    return model


@pytest.fixture(scope="module")
def keras_own():
    """The training of `uncompiled` with settings by Keras's step."""
    return cache(lambda data, given: trained(None, lambda: compiled_with(given), data=data))


# The parametrised settings below are trained on data with weights.
@pytest.mark.parametrize(
    ("data", "given"),
    [
        (small_data, momentum),
        pytest.param(small_data, settings, marks=pytest.mark.whole),
        pytest.param(weighted, settings, marks=pytest.mark.whole),
    ],
)
def test_with_all_defaults_a_step_is_keras_own(data, given, keras_own):
    own = keras_own(data, given)
    assert set(own.history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert alike(trained(lambda: TrainingStep(**given()), uncompiled, data=data), own)
    assert alike(trained(TrainingStep, lambda: compiled_with(given), data=data), own)


def test_a_step_with_another_loss_is_not_keras_own(keras_own):
    """Negative control: the equality above is not for free."""

    class Louder(TrainingStep):
        def per_example_loss(self, targets, predictions):
            return 1.001 * super().per_example_loss(targets, predictions)

    louder = trained(lambda: Louder(**momentum()), uncompiled)
    assert not alike(louder, keras_own(small_data, momentum))


class Sequences(keras.losses.Loss):
    """A loss for each of several values of an example."""

    def call(self, y_true, y_pred):
        return keras.ops.square(keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 4) - y_pred)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": Sequences},
        {"loss": lambda: keras.losses.SparseCategoricalCrossentropy(reduction="sum")},
        {
            "loss": lambda: keras.losses.SparseCategoricalCrossentropy(
                reduction="mean_with_sample_weight"
            )
        },
        {"loss_weights": 0.5, "weighted_metrics": ["accuracy"]},
        pytest.param({"run_eagerly": True}, marks=pytest.mark.whole),
        pytest.param({"loss_weights": 0.5}, marks=pytest.mark.whole),
        pytest.param({"weighted_metrics": ["accuracy"]}, marks=pytest.mark.whole),
    ],
    ids=lambda options: next(iter(options)),
)
def test_whatever_it_is_compiled_with_it_is_keras_own(options):
    def given():
        made = {n: v() if n == "loss" else v for n, v in options.items()}
        return {**simple(), **made}

    data = small_data if options.get("loss") is Sequences else weighted
    own = trained(None, lambda: compiled_with(given, lean), data=data, epochs=1)
    assert alike(trained(lambda: TrainingStep(**given()), lean, data=data, epochs=1), own)


@pytest.mark.parametrize(
    ("build", "given", "data"),
    [
        pytest.param(lean, simple, unvalidated, id="lean", marks=pytest.mark.whole),
        pytest.param(uncompiled, settings, small_data, id="full", marks=pytest.mark.whole),
    ],
)
def test_compiled_by_xla_it_is_keras_own(build, given, data):
    """Keras turns XLA off where kernels must be deterministic, as they must here."""

    class Compiled(TrainingStep):
        def on_bind(self):
            self.model._jit_compile = True

    def by_keras():
        model = compiled_with(given, build)
        model._jit_compile = True
        return model

    mine = trained(lambda: Compiled(**given()), build, data=data)
    own = trained(None, by_keras, data=data)
    np.testing.assert_allclose(mine.history.history["loss"], own.history.history["loss"], rtol=1e-6)
    call = mine._train.one._call
    assert call._jit_compile


def in_half(build=lean):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return build()
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.whole
def test_in_mixed_precision_it_is_keras_own_and_scales_its_loss():
    mine = trained(plain, in_half)
    assert isinstance(mine._plan.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert alike(mine, trained(None, lambda: compiled_with(simple, in_half)))


@pytest.mark.whole
def test_in_mixed_precision_gradients_are_processed_in_the_losses_own_units():
    class Norm(TrainingStep):
        def __init__(self):
            rate = keras.optimizers.SGD(0.01)
            scaling = keras.optimizers.LossScaleOptimizer(rate, initial_scale=64.0)
            super().__init__(**{**simple(), "optimizer": scaling})
            self.norm = keras.metrics.Mean("norm")

        def process_gradients(self, gradients, values):
            self.norm.update_state(tf.linalg.global_norm(gradients))
            return gradients

    class Plain(Norm):
        process_gradients = TrainingStep.process_gradients

    normed = [trained(Norm, model, data=unvalidated) for model in (lean, in_half)]
    one, half = (loop.history.history["norm"] for loop in normed)
    np.testing.assert_allclose(one, half, rtol=0.05)
    usual = trained(Plain, in_half, data=unvalidated)
    assert equal(weights(normed[1]._plan.model), weights(usual._plan.model))


@pytest.mark.whole
def test_in_mixed_precision_a_scale_that_is_too_large_is_lowered_not_hidden():
    def step():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 2.0**60)
        return TrainingStep(**{**simple(), "optimizer": optimizer}, gradients=[non_finite_to_zero])

    optimizer = trained(step, in_half, data=unvalidated)._plan.model.optimizer
    assert float(optimizer.dynamic_scale) < 2.0**60


def two_outputs():
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    first = keras.layers.Dense(4, "softmax", name="kind")(hidden)
    return keras.Model(inputs, [first, keras.layers.Dense(1, name="size")(hidden)])


def two_targets():
    x, y = digits()
    return Data(train=(x, {"kind": y, "size": x[:, :1]}), batch_size=16)


KIND = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    ("losses", "shares"),
    [
        ({"kind": KIND(reduction="sum"), "size": "mse"}, {"kind": 1.0, "size": 0.25}),
        pytest.param([KIND(), "mse"], [1.0, 0.25], marks=pytest.mark.whole),
        pytest.param([KIND(reduction="sum"), None], [0.5, 1.0], marks=pytest.mark.whole),
    ],
    ids=["by name", "in order", "of one"],
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_several_outputs_have_a_loss_and_a_weight_each(losses, shares):
    def given():
        return {"optimizer": keras.optimizers.SGD(0.1), "loss": losses, "loss_weights": shares}

    mine = trained(lambda: TrainingStep(**given()), two_outputs, data=two_targets)
    own = trained(None, lambda: compiled_with(given, two_outputs), data=two_targets)
    assert ("kind_loss" in own.history.history) == (None not in losses)
    assert alike(mine, own)


@pytest.mark.whole
def test_what_a_mask_leaves_out_does_not_count():
    def model():
        inputs = keras.Input((8,), dtype="int32")
        embedded = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
        return keras.Model(inputs, keras.layers.Dense(4)(embedded))

    def given():
        return {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"}

    def data():
        words = np.random.default_rng(1).integers(0, 9, (64, 8))
        return Data(train=(words, np.ones((64, 8, 4), "float32")), batch_size=16)

    mine = trained(lambda: TrainingStep(**given()), model, data=data)
    assert alike(mine, trained(None, lambda: compiled_with(given, model), data=data))


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

    assert alike(trained(replaced("make_batch", doubled)), trained(plain, data=data))


@pytest.mark.whole
def test_inputs_and_loss_inputs_choose_from_a_batch_of_any_form():
    def data():
        def batches(epoch):
            x, y = digits()
            for begin in range(0, 96, 16):
                yield {"rows": x[begin : begin + 16], "kinds": y[begin : begin + 16]}

        return Data(train=batches)

    def tuples():
        x, y = digits()
        return Data(train=(x[:96], y[:96]), batch_size=16, shuffle=False)

    class Chooses(TrainingStep):
        def inputs(self, batch):
            return batch["rows"]

        def loss_inputs(self, batch, outputs):
            return batch["kinds"], outputs

    chosen = trained(lambda: Chooses(**simple()), data=data)
    usual = trained(plain, data=tuples)
    np.testing.assert_allclose(
        chosen.history.history["loss"], usual.history.history["loss"], rtol=1e-5
    )


@pytest.mark.whole
def test_outputs_are_what_the_step_makes_them():
    def outputs(self, inputs, *, training):
        return self.model(inputs, training=False)

    loop = trained(replaced("outputs", outputs), uncompiled, data=unvalidated)
    moving = loop._plan.model.layers[2].moving_mean
    assert not np.any(moving.numpy()), "nothing ran in training mode"


def test_a_per_example_loss_of_ones_own_is_reduced_and_weighted():
    def squared(self, targets, predictions):
        wanted = tf.one_hot(tf.cast(targets, tf.int32), 4)
        return tf.reduce_mean(tf.square(wanted - predictions), -1)

    class Squared(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return squared(None, y_true, y_pred)

    own = replaced("per_example_loss", squared, loss=None)
    by_keras = replaced("__doc__", None, loss=Squared())
    assert alike(trained(own, data=weighted_alone), trained(by_keras, data=weighted_alone))


@pytest.mark.whole
def test_extra_losses_are_added_and_may_be_left_out():
    def none(self):
        return []

    def twice(self):
        return [*self.model.losses, *self.model.losses]

    usual, without, more = (
        trained(step, epochs=1).history.history["val_loss"][0]
        for step in (
            plain,
            replaced("extra_losses", none),
            replaced("extra_losses", twice),
        )
    )
    assert without < usual < more


def test_only_the_trainable_variables_are_trained():
    def last(self):
        return self.model.trainable_variables[-2:]

    step = replaced("trainable_variables", last)
    planned = plan(model=two_layers, data=unvalidated, step=step, epochs=1)
    before = weights(planned.model)
    train(planned, Watcher())
    after = weights(planned.model)
    assert equal(before[:2], after[:2])
    assert not equal(before[-2:], after[-2:])


def test_process_gradients_sees_what_the_step_has_worked_out():
    def only_if_wrong(self, gradients, values):
        assert values.training
        assert values.outputs.shape[-1] == 4
        on = tf.cast(values.loss > 1e9, tf.float32)
        return [gradient * on for gradient in gradients]

    step = replaced("process_gradients", only_if_wrong)
    planned = plan(model=lean, data=unvalidated, step=step, epochs=1)
    before = [v.numpy().copy() for v in planned.model.trainable_variables]
    train(planned, Watcher())
    assert equal(before, [v.numpy() for v in planned.model.trainable_variables])


def test_logs_are_what_the_step_reports_and_what_an_objective_may_be():
    def logs(self, values):
        return {"loss": values.loss, "largest": tf.reduce_max(values.outputs)}

    loop = trained(replaced("logs", logs), objective="val_largest", epochs=1)
    assert set(loop.history.history) == {"loss", "largest", "val_loss", "val_largest"}


@pytest.mark.whole
def test_the_steps_own_metrics_begin_anew_with_each_epoch_and_validation():
    class Counts(TrainingStep):
        def __init__(self):
            super().__init__(**simple())
            self.counted = {"of": [keras.metrics.Sum("counted")]}

        def inputs(self, batch):
            self.counted["of"][0].update_state(tf.shape(batch[0])[0])
            return super().inputs(batch)

    history = trained(Counts).history.history
    assert history["counted"] == [100.0, 100.0]
    assert history["val_counted"] == [30.0, 30.0]


# Gradients.


@tf.custom_gradient
def poison(values):
    return tf.identity(values), lambda upstream: upstream * float("nan")


def poisoned(self, targets, predictions):
    """A loss whose gradients are NaN in every batch, and which is finite itself."""
    return poison(TrainingStep.per_example_loss(self, targets, predictions))


def test_gradients_that_are_nan_are_put_to_zero_where_asked():
    for gradients in ([nan_to_zero], [non_finite_to_zero]):
        step = replaced("per_example_loss", poisoned, gradients=gradients)
        loop = trained(step, data=unvalidated, epochs=1)
        assert np.isfinite(loop._plan.model.layers[-1].kernel.numpy()).all()
    loop = trained(replaced("per_example_loss", poisoned), data=unvalidated, epochs=1)
    assert np.isnan(loop._plan.model.layers[-1].kernel.numpy()).any()


@pytest.mark.whole
def test_gradients_are_clipped_by_their_common_norm():
    class Norm(TrainingStep):
        def process_gradients(self, gradients, values):
            done = super().process_gradients(gradients, values)
            self.norm.update_state(tf.linalg.global_norm(done))
            return done

        def __init__(self, **options):
            super().__init__(**simple(), **options)
            self.norm = keras.metrics.Mean("norm")

    def norms(**options):
        return trained(lambda: Norm(**options), data=unvalidated).history.history["norm"]

    free, clipped = norms(), norms(gradients=[clip_by_global_norm(0.1)])
    assert min(free) > 0.2
    np.testing.assert_allclose(clipped, 0.1, rtol=1e-4)


def test_gradients_of_embeddings_and_none_pass_through_all_that_are_on_offer():
    sparse = tf.IndexedSlices(tf.constant([[np.nan, 30.0]]), tf.constant([1]), tf.constant([4, 2]))
    given = [tf.constant([np.inf, -3.0]), None, sparse]
    zeroed = nan_to_zero(given)
    assert zeroed[1] is None
    assert np.isinf(zeroed[0][0])
    assert zeroed[2].values.numpy().tolist() == [[0.0, 30.0]]
    finite = non_finite_to_zero(given)
    assert finite[0].numpy().tolist() == [0.0, -3.0]
    valued = clip_by_value(1.0)(finite)
    assert valued[0].numpy().tolist() == [0.0, -1.0]
    assert valued[2].values.numpy().tolist() == [[0.0, 1.0]]
    clipped = clip_by_global_norm(1.0)(finite)
    assert clipped[1] is None
    np.testing.assert_allclose(tf.linalg.global_norm(clipped), 1.0, rtol=1e-6)


@pytest.mark.whole
def test_four_batches_accumulated_are_one_update_with_their_mean():
    def model():
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])

    def step(**options):
        return TrainingStep(
            optimizer=keras.optimizers.SGD(0.1, **options),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            gradients=[nan_to_zero],
        )

    def data(size):
        x, y = digits(64)
        return lambda: Data(train=(x, y), batch_size=size, shuffle=False)

    many = trained(lambda: step(gradient_accumulation_steps=4), model, data=data(4))
    whole = trained(step, model, data=data(16))
    for a, b in zip(many._plan.model.variables, whole._plan.model.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


# More than one optimizer.


@pytest.mark.whole
def test_each_group_of_variables_may_have_an_optimizer():
    loop = trained(GroupsStep, two_layers, data=unvalidated)
    step = loop._plan.step
    assert int(step.of_head.iterations) == int(step.optimizer.iterations) == 14
    assert [v.path for v in step.of_head._trainable_variables] == [
        v.path for v in loop._plan.model.trainable_variables[-2:]
    ]


def test_two_networks_are_trained_against_each_other():
    loop = trained(GanStep, maker)
    step = loop._plan.step
    assert int(step.turns.numpy()) == 14
    assert {"loss", "critic", "maker", "val_loss"} == set(loop.history.history)
    assert all(np.isfinite(loop.history.history["loss"]))
    captured = {component.name: component.capture({}) for component in loop._state.components}
    assert len(captured["optimizers"]) > 0
    assert len(captured["reachable"]) > 0
