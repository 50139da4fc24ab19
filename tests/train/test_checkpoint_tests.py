"""A checkpoint measured apart from its training gives what that training's validation gave."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import SEEDS, Watcher, classifying, digits, mlp, one_layer, plan, small_data, train

from sweeper import Data, TrainingStep
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.errors import DataError, RestoreError
from sweeper.train.loop import testing
from sweeper.train.loop.testing import CheckpointTests
from sweeper.train.sources.opening import HeldOut, open_held_out


def trained(tmp_path, model, data, step=None):
    """The checkpoint of every epoch's end, and what that epoch's validation reported."""
    watcher = Watcher(tmp_path, snapshot_at=lambda position: position.step_in_epoch == 0)
    train(plan(model=model, data=data, step=step), watcher)
    metrics = [
        {name.removeprefix("val_"): v for name, v in epoch.items() if name.startswith("val_")}
        for _, epoch in watcher.epochs
    ]
    return [load_checkpoint(path) for path in dict.fromkeys(watcher.kept)], metrics


def measuring(data, model=mlp, step=None):
    """What measures checkpoints of a model that is built as its training's was."""
    built = plan(model=model, data=lambda: data, step=step)
    notice = [].append
    held_out = open_held_out(data, notice)
    assert isinstance(held_out, HeldOut)
    return CheckpointTests(built, held_out, SEEDS.sequence("evaluation"), notice)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x = x
        self.y = y

    def __len__(self):
        return 3

    def __getitem__(self, index):
        part = slice(index * 10, index * 10 + 10)
        return self.x[part], self.y[part]


def normalized():
    """Moving statistics and one layer, with a metric."""
    layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4, activation="softmax")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Weighing(TrainingStep):
    """Its loss is weighed by a variable of its own, which training moves; it has a metric of its own."""

    def __init__(self):
        super().__init__(optimizer="sgd", loss="sparse_categorical_crossentropy")
        self.weight = keras.Variable(1.0, trainable=False, name="weight")
        self.first = keras.metrics.Sum(name="first")

    def logs(self, values):
        self.first.update_state(values.predictions[:, 0])
        return super().logs(values)

    def per_example_loss(self, targets, predictions, **rest):
        return super().per_example_loss(targets, predictions, **rest) * self.weight

    def update(self, *arguments, **rest):
        self.weight.assign_add(0.5)
        return super().update(*arguments, **rest)


def uncompiled():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])


def usual_step():
    return TrainingStep(optimizer="sgd", loss="sparse_categorical_crossentropy")


class Helped(keras.Model):
    """A second network that only ``train_step`` calls; and a weight that only an attribute holds."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4)
        self.helper = keras.layers.Dense(2, trainable=False)
        self.scale = tf.Variable(1.0, trainable=False)

    def build(self, shape):
        self.first.build(shape)

    def call(self, inputs):
        return self.first(inputs) * self.scale

    def train_step(self, data):
        self.helper(data[0])
        self.scale.assign_add(0.5)
        return super().train_step(data)


class Late(keras.Model):
    """Has its variables from its first call on."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="softmax")

    def call(self, inputs):
        return self.dense(inputs)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def helped():
    model = Helped()
    model.compile("sgd", LOSS)
    return model


def late():
    model = Late()
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


def vectors():
    model = classifying()
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    return model


X, Y = digits()
TARGETS = np.eye(4)[Y]
ARRAYS = (X[:30], Y[:30])
KINDS = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices(ARRAYS).batch(16),
    "PyDataset": lambda: Batches(X, Y),
    "function": lambda: lambda epoch: ((X[i : i + 8], Y[i : i + 8]) for i in range(0, 30, 8)),
}
whole = pytest.mark.whole


# By default a model with moving statistics where the data ask least, and the least one elsewhere.
@pytest.mark.parametrize(
    ("model", "data", "step"),
    [
        pytest.param(normalized, small_data, None, id="arrays"),
        pytest.param(
            one_layer, lambda: small_data(validation=KINDS["tf.data"]()), None, id="least"
        ),
        *(
            pytest.param(
                mlp, lambda k=k: small_data(validation=KINDS[k]()), None, id=k, marks=whole
            )
            for k in KINDS
        ),
        pytest.param(helped, small_data, None, id="variables that only training makes"),
        pytest.param(uncompiled, small_data, Weighing, id="a training step"),
        pytest.param(late, small_data, None, id="eager", marks=whole),
        pytest.param(
            vectors,
            lambda: Data((X, TARGETS), (X[:30], TARGETS[:30])),
            None,
            id="a number for each component",
            marks=whole,
        ),
    ],
)
def test_every_checkpoint_on_the_validation_data_gives_its_epochs_val_metrics(
    model, data, step, tmp_path
):
    loaded, metrics = trained(tmp_path, model, data, step)
    tests = measuring(data(), model, step)
    assert [tests.run(checkpoint) for checkpoint in loaded] == metrics
    assert len({values["loss"] for values in metrics}) == len(metrics) == 3, "control: they differ"
    assert model is not vectors or {f"f1_score[{n}]" for n in range(4)} < metrics[0].keys()
    if step is not None:
        control = measuring(data(), model, usual_step)
        assert [control.run(checkpoint) for checkpoint in loaded] != metrics, (
            "the step is what measures"
        )


def test_what_a_checkpoint_gives_depends_on_no_other_one(tmp_path, monkeypatch):
    """With a model and data that draw random numbers wherever they can."""

    class Noisy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.own = keras.random.SeedGenerator(3)
            self.untracked = [tf.random.Generator.from_seed(5)]

        def call(self, inputs):
            noise = keras.random.normal(tf.shape(inputs), seed=self.own)
            noise += keras.random.normal(tf.shape(inputs))
            return inputs + noise + self.untracked[0].normal(tf.shape(inputs))

    def model():
        built = keras.Sequential([keras.Input((8,)), Noisy(), keras.layers.Dense(4)])
        built.compile("sgd", LOSS)
        return built

    def batches(epoch):
        for start in range(0, 30, 10):
            noise = np.random.normal() + random.random() + np.random.default_rng().normal()
            yield X[start : start + 10] + noise, Y[start : start + 10]

    def data():
        return small_data(validation=None, test=batches)

    loaded, _ = trained(tmp_path, model, data)
    forwards = measuring(data(), model)
    ahead = [forwards.run(checkpoint) for checkpoint in loaded]
    assert ahead == [forwards.run(checkpoint) for checkpoint in loaded], (
        "nor on how often it was measured"
    )
    backwards = measuring(data(), model)
    assert ahead == [backwards.run(checkpoint) for checkpoint in reversed(loaded)][::-1]
    assert len({values["loss"] for values in ahead}) == 3
    monkeypatch.setattr(testing.RecordedState, "restore", lambda _self: None)
    assert ahead != [forwards.run(checkpoint) for checkpoint in loaded], (
        "control: generators that go on"
    )


def test_the_step_is_traced_once_for_all_checkpoints(tmp_path):
    calls = []

    class Counting(keras.Sequential):
        def test_step(self, data):
            calls.append(data)
            return super().test_step(data)

    def model():
        built = Counting(one_layer().layers)
        built.compile("sgd", "mse")
        return built

    loaded, _ = trained(tmp_path, model, small_data)
    calls.clear()
    tests = measuring(small_data(), model)
    traced = len(calls)
    for checkpoint in loaded:
        tests.run(checkpoint)
    assert len(calls) == traced > 0


def test_the_test_split_is_read_whole_whatever_a_validation_reads(tmp_path):
    data = small_data(validation_steps=1, test=(X, Y))
    held_out = open_held_out(data, pytest.fail)
    assert held_out is not None
    assert (held_out.name, held_out.limit) == ("test", None)
    in_part = open_held_out(small_data(validation_steps=1), pytest.fail)
    assert in_part is not None
    assert (in_part.name, in_part.limit) == ("validation", 1)
    split = open_held_out(Data(train=(X, Y), validation_split=0.25), pytest.fail)
    assert split is not None
    assert len(split.given[0]) == 25
    assert open_held_out(Data(train=(X, Y)), pytest.fail) is None


def test_training_never_opens_the_test_split(tmp_path):
    def opened(_epoch):
        raise AssertionError("the test split was read")

    trained(tmp_path, one_layer, lambda: small_data(validation=None, test=opened))
    with pytest.raises(AssertionError, match="was read"):
        measuring(small_data(validation=None, test=opened), one_layer)


def test_a_checkpoint_of_another_model_is_refused_with_every_mismatch(tmp_path):
    def narrower():
        built = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, use_bias=False)])
        built.compile("sgd", "mse")
        return built

    loaded, _ = trained(tmp_path, one_layer, small_data)
    with pytest.raises(RestoreError) as refused:
        measuring(small_data(), narrower).run(loaded[0])
    assert str(loaded[0].path) in str(refused.value)
    variable = f"model variable 1 ({loaded[0].state['model'][1]})"
    assert f"{variable} is in the checkpoint only" in str(refused.value)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (lambda: tf.data.Dataset.from_tensors((X, Y)).repeat(), "never ends"),
        (
            lambda: tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(100, seed=1).batch(10),
            "reshuffled at each iteration",
        ),
    ],
)
def test_data_that_no_checkpoint_can_be_measured_on_are_refused(test, message):
    with pytest.raises(DataError, match=rf"Data\(test=…\).*{message}"):
        open_held_out(small_data(test=test()), lambda _notice: None)
