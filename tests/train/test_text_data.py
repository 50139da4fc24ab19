"""Texts as training data: every form that `fit` or NumPy has for them, and in order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sweeper
from sweeper import Data
from sweeper.errors import DataError
from sweeper.train.sources.opening import data_fingerprint

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


def classifier(lookup="vectorization"):
    keras.utils.set_random_seed(3)
    if lookup == "ragged":
        model = RaggedWords()
        model.compile("adam", "binary_crossentropy")
        return model
    inputs = keras.Input((), dtype="string")
    if lookup == "vectorization":
        layer = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
        layer.adapt(np.array(TEXTS, object))
        hidden = keras.layers.Embedding(20, 3)(layer(inputs))
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    else:
        layer = keras.layers.StringLookup(vocabulary=sorted(set(TEXTS)))
        hidden = keras.layers.Embedding(50, 3)(layer(inputs))
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    return model


def data():
    validation = (np.array(TEXTS[:12], object), LABELS[:12])
    return Data(
        train=(tf.constant(TEXTS[:32]), LABELS[:32]),
        validation=validation,
        batch_size=8,
        validation_batch_size=4,
    )


def words():
    ragged = tf.ragged.constant([text.split()[: 1 + n % 5] for n, text in enumerate(TEXTS)])
    return Data(
        train=(ragged[:32], LABELS[:32]),
        validation=(ragged[:12], LABELS[:12]),
        batch_size=8,
        validation_batch_size=4,
    )


def trained(texts, directory, lookup="vectorization"):
    """What a training of one epoch ends with; stopped and resumed in ``test_exactness_suite``."""
    model = classifier(lookup)
    given = Data(train=(texts, LABELS), batch_size=8)
    history = sweeper.fit(model, given, epochs=1, checkpoints=directory)
    return [history.history, [w.tobytes() for w in model.get_weights() if w.dtype != object]]


@pytest.mark.parametrize(
    "forms", [("list", "tensor"), pytest.param(tuple(FORMS), marks=pytest.mark.whole)], ids=len
)
def test_every_form_of_texts_trains_alike(forms, tmp_path):
    outcomes = [trained(FORMS[name](TEXTS), tmp_path / name) for name in forms]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.whole
def test_control_other_words_end_otherwise(tmp_path):
    given = words().train[0]
    one, other = (
        Data(train=(x, LABELS[:32]), batch_size=8, shuffle=False) for x in (given, given[::-1])
    )
    losses = [
        sweeper.fit(
            classifier("ragged"), each, epochs=1, checkpoints=tmp_path / str(number)
        ).history
        for number, each in enumerate((one, other))
    ]
    assert losses[0] != losses[1]


@pytest.mark.whole
def test_control_other_texts_end_otherwise(tmp_path):
    whole = trained(TEXTS, tmp_path / "whole")
    assert trained(TEXTS[::-1], tmp_path / "other") != whole


def test_a_split_of_texts_keeps_their_order(tmp_path):
    data = Data(train=(TEXTS, LABELS), validation_split=0.25, batch_size=8)
    history = sweeper.fit(classifier(), data, epochs=1, checkpoints=tmp_path / "split")
    assert "val_loss" in history.history


def test_other_texts_are_other_data():
    prints = {data_fingerprint(Data(train=(form, LABELS))) for form in (TEXTS, TEXTS[::-1])}
    arrays = {
        data_fingerprint(Data(train=(np.array(f, object), LABELS))) for f in (TEXTS, TEXTS[::-1])
    }
    assert len(prints) == len(arrays) == 2


def test_an_array_of_other_objects_is_refused_with_the_element(tmp_path):
    mixed = np.array([*TEXTS[:3], 4.5], object)
    with pytest.raises(DataError, match=r"Data\(train\[0\]\).*element \[3\] is a float.*texts"):
        sweeper.fit(classifier(), (mixed, LABELS[:4]), epochs=1, checkpoints=tmp_path / "mixed")
