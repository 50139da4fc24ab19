"""What a checkpoint of a training on replicas has, and what it refuses.

That a training goes on from it replica by replica is in ``test_exactness_suite.py``.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted, fitted_in_parts
from replicated import each_replica, two_replicas, under
from trainings import Watcher, dropping, equal, one_layer, plan, small_data, train, unvalidated

from sweeper.checkpoint.reading import load_newest, read_manifest
from sweeper.errors import RestoreError
from sweeper.train.codec import hold_replicas, replicas_of
from sweeper.train.state.variables import load_variables


class Drifts(keras.layers.Layer):
    """Noise of every kind, and a variable of each replica's own, which readers get the sum of."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)
        self.drawn = tf.random.Generator.from_seed(6)
        self.seen = keras.Variable(
            0.0, trainable=False, aggregation="sum", synchronization="on_read", name="seen"
        )

    def call(self, x, training=False):
        if not training:
            return x
        self.seen.value.assign_add(tf.reduce_mean(x) * 0.1)
        noise = keras.random.normal(keras.ops.shape(x), stddev=0.01, seed=self.seeds)
        return (
            x + noise + 0.01 * self.drawn.normal(tf.shape(x)) + 0.001 * tf.stop_gradient(self.seen)
        )


def drifting():
    """Batch normalization, dropout, an optimizer with slots and a schedule."""
    layers = [keras.layers.BatchNormalization(), *dropping().layers]
    model = keras.Sequential([keras.Input((8,)), Drifts(), *layers])
    schedule = keras.optimizers.schedules.CosineDecay(0.02, 40)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.5), "mse")
    return model


class Counts(keras.callbacks.Callback):
    """Holds a variable of the strategy's that it changes, and lets it act on the weights."""

    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.count.assign_add(float(logs["loss"]))
        bias = self.model.layers[-1].bias
        bias.assign_add(1e-4 * float(self.count.numpy()) * keras.ops.ones_like(bias))


def callbacks():
    with STRATEGIES[-1].scope():
        counts = Counts()
    return [keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True), counts]


STRATEGIES = []
"""The newest plan's last; the callbacks' factory runs in its scope, as in a study."""


def strategy():
    STRATEGIES.append(two_replicas())
    return STRATEGIES[-1]


def data():
    """Batches of 14 and a smaller last one, which two replicas share equally; validation."""
    return small_data(batch_size=14, validation_batch_size=8)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that was stopped inside its second epoch."""
    directory = tmp_path_factory.mktemp("stopped")
    planned = plan(model=under(drifting, strategy), data=data, callbacks=callbacks)
    loop = train(planned, Watcher(directory, stop_at=10))
    return loop, load_newest([directory], pytest.fail)


def test_values_that_replicas_have_alike_are_in_the_file_once(stopped):
    loop, loaded = stopped
    model = loop._plan.model
    entries = {entry.name for entry in read_manifest(loaded.path).tensors}
    apart = [
        str(model.variables[int(name.split("/")[1])].path).rpartition("/")[2]
        for name in sorted(entries)
        if name.startswith("model/") and name.endswith("replica-1")
    ]
    assert sorted(apart) == ["moving_mean", "moving_variance", "seen"]
    assert not any(n.startswith("optimizer/") and "replica" in n for n in entries)
    assert any(n.startswith("metrics/") and n.endswith("replica-1") for n in entries)
    first, second = replicas_of(model.layers[1].moving_mean)
    assert not np.array_equal(first.numpy(), second.numpy()), "they drift apart"


def test_a_plain_model_gets_what_a_reader_of_the_replicas_would(stopped):
    model = stopped[0]._plan.model
    loaded = stopped[1]
    plain = drifting()
    load_variables(plain, loaded)
    for variable, loaded_variable in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(
            np.array(variable.value.read_value()), loaded_variable.numpy()
        )
    first, second = (float(v.numpy()) for v in replicas_of(model.layers[0].seen))
    assert plain.layers[0].seen.numpy() == pytest.approx(first + second)
    resumed = under(drifting)()
    load_variables(resumed, loaded)
    for variable, loaded_variable in zip(model.variables, resumed.variables, strict=True):
        for a, b in zip(replicas_of(variable), replicas_of(loaded_variable), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_checkpoint_of_two_replicas_is_not_trained_on_by_one(tmp_path):
    fitted(under(one_layer), unvalidated, epochs=1, checkpoints=tmp_path)
    with pytest.raises(RestoreError, match="distribute_strategy was a MirroredStrategy of 2 repl"):
        fitted(one_layer, unvalidated, checkpoints=tmp_path)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(
            lambda: tf.distribute.OneDeviceStrategy("CPU:0"), id="first", marks=pytest.mark.whole
        ),
        pytest.param(
            lambda: tf.distribute.OneDeviceStrategy("CPU:1"), id="second", marks=pytest.mark.whole
        ),
        pytest.param(lambda: tf.distribute.MirroredStrategy(["CPU:1"]), id="mirrored"),
    ],
)
def test_a_strategy_of_one_device_trains_as_no_strategy_does(strategy, tmp_path):
    without = fitted(dropping)
    resumed = fitted_in_parts([5], tmp_path, under(dropping, strategy))
    assert resumed.history == without.history
    assert equal(each_replica(resumed.model), each_replica(without.model))


def test_replicas_are_held_by_reference():
    """The values are those of the variables' own buffers until these are next written."""
    with two_replicas().scope():
        variable = tf.Variable(np.zeros(4, np.float32))
    tensors = {}
    assert hold_replicas(variable, "v", tensors) == ("v/replica-1",)
    others = {}
    hold_replicas(variable, "v", others)
    for name, tensor in tensors.items():
        assert np.asarray(tensor).ctypes.data == np.asarray(others[name]).ctypes.data
    for replica in replicas_of(variable):
        replica.assign(np.ones(4, np.float32))
    assert all(np.array_equal(np.asarray(t), np.zeros(4)) for t in tensors.values())
