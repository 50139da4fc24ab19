"""A model with layers of the user's own: what its ``.keras`` needs is said, and what cannot be written is refused."""

import keras
import pytest
from small_models import Noisy, Runner, arrays, regression

from sweeper import Data, ExportError


def in_one_step(model):
    """Compiled for a single step, for which no graph is traced."""
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


class Scaled(keras.layers.Layer):
    """Has an argument that no config can hold."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, inputs):
        return self.how(inputs)


def scaled(trial):
    inner = regression(trial)
    model = keras.Sequential([keras.Input((6,)), Scaled(lambda x: 2 * x), *inner.layers])
    return in_one_step(model)


def unregistered(trial):
    del trial
    model = Noisy()
    model(arrays()[0][:1])
    return in_one_step(model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trial of a model; each has one, of one step, in the same study."""
    models = [unregistered, scaled, listed]

    def data(_trial):
        x, y = arrays()
        return Data(train=(x[:8], y[:8]), batch_size=8)

    def model(trial):
        return models[trial.number](trial)

    ran = Runner(tmp_path_factory.mktemp("own"))(
        model, data=data, objective="loss", epochs=1, trials=len(models)
    )
    return lambda build: ran.results.trials[models.index(build)]


def test_a_class_that_is_not_registered_is_written_and_named(trained, tmp_path):
    path = tmp_path / "noisy.keras"
    exported = trained(unregistered).export(path, "keras")
    (needed,) = exported.card["details"]["needs"]
    assert needed.endswith(".Noisy")
    with pytest.raises(TypeError, match="Could not locate class 'Noisy'"):
        keras.saving.load_model(path)


def test_a_model_that_cannot_be_described_leaves_as_a_graph(trained, tmp_path):
    best = trained(scaled)
    with pytest.raises(ExportError, match="cannot be written to"):
        best.export(tmp_path / "scaled.keras", "keras")
    assert not (tmp_path / "scaled.keras").exists()

    card = best.export(tmp_path / "scaled", "savedmodel").card
    assert card["details"]["outputs"] == {"output": "float32[?, 3]"}


class Listed(keras.Model):
    """Has its layers in a list, where TensorFlow does not see what they hold."""

    def __init__(self):
        super().__init__(name="listed")
        self.blocks = [keras.layers.BatchNormalization(name="norm")]
        self.last = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs, training=False):
        hidden = inputs
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return self.last(hidden)


def listed(trial):
    del trial
    model = Listed()
    model(arrays()[0][:1])
    return in_one_step(model)


def test_what_tensorflow_does_not_see_is_named_instead_of_lost(trained, tmp_path):
    best = trained(listed)
    with pytest.raises(ExportError) as raised:
        best.export(tmp_path / "checkpoint", "tf-checkpoint")
    assert "listed/norm/moving_mean, listed/norm/moving_variance" in str(raised.value)
    assert not (tmp_path / "checkpoint").exists()
    assert best.export(tmp_path / "listed.weights.h5", "weights").card["step"] == 1
