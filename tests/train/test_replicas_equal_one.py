"""Training on two replicas is training on one, on the same global batches, to float tolerance."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from replicated import under
from trainings import Watcher, digits, one_layer, plan, small_data, train, unoptimized

from sweeper import Data, TrainingStep

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "ema and decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
}
TOGETHER = OPTIMIZERS["ema and decay"]
"""Has averages and a decay of its own."""


def net(optimizer=TOGETHER, loss=None, **options):
    """A regularizer and synchronized batch normalization."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(4),
            keras.layers.Activation("softmax"),
        ]
    )
    given = {"metrics": ["accuracy"], **options}
    model.compile(optimizer(), loss or "sparse_categorical_crossentropy", **given)
    return model


def both(model, data):
    """The same training on one replica and on two."""
    return trained(model, data), trained(under(model), data)


def trained(model, data):
    return train(plan(model=model, data=data, epochs=2), Watcher())


def assert_alike(one, two, tolerance=2e-5):
    for was, now in zip(one.epochs, two.epochs, strict=True):
        assert set(was.metrics) == set(now.metrics)
        for name, value in was.metrics.items():
            assert now.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    models = one._plan.model, two._plan.model
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)


def in_pairs():
    """Batches of 14 and a smaller last one, which two replicas share equally."""
    return small_data(batch_size=14, validation_batch_size=8)


@pytest.fixture(scope="module")
def one():
    """The training of `net` on one replica."""
    return trained(net, in_pairs)


def in_order():
    """Batches of 14, and a smaller last one."""
    return Data(train=digits(), batch_size=14, shuffle=False)


@pytest.fixture(scope="module")
def least():
    """The training of one layer on one replica."""
    return trained(one_layer, in_order)


def test_two_replicas_train_as_one_on_the_same_global_batches(one):
    assert_alike(one, trained(under(net), in_pairs))


@pytest.mark.whole
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_each_optimizer_two_replicas_train_as_one(name):
    assert_alike(*both(lambda: net(OPTIMIZERS[name]), in_pairs))


# Losses by their names, as in all others here, are reduced by the size of the batch.
@pytest.mark.parametrize(
    "reduction",
    [
        pytest.param("sum", marks=pytest.mark.whole),
        pytest.param("sum_over_batch_size", marks=pytest.mark.whole),
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
        made = one_layer()
        made.compile(keras.optimizers.SGD(0.01), loss, weighted_metrics=["mae"])
        return made

    assert_alike(*both(model, weighted))


def test_a_mask_counts_over_all_replicas():
    def model():
        layers = keras.layers
        made = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(5, 4, mask_zero=True),
                layers.Dense(2),
            ]
        )
        made.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
        return made

    def tokens():
        lengths = np.arange(28)[:, None] % 7
        x = np.where(np.arange(6) < lengths, 1 + np.arange(6) % 4, 0)
        targets = np.random.default_rng(2).normal(size=(28, 6, 2))
        return Data(train=(x.astype("int32"), targets), batch_size=14)

    assert_alike(*both(model, tokens))


def two_outputs():
    inputs = keras.Input((8,))
    outputs = {"a": keras.layers.Dense(3, name="a")(inputs)}
    outputs["b"] = keras.layers.Dense(1, name="b")(inputs)
    made = keras.Model(inputs, outputs)
    made.compile(
        "sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 0.3, "b": 2.0}, metrics={"a": "mse"}
    )
    return made


class OwnStep(TrainingStep):
    """Overrides nothing."""


@pytest.mark.parametrize("step", [None, OwnStep], ids=["the model's", "of its own"])
def test_losses_of_several_outputs_are_logged_as_on_one_replica(step):
    def data():
        x, _ = digits()
        return Data(train=(x, {"a": x[:, :3], "b": x[:, 3:4]}), batch_size=14)

    two = plan(model=under(two_outputs), data=data, step=step, epochs=2)
    assert_alike(trained(two_outputs, data), train(two, Watcher()))


@pytest.mark.whole
def test_datasets_and_python_batches_are_shared_out_like_arrays(least):
    x, y = digits()

    def batches(_epoch):
        for at in range(0, len(x), 14):
            yield x[at : at + 14], y[at : at + 14]

    kinds = {
        "arrays": in_order,
        "function": lambda: Data(train=batches),
        "tf.data": lambda: Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(14)),
    }
    two = {kind: trained(under(one_layer), data) for kind, data in kinds.items()}
    assert_alike(least, two["arrays"])
    for kind in ("function", "tf.data"):
        was, now = (two[each]._plan.model.weights for each in ("arrays", kind))
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(was, now, strict=True))


def test_ragged_and_sparse_batches_are_shared_out_by_their_rows():
    from sweeper.train.replicas import slice_of

    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0], [0, 0], [3, 4]])
    batch = {"r": ragged, "s": sparse, "n": None}
    first, second = slice_of(batch, 0, 2), slice_of(batch, 1, 2)
    assert first["r"].to_list() == [[1], [2, 3]]
    assert second["r"].to_list() == [[], [4, 5, 6]]
    assert tf.sparse.to_dense(first["s"]).numpy().tolist() == [[0, 1], [2, 0]]
    assert tf.sparse.to_dense(second["s"]).numpy().tolist() == [[0, 0], [3, 4]]
    assert first["n"] is None


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("adam", marks=pytest.mark.whole)])
def test_the_loop_is_fit_bit_for_bit(optimizer):
    x, y = digits(96)
    model = under(lambda: net(OPTIMIZERS[optimizer]))
    data = Data(train=(x, y), batch_size=16, shuffle=False)
    with unoptimized():
        ours = train(plan(model=model, data=lambda: data, epochs=2), Watcher())
        theirs = plan(model=model, epochs=2).model
        history = theirs.fit(x, y, batch_size=16, shuffle=False, epochs=2, verbose=0)
    assert ours.history.history == history.history
    was, now = ours._plan.model.weights, theirs.weights
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(was, now, strict=True))


def test_control_without_the_scaling_two_replicas_train_another_model(least, monkeypatch):
    monkeypatch.setattr(keras_loss, "scale_loss_for_distribution", lambda value: value)
    with pytest.raises(AssertionError):
        assert_alike(least, trained(under(one_layer), in_order))
