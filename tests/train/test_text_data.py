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


class RaggedWords(keras.Model):
    """Averages the embeddings of as many words as each text has."""

    def __init__(self):
        super().__init__()
        self.lookup = keras.layers.StringLookup(vocabulary=_WORDS)
        self.embedding = keras.layers.Embedding(len(_WORDS) + 2, 3)
        self.dropout = keras.layers.Dropout(0.3)
        self.score = keras.layers.Dense(1, "sigmoid")

    def call(self, words, training=False):
        numbers = tf.ragged.map_flat_values(self.lookup, words).to_tensor(-1) + 1
        averages = tf.reduce_mean(self.embedding(numbers), axis=1)
        return self.score(self.dropout(averages, training=training))


def classifier(*, ragged=False):
    keras.utils.set_random_seed(3)
    if ragged:
        model = RaggedWords()
        model.compile("adam", "binary_crossentropy")
        return model
    inputs = keras.Input((), dtype="string")
    layer = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    layer.adapt(np.array(TEXTS, object))
    hidden = keras.layers.Embedding(20, 3)(layer(inputs))
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    return model


def data(train=None):
    validation = np.array(TEXTS, object) if train is None else train
    train = tf.constant(TEXTS) if train is None else train
    return Data(
        train=(train[:32], LABELS[:32]),
        validation=(validation[:12], LABELS[:12]),
        batch_size=8,
        validation_batch_size=4,
    )


LISTS = [text.split()[: 1 + n % 5] for n, text in enumerate(TEXTS)]


def ragged(texts):
    """Lists of words as a ragged tensor; texts as they are."""
    return tf.ragged.constant(texts) if isinstance(texts[0], list) else texts


def words():
    return data(ragged(LISTS))


def trained(texts, directory):
    """What a training of one epoch ends with; stopped and resumed in ``test_exactness_suite``."""
    model = classifier(ragged=isinstance(texts, tf.RaggedTensor))
    given = Data(train=(texts, LABELS), validation_split=0.25, batch_size=8)
    history = sweeper.fit(model, given, epochs=1, checkpoints=directory)
    return [history.history, [w.tobytes() for w in model.get_weights() if w.dtype != object]]


@pytest.mark.parametrize(
    "forms", [("list", "tensor"), pytest.param(tuple(FORMS), marks=pytest.mark.whole)], ids=len
)
def test_every_form_of_texts_trains_alike(forms, tmp_path):
    outcomes = [trained(FORMS[name](TEXTS), tmp_path / name) for name in forms]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert "val_loss" in outcomes[0][0]


@pytest.mark.whole
@pytest.mark.parametrize("texts", [TEXTS, LISTS], ids=["texts", "words"])
def test_control_other_texts_end_otherwise(texts, tmp_path):
    assert trained(ragged(texts), tmp_path / "1") != trained(ragged(texts[::-1]), tmp_path / "2")


@pytest.mark.parametrize("form", ["list", "object array"])
def test_the_checkpoints_of_other_texts_are_refused(form, tmp_path):
    trained(FORMS[form](TEXTS), tmp_path)
    with pytest.raises(ForeignCheckpointError, match="other data"):
        trained(FORMS[form](TEXTS[::-1]), tmp_path)


def test_an_array_of_other_objects_is_refused_with_the_element(tmp_path):
    mixed = np.array([*TEXTS[:3], 4.5], object)
    with pytest.raises(DataError, match=r"Data\(train\[0\]\).*element \[3\] is a float.*texts"):
        sweeper.fit(classifier(), (mixed, LABELS[:4]), epochs=1, checkpoints=tmp_path / "mixed")
