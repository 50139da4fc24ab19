"""A `TrainingStep` on two replicas trains as on one, and is resumed replica by replica."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import each_replica, two_replicas, under
from steps import GanStep
from trainings import Watcher, plan, small_data, train

from sweeper import TrainingStep
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.errors import FactoryError
from sweeper.gradients import clip_by_global_norm


def network():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.BatchNormalization(synchronized=True),
            layers.Dense(4, activation="softmax", kernel_regularizer="l2"),
        ]
    )


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


def planned(*, replicas):
    strategy = two_replicas() if replicas else tf.distribute.get_strategy()

    def step():
        with strategy.scope():
            return Weighted()

    return plan(
        model=under(network, lambda: strategy) if replicas else network,
        data=in_pairs,
        step=step,
        epochs=2,
    )


@pytest.fixture(scope="module")
def one():
    return train(planned(replicas=False), Watcher())


@pytest.fixture(scope="module")
def with_checkpoint(tmp_path_factory):
    """The training on two replicas, and its checkpoint on its way, in the middle of an epoch."""
    directory = tmp_path_factory.mktemp("two")
    watcher = Watcher(directory, lambda position: position.step == 3, block=1)
    loop = train(planned(replicas=True), watcher)
    return loop, load_checkpoint(watcher.kept[0])


@pytest.fixture(scope="module")
def two(with_checkpoint):
    return with_checkpoint[0]


def in_pairs():
    """Batches of 14 and a smaller last one, which two replicas share equally."""
    return small_data(batch_size=14, validation_batch_size=8)


def assert_alike(one, two):
    for was, now in zip(one.epochs, two.epochs, strict=True):
        assert set(was.metrics) == set(now.metrics) >= {"confidence", "mean_of_inputs", "val_loss"}
        for name, value in was.metrics.items():
            assert now.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    models = one._plan.model, two._plan.model
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.whole
def test_a_step_on_two_replicas_trains_as_on_one(one, two):
    assert_alike(one, two)


@pytest.mark.whole
def test_control_a_step_that_adds_up_the_means_of_slices_trains_another_model(one, monkeypatch):
    def mean_of_slice(_step, values, weights=None, **_):
        del weights
        return tf.reduce_mean(values)

    monkeypatch.setattr(Weighted, "reduce", mean_of_slice)
    with pytest.raises(AssertionError):
        assert_alike(one, train(planned(replicas=True), Watcher()))


@pytest.mark.whole
def test_a_step_on_two_replicas_is_resumed_in_the_middle_of_an_epoch(with_checkpoint):
    two, loaded = with_checkpoint
    assert loaded.step == 3
    resumed = train(planned(replicas=True), Watcher(), loaded)
    pairs = zip(each_replica(two._plan.model), each_replica(resumed._plan.model), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert [e.metrics for e in two.epochs] == [e.metrics for e in resumed.epochs]


class BuiltGan(GanStep):
    """Its two optimizers have their slots before the first step."""

    def on_bind(self):
        with self.model.distribute_strategy.scope():
            self.of_critic.build(self.critic.trainable_variables)
            self.of_maker.build(self.model.trainable_variables)


def adversarial(step):
    def maker():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])

    strategy = two_replicas()

    def made():
        with strategy.scope():
            return step()

    return plan(model=under(maker, lambda: strategy), data=in_pairs, step=made, epochs=2)


def test_optimizers_of_a_step_s_own_are_built_before_the_first_step_or_refused():
    loop = train(adversarial(BuiltGan), Watcher())
    assert {"critic", "maker", "loss"} <= set(loop.epochs[-1].metrics)
    assert all(np.isfinite(list(loop.epochs[-1].metrics.values())))
    with pytest.raises(FactoryError, match=r"step.of_critic, .*Adam, is not built.*on_bind\(\)"):
        train(adversarial(GanStep), Watcher())
