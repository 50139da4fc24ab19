"""A model that leaves a trial trains on as one that ``model.save`` wrote at the end of the same training."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from small_models import SAMPLES, Runner, arrays, in_order, same, variables

import sweeper
from sweeper.models import rebuilding


def cosine(rate):
    return optimizers.Adam(optimizers.schedules.CosineDecay(rate, 12, warmup_steps=3))


OPTIMIZERS = {
    "schedule": cosine,
    "momentum": lambda rate: optimizers.SGD(rate, momentum=0.9),
    "averages": lambda rate: optimizers.Adam(rate, use_ema=True, ema_momentum=0.8),
    "scaled": lambda rate: optimizers.LossScaleOptimizer(optimizers.Adam(rate)),
    "accumulated": lambda rate: optimizers.SGD(rate, momentum=0.9, gradient_accumulation_steps=3),
}


class Saves(keras.callbacks.Callback):
    """Lowers the rate, and saves the model by Keras's own methods where ``fit`` ends."""

    def __init__(self, directory):
        super().__init__()
        self.directory = str(directory)

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        if not isinstance(optimizer._learning_rate, optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = float(optimizer.learning_rate) * 0.9

    def on_train_end(self, logs=None):
        self.model.save(f"{self.directory}/saved.keras")
        self.model.save_weights(f"{self.directory}/saved.weights.h5")


def layered(optimizer, **options):
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.BatchNormalization()]
    model = keras.Sequential(
        [keras.Input((6,)), *layers, keras.layers.Dense(3, activation="softmax")]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", **options)
    return model


def read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return keras.saving.load_model(path)


def trained_on(model):
    """Return all variables after another epoch of ``fit``."""
    x, y = arrays()
    model.fit(x[:SAMPLES], y[:SAMPLES], batch_size=8, shuffle=False, verbose=0)
    return [*variables(model), *(np.array(v) for v in model.optimizer.variables)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_trains_on_as_a_model_that_was_saved_at_the_end(kind, tmp_path, monkeypatch):
    optimizer = OPTIMIZERS[kind]

    def build(trial):
        return layered(optimizer(trial.suggest_float("rate", 0.01, 0.1)))

    def with_weights(name):
        model = layered(optimizer(0.5))
        model.optimizer.build(model.trainable_variables)
        model.load_weights(tmp_path / name)
        return trained_on(model)

    best = Runner(tmp_path)(build, callbacks=lambda trial: [Saves(tmp_path)]).results.best
    expected = trained_on(read(tmp_path / "saved.keras"))
    assert same(trained_on(best.load_model()), expected)
    best.export(tmp_path / "exported.keras", "keras")
    assert same(trained_on(read(tmp_path / "exported.keras")), expected)
    best.export(tmp_path / "exported.weights.h5", "weights")
    assert same(with_weights("exported.weights.h5"), with_weights("saved.weights.h5"))

    monkeypatch.setattr(rebuilding.Variables, "restore", lambda *_: None)
    assert not same(trained_on(best.load_model()), expected), "the control"


class Halves(keras.Model):
    """Each half has an optimizer: the compiled one trains the first layer, another one the last."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="tanh")
        self.last = keras.layers.Dense(3, activation="softmax")
        self.other = optimizers.SGD(0.02, momentum=0.8)
        self(keras.Input((6,)))

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        halves = self.first.trainable_variables, self.last.trainable_variables
        for optimizer, half, slopes in zip(
            (self.optimizer, self.other), halves, tape.gradient(loss, halves), strict=True
        ):
            optimizer.apply(slopes, half)
        return {"loss": loss}


def all_of(model):
    variables = (*model.variables, *model.optimizer.variables, *model.other.variables)
    return [np.array(variable) for variable in variables]


class Leaves(keras.callbacks.Callback):
    def __init__(self, directory):
        super().__init__()
        self.path = str(directory / "left.npz")

    def on_train_end(self, logs=None):
        np.savez(self.path, *all_of(self.model))


def test_optimizers_of_an_own_step_come_with_the_model_or_a_warning_names_them(tmp_path):
    def build(trial):
        model = Halves()
        model.compile(optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        return model

    def load_data(trial):
        if (tmp_path / "gone").exists():
            raise FileNotFoundError("x.npy")
        return in_order(trial)

    ran = Runner(tmp_path)(build, data=load_data, callbacks=lambda trial: [Leaves(tmp_path)])
    with np.load(tmp_path / "left.npz") as arrays:
        expected = [arrays[name] for name in arrays.files]
    model = ran.results.best.load_model()
    assert same(all_of(model), expected)
    (tmp_path / "gone").touch()
    with pytest.warns(UserWarning, match="optimizer") as warned:
        model = ran.results.best.load_model()
    assert same(variables(model), expected[: len(model.variables)])
    text = "\n".join(str(warning.message) for warning in warned)
    assert "without the training data: " in text
    assert "the state of the model's optimizers in " in text


class Outer(sweeper.TrainingStep):
    """Trains the last layer alone."""

    def trainable_variables(self):
        return self.model.layers[-1].trainable_variables


def test_the_optimizer_of_a_step_that_trains_a_part_comes_without_the_data(tmp_path):
    def build(trial):
        layers = [keras.layers.Dense(4), keras.layers.Dense(3, activation="softmax")]
        return keras.Sequential([keras.Input((6,)), *layers])

    def step(trial):
        return Outer(optimizer=optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")

    def load_data(trial):
        assert not (tmp_path / "gone").exists()
        return in_order(trial)

    best = Runner(tmp_path)(build, step=step, data=load_data).results.best
    (tmp_path / "gone").touch()
    optimizer = best.load_model().optimizer
    assert [int(optimizer.iterations), len(optimizer.variables)] == [8, 2 + 2 * 2]
