"""Training on two replicas is training on one, on the same global batches, to float tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import under
from trainings import Watcher, digits, one_layer, plan, small_data, train

from sweeper import Data
from sweeper.train import replicas
from sweeper.train.loop.loop import TrainingLoop

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.02),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
    "ema and decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
    "global_clipnorm, ema and decay": lambda: keras.optimizers.SGD(
        0.5, momentum=0.9, global_clipnorm=0.05, weight_decay=0.1, use_ema=True
    ),
}


UNCLIPPED: dict[str, Callable[[], Any]] = {
    "adam": OPTIMIZERS["adam"],
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
}


TOGETHER = OPTIMIZERS["global_clipnorm, ema and decay"]
"""What depends on all gradients together, and what has averages and a decay of its own."""


def net(
    optimizer: Callable[[], Any] = TOGETHER,
    loss: Any = None,
    activity: str | None = "l1",
    **options: Any,
) -> keras.Model:
    """Regularizers, an activity regularizer and synchronized batch normalization."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(4, activity_regularizer=activity),
            keras.layers.Activation("softmax"),
        ]
    )
    given = {"metrics": ["accuracy"], **options}
    model.compile(optimizer(), loss or "sparse_categorical_crossentropy", **given)
    return model


def both(
    model: Callable[[], keras.Model], data: Callable[[], Data]
) -> tuple[TrainingLoop, TrainingLoop]:
    """The same training on one replica and on two."""
    return trained(model, data), trained(under(model), data)


def trained(model: Callable[[], keras.Model], data: Callable[[], Data]) -> TrainingLoop:
    return train(plan(model=model, data=data, epochs=2), Watcher())


def assert_alike(one: TrainingLoop, two: TrainingLoop, tolerance: float = 2e-5) -> None:
    for was, now in zip(one.epochs, two.epochs, strict=True):
        assert set(was.metrics) == set(now.metrics)
        for name, value in was.metrics.items():
            assert now.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    models = one._plan.model, two._plan.model
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)


def uneven() -> Data:
    """Batches of 15, which two replicas share as 8 and 7, and a last one of 10."""
    return small_data(batch_size=15, validation_batch_size=7)


@pytest.fixture(scope="module")
def one() -> TrainingLoop:
    """The training of `net` on one replica."""
    return trained(net, uneven)


def in_order() -> Data:
    """Batches of 15, and a last one of 10."""
    return Data(train=digits(), batch_size=15, shuffle=False)


@pytest.fixture(scope="module")
def least() -> TrainingLoop:
    """The training of one layer on one replica."""
    return trained(one_layer, in_order)


def test_two_replicas_train_as_one_on_the_same_global_batches(one: TrainingLoop) -> None:
    assert_alike(one, trained(under(net), uneven))


@pytest.mark.whole
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_each_optimizer_two_replicas_train_as_one(name: str) -> None:
    assert_alike(*both(lambda: net(OPTIMIZERS[name]), uneven))


# Losses by their names, as in all others here, are reduced by the size of the batch.
@pytest.mark.parametrize(
    "reduction",
    [
        "sum",
        "mean_with_sample_weight",
        pytest.param("sum_over_batch_size", marks=pytest.mark.whole),
    ],
)
def test_every_reduction_of_a_loss_is_that_of_the_whole_batch(reduction: str) -> None:
    def weighted() -> Data:
        x, y = digits()
        weights = np.random.default_rng(1).uniform(0, 2, len(x)).astype("float32")
        return Data(train=(x, y, weights), validation=(x[:32], y[:32], weights[:32]), batch_size=15)

    def model() -> keras.Model:
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        made = one_layer()
        made.compile(keras.optimizers.SGD(0.01), loss, weighted_metrics=["mae"])
        return made

    assert_alike(*both(model, weighted))


def test_what_layers_add_to_the_loss_counts_once_beside_a_mask_and_other_layers() -> None:
    class Adds(keras.layers.Layer):
        """Adds to the loss, and masks what is small; Keras synchronizes no masked normalization."""

        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * tf.reduce_mean(tf.square(x)))
            return x

        def compute_mask(self, x: Any, mask: Any = None) -> Any:
            return x[..., 0] > -0.5

    def model() -> keras.Model:
        made = keras.Sequential(
            [
                keras.Input((6, 4)),
                keras.layers.BatchNormalization(synchronized=True),
                Adds(),
                keras.layers.Dense(2, activity_regularizer="l2"),
            ]
        )
        made.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
        return made

    def data() -> Data:
        drawn = np.random.default_rng(2)
        x = drawn.normal(size=(40, 6, 4))
        return Data(train=(x, drawn.normal(size=(40, 6, 2))), batch_size=9, validation=None)

    assert_alike(*both(model, data))


def test_a_mask_counts_what_it_leaves_on_all_replicas() -> None:
    def model() -> keras.Model:
        made = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                keras.layers.Embedding(5, 4, mask_zero=True),
                keras.layers.Dense(2),
            ]
        )
        made.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
        return made

    def data() -> Data:
        drawn = np.random.default_rng(2)
        x = np.sort(drawn.integers(0, 5, (40, 6)), axis=1)[:, ::-1].astype("int32")
        return Data(train=(x, drawn.normal(size=(40, 6, 2))), batch_size=9, validation=None)

    assert_alike(*both(model, data))


def test_losses_of_several_outputs_are_logged_as_on_one_replica() -> None:
    def model() -> keras.Model:
        inputs = keras.Input((8,))
        outputs = {"a": keras.layers.Dense(3, name="a")(inputs)}
        outputs["b"] = keras.layers.Dense(1, name="b")(inputs)
        made = keras.Model(inputs, outputs)
        made.compile(
            "sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 0.3, "b": 2.0}, metrics={"a": "mse"}
        )
        return made

    def data() -> Data:
        x, _ = digits()
        return Data(train=(x, {"a": x[:, :3], "b": x[:, 3:4]}), batch_size=15)

    assert_alike(*both(model, data))


def test_datasets_and_python_batches_are_shared_out_like_arrays(least: TrainingLoop) -> None:
    x, y = digits()

    def batches(_epoch: int) -> Any:
        for at in range(0, len(x), 15):
            yield x[at : at + 15], y[at : at + 15]

    kinds: dict[str, Callable[[], Data]] = {
        "arrays": in_order,
        "function": lambda: Data(train=batches),
        "tf.data": lambda: Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(15)),
    }
    two = {kind: trained(under(one_layer), data) for kind, data in kinds.items()}
    assert_alike(least, two["arrays"])
    for kind in ("function", "tf.data"):
        was, now = (two[each]._plan.model.weights for each in ("arrays", kind))
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(was, now, strict=True))


def test_ragged_and_sparse_batches_are_shared_out_by_their_rows() -> None:
    from sweeper.train.replicas import slice_batch

    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0], [0, 0], [3, 4], [5, 0]])
    first, second = slice_batch({"r": ragged, "s": sparse, "n": None}, 2)
    assert first.batch["r"].to_list() == [[1], [2, 3], []]
    assert second.batch["r"].to_list() == [[4, 5, 6], [7]]
    assert tf.sparse.to_dense(first.batch["s"]).numpy().tolist() == [[0, 1], [2, 0], [0, 0]]
    assert tf.sparse.to_dense(second.batch["s"]).numpy().tolist() == [[3, 4], [5, 0]]
    assert first.batch["n"] is None


@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("adam", marks=pytest.mark.whole)])
def test_with_equal_slices_the_loop_is_fit_bit_for_bit(optimizer: str) -> None:
    """But for what layers add to the loss beside a synchronized layer, which ``fit`` mixes up."""
    x, y = digits(96)
    # Keras clips each replica's gradients, not their sum, so nothing is clipped here.
    model = under(lambda: net(UNCLIPPED[optimizer], activity=None))
    data = Data(train=(x, y), batch_size=16, shuffle=False)
    ours = train(plan(model=model, data=lambda: data, epochs=2), Watcher())
    theirs = plan(model=model, epochs=2).model
    history = theirs.fit(x, y, batch_size=16, shuffle=False, epochs=2, verbose=0)
    assert ours.history.history == history.history
    was, now = ours._plan.model.weights, theirs.weights
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(was, now, strict=True))


def test_without_the_scaling_uneven_slices_train_another_model(
    least: TrainingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(replicas, "scaled", lambda *_: nullcontext())
    with pytest.raises(AssertionError):
        assert_alike(least, trained(under(one_layer), in_order))
