"""Training on two replicas is training on one, on the same global batches, to float tolerance."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import test_data_trains as sources
from fitted import fitted, fitted_in_parts
from keras.src.losses import loss as keras_loss
from replicated import each_replica, two_replicas, under
from steps import GanStep, maker, two_outputs, two_targets
from trainings import digits, equal, one_layer, small_data, unoptimized

from sweeper import Data, FactoryError, TrainingStep
from sweeper.gradients import clip_by_global_norm

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "ema and decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
}


def network():
    """A regularizer and synchronized batch normalization."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(4),
            keras.layers.Activation("softmax"),
        ]
    )


def net(optimizer):
    model = network()
    model.compile(OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def assert_alike(one, two):
    assert one.history.keys() == two.history.keys()
    for name, values in one.history.items():
        assert two.history[name] == pytest.approx(values, rel=1e-4, abs=1e-5), name
    for a, b in zip(one.model.weights, two.model.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


def assert_equal_one(model, data, **options):
    """The same training on one replica and on two."""
    assert_alike(fitted(model, data, **options), fitted(under(model), data, **options))


def in_pairs():
    """Batches of 14 and a smaller last one, which two replicas share equally."""
    return small_data(batch_size=14, validation_batch_size=8)


def in_order():
    """Batches of 14, and a smaller last one."""
    return Data(train=digits(), batch_size=14, shuffle=False)


whole = pytest.mark.whole


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(name, marks=[whole] * (name != "ema and decay")) for name in OPTIMIZERS],
)
def test_two_replicas_train_as_one_on_the_same_global_batches(optimizer):
    assert_equal_one(lambda: net(optimizer), in_pairs)


# Losses by their names, as in all others here, are reduced by the size of the batch.
@pytest.mark.parametrize(
    "reduction",
    [
        pytest.param("sum", marks=whole),
        pytest.param("sum_over_batch_size", marks=whole),
        "mean_with_sample_weight",
    ],
)
def test_every_reduction_of_a_loss_is_that_of_the_whole_batch(reduction):
    def weighted():
        x, y = digits()
        weights = np.random.default_rng(1).uniform(0, 2, len(x)).astype("float32")
        return Data(train=(x, y, weights), validation=(x[:32], y[:32], weights[:32]), batch_size=14)

    def model():
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        built = one_layer()
        built.compile(keras.optimizers.SGD(0.01), loss, weighted_metrics=["mae"])
        return built

    assert_equal_one(model, weighted)


def test_a_mask_counts_over_all_replicas():
    def model():
        embedded = keras.layers.Embedding(5, 4, mask_zero=True)
        inputs = keras.Input((6,), dtype="int32")
        built = keras.Sequential([inputs, embedded, keras.layers.Dense(2)])
        built.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
        return built

    def tokens():
        lengths = np.arange(28)[:, None] % 7
        x = np.where(np.arange(6) < lengths, 1 + np.arange(6) % 4, 0)
        targets = np.random.default_rng(2).normal(size=(28, 6, 2))
        return Data(train=(x.astype("int32"), targets), batch_size=14)

    assert_equal_one(model, tokens)


def of_two_outputs():
    model = two_outputs()
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mae"}
    model.compile("sgd", losses, loss_weights={"kind": 0.3, "size": 2.0}, metrics={"size": "mse"})
    return model


@pytest.mark.parametrize("step", [None, type("OwnStep", (TrainingStep,), {})])
def test_losses_of_several_outputs_are_logged_as_on_one_replica(step):
    one = fitted(of_two_outputs, two_targets)
    assert_alike(one, fitted(under(of_two_outputs), two_targets, step=step))


@pytest.mark.whole
def test_datasets_and_python_batches_are_shared_out_like_arrays():
    x, y = digits()

    def batches(_epoch):
        for start in range(0, len(x), 14):
            yield x[start : start + 14], y[start : start + 14]

    def dataset():
        return Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(14))

    arrays = fitted(under(one_layer), in_order).model.get_weights()
    for data in (dataset, lambda: Data(train=batches)):
        assert equal(fitted(under(one_layer), data).model.get_weights(), arrays)


@pytest.mark.parametrize("form", ["ragged", "tf"])
def test_ragged_and_sparse_batches_are_shared_out_by_their_rows(form):
    def built():
        model = sources.model_on(form, eager=False)
        model(sources.sparse_batches(form)[0][0])
        model.optimizer.build(model.trainable_variables)
        return model

    assert_equal_one(built, lambda: sources.data_in(form), epochs=1)


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_the_training_is_fit_bit_for_bit(optimizer):
    x, y = digits(96)
    model = under(lambda: net(optimizer))
    with unoptimized():
        run = fitted(model, lambda: Data(train=(x, y), batch_size=16, shuffle=False))
        keras.utils.set_random_seed(3)
        keras_model = model()
        history = keras_model.fit(x, y, batch_size=16, shuffle=False, epochs=2, verbose=0)
    assert run.history == history.history
    assert equal(run.model.get_weights(), keras_model.get_weights())


def test_control_without_the_scaling_two_replicas_train_another_model(monkeypatch):
    assert_equal_one(one_layer, in_order)
    monkeypatch.setattr(keras_loss, "scale_loss_for_distribution", lambda value: value)
    with pytest.raises(AssertionError):
        assert_equal_one(one_layer, in_order)


# A `TrainingStep`


class Weighted(TrainingStep):
    """Clips, has a metric and a variable of its own, and reports what is no metric."""

    def __init__(self):
        super().__init__(
            optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            gradients=[clip_by_global_norm(0.05)],
        )
        self.confidence = keras.metrics.Mean("confidence")
        self.seen = keras.Variable(0.0, trainable=False, name="seen", aggregation="sum")

    def per_example_loss(self, targets, predictions):
        self.confidence.update_state(tf.reduce_max(predictions, axis=-1))
        return 1.5 * super().per_example_loss(targets, predictions)

    def logs(self, values):
        return {**super().logs(values), "mean_of_inputs": tf.reduce_mean(values.inputs)}


def on_replicas(model, step):
    """The factories of a model and a step in the scope of one strategy."""
    strategy = two_replicas()
    return under(model, lambda: strategy), under(step, lambda: strategy)


@pytest.fixture(scope="module")
def two():
    """The training of `Weighted` on two replicas."""
    model, step = on_replicas(network, Weighted)
    return fitted(model, in_pairs, step=step)


@pytest.mark.whole
def test_a_step_on_two_replicas_trains_as_on_one(two, monkeypatch):
    one = fitted(network, in_pairs, step=Weighted)
    assert one.history.keys() >= {"confidence", "mean_of_inputs", "val_loss"}
    assert_alike(one, two)

    def mean_of_slice(_step, values, weights=None, **_):
        return tf.reduce_mean(values)

    monkeypatch.setattr(Weighted, "reduce", mean_of_slice)
    model, step = on_replicas(network, Weighted)
    with pytest.raises(AssertionError):  # the control: means of slices are added up
        assert_alike(one, fitted(model, in_pairs, step=step))


@pytest.mark.whole
def test_a_step_on_two_replicas_is_resumed_in_the_middle_of_an_epoch(two, tmp_path):
    model, step = on_replicas(network, Weighted)
    resumed = fitted_in_parts([3], tmp_path, model, in_pairs, step=step)
    assert equal(each_replica(two.model), each_replica(resumed.model))
    assert two.history == resumed.history


class BuiltGan(GanStep):
    """Its two optimizers have their slots before the first step."""

    def on_bind(self):
        with self.model.distribute_strategy.scope():
            self.of_critic.build(self.critic.trainable_variables)
            self.of_maker.build(self.model.trainable_variables)


def test_optimizers_of_a_step_s_own_are_built_before_the_first_step_or_refused():
    model, step = on_replicas(maker, BuiltGan)
    history = fitted(model, in_pairs, step=step).history
    assert history.keys() >= {"critic", "maker", "loss"}
    assert np.isfinite(list(history.values())).all()
    model, step = on_replicas(maker, GanStep)
    with pytest.raises(FactoryError, match=r"step.of_critic, .*Adam, is not built.*on_bind\(\)"):
        fitted(model, in_pairs, step=step)
