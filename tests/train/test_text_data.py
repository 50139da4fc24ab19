"""Texts as training data: every form that `fit` or NumPy has for them, and in order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sweeper
from sweeper import Data
from sweeper.errors import DataError, ForeignCheckpointError

_WORDS = ["good", "bad", "fine", "poor", "great", "awful", "nice", "sad"]
TEXTS = [" ".join(np.random.default_rng(n).choice(_WORDS, 5)) for n in range(40)]
LABELS = np.array(["good" in text for text in TEXTS], int)

FORMS = {
    "list": list,
    "tuple": tuple,
    "object array": lambda texts: np.array(texts, object),
    "unicode array": np.array,
    "string dtype": lambda texts: np.array(texts, np.dtypes.StringDType()),
    "bytes": lambda texts: np.array([text.encode() for text in texts]),
    "tensor": tf.constant,
}


def classifier():
    inputs = keras.Input((), dtype="string")
    layer = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    layer.adapt(np.array(TEXTS, object))
    hidden = keras.layers.Embedding(20, 3)(layer(inputs))
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    return model


def data():
    validation = np.array(TEXTS[:12], object), LABELS[:12]
    return Data(
        train=(tf.constant(TEXTS[:32]), LABELS[:32]),
        validation=validation,
        batch_size=8,
        validation_batch_size=4,
    )


def trained(texts, directory):
    """What a training of one epoch ends with; stopped and resumed in ``test_exactness_suite``."""
    keras.utils.set_random_seed(3)
    model = classifier()
    data = Data(train=(texts, LABELS), validation_split=0.25, batch_size=8)
    history = sweeper.fit(model, data, epochs=1, checkpoints=directory)
    return [history.history, [w.tobytes() for w in model.get_weights() if w.dtype != object]]


@pytest.mark.parametrize(
    "forms", [("list", "tensor"), pytest.param(tuple(FORMS), marks=pytest.mark.whole)], ids=len
)
def test_every_form_of_texts_trains_alike(forms, tmp_path):
    outcomes = [trained(FORMS[name](TEXTS), tmp_path / name) for name in forms]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert "val_loss" in outcomes[0][0]


@pytest.mark.whole
def test_control_other_texts_end_otherwise(tmp_path):
    assert trained(TEXTS, tmp_path / "1") != trained(TEXTS[::-1], tmp_path / "2")


@pytest.mark.parametrize("form", ["list", "object array"])
def test_the_checkpoints_of_other_texts_are_refused(form, tmp_path):
    trained(FORMS[form](TEXTS), tmp_path)
    with pytest.raises(ForeignCheckpointError, match="other data"):
        trained(FORMS[form](TEXTS[::-1]), tmp_path)


def test_an_array_of_other_objects_is_refused_with_the_element(tmp_path):
    mixed = np.array([*TEXTS[:3], 4.5], object)
    with pytest.raises(DataError, match=r"^x is an array.*element \[3\] is a float.*texts"):
        sweeper.fit(classifier(), (mixed, LABELS[:4]), epochs=1, checkpoints=tmp_path / "mixed")
