"""A metric that is a vector: whole in history and callbacks, by components elsewhere.

That checkpoints have it whole is in ``test_exactness_suite.py``.
"""

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Recorder, Watcher, digits, equal, plan, train, unoptimized, weights

from sweeper import Data
from sweeper.errors import NonFiniteError, ObjectiveError

X, LABELS = digits(96)
Y = keras.utils.to_categorical(LABELS, 4)


class Confusion(keras.metrics.Metric):
    """Predictions by class and label: two dimensions."""

    def __init__(self):
        super().__init__(name="confusion")
        self.counts = self.add_weight(shape=(4, 4), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        del sample_weight
        counts = tf.math.confusion_matrix(tf.argmax(y_true, -1), tf.argmax(y_pred, -1), 4)
        self.counts.assign_add(tf.cast(counts, "float32"))

    def result(self):
        return tf.identity(self.counts.value)


class Reporting(keras.Model):
    """A step of its own, which reports a vector, and one number a sample."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(4, activation="softmax")

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.categorical_crossentropy(y, self(x, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        norms = tf.stack([tf.norm(gradient) for gradient in gradients])
        return {"loss": loss, "norms": norms, "losses": losses}


def classifier(**options):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])
    metrics = [keras.metrics.F1Score(), "accuracy", Confusion()]
    model.compile("sgd", "categorical_crossentropy", metrics=metrics, **options)
    return model


def eager():
    return classifier(run_eagerly=True)


def reporting():
    model = Reporting()
    model.compile("sgd")
    return model


def data(validation=(X[:32], Y[:32])):
    return Data(train=(X, Y), validation=validation, batch_size=16, shuffle=False)


def unvalidated():
    return data(validation=None)


LOGGED = ["on_train_batch_end", "on_test_end", "on_epoch_end"]


@unoptimized("constant_folding")
@pytest.mark.parametrize(
    ("model", "make_data"),
    [
        (classifier, data),
        pytest.param(eager, data, marks=pytest.mark.whole),
        pytest.param(reporting, unvalidated, marks=pytest.mark.whole),
    ],
)
def test_callbacks_history_and_csv_are_fits_own(model, make_data, tmp_path):
    arrays = make_data()
    keras_recorder = Recorder(LOGGED)
    own_recorder = Recorder(LOGGED)

    def callbacks(recorder, file):
        return [recorder, keras.callbacks.CSVLogger(str(tmp_path / file))]

    fitted = plan(model=model, data=lambda: arrays).model
    fitted.fit(
        *arrays.train, batch_size=16, epochs=3, shuffle=False, verbose=0,
        validation_data=arrays.validation, callbacks=callbacks(keras_recorder, "theirs.csv"),
    )  # fmt: skip
    planned = plan(
        model=model, data=lambda: arrays, callbacks=lambda: callbacks(own_recorder, "ours.csv")
    )
    loop = train(planned, Watcher())
    # As text, which has the type, the dtype and each digit of a number.
    assert "array(" in repr(own_recorder.calls[-1])
    assert repr(own_recorder.calls) == repr(keras_recorder.calls)
    assert repr(loop.history.history) == repr(fitted.history.history)
    assert (tmp_path / "ours.csv").read_text() == (tmp_path / "theirs.csv").read_text()
    assert equal(weights(planned.model), weights(fitted))


class Adds(keras.callbacks.Callback):
    """Adds to the logs a vector, an array with one element, and what is no number."""

    def on_epoch_end(self, epoch, logs=None):
        logs |= {"pair": np.array([[1, 2]]), "one": np.float32(0.5), "said": "x"}


def test_epochs_report_every_component_by_name():
    watcher = Watcher()
    planned = plan(model=classifier, data=data, callbacks=lambda: [Adds()])
    logs = train(planned, watcher).history.history
    reported = watcher.epochs[-1][1]
    assert [reported[f"val_f1_score[{i}]"] for i in range(4)] == logs["val_f1_score"][-1].tolist()
    assert reported["confusion[2,1]"] == logs["confusion"][-1][2, 1]
    assert reported["accuracy"] == logs["accuracy"][-1]
    assert "f1_score" not in reported
    assert (reported["pair[0,0]"], reported["pair[0,1]"], reported["one"]) == (1.0, 2.0, 0.5)
    assert all(type(number) is float for number in reported.values())
    assert len(reported) == 2 * (2 + 4 + 16) + 3


class Given(keras.metrics.Metric):
    """A metric of this value."""

    def __init__(self, name, value):
        super().__init__(name=name)
        self.value = value

    def update_state(self, *_arguments, **_options):
        """Nothing is counted."""

    def result(self):
        return tf.constant(np.asarray(self.value))


def giving(name, value):
    """A classifier that reports this."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=[Given(name, value)])
    return model


def test_a_metric_of_too_many_numbers_is_kept_whole_and_that_is_said(caplog):
    watcher = Watcher()
    wide = plan(
        model=lambda: giving("wide", range(1001)), data=data, epochs=2, objective="wide[1000]"
    )
    history = train(wide, watcher).history.history
    assert history["wide"][-1].shape == (1001,)
    assert set(watcher.epochs[-1][1]) == {"loss", "val_loss", "wide[1000]"}
    assert [text.partition(",")[0] for text in caplog.messages] == [
        "the metric 'val_wide' has 1",
        "the metric 'wide' has 1",
    ]


# Objectives


# By default of two dimensions, and as a validation reports it; a number is one elsewhere as well.
@pytest.mark.parametrize(
    "objective",
    ["val_confusion[3,0]"]
    + [
        pytest.param(name, marks=pytest.mark.whole)
        for name in ("val_f1_score[1]", "confusion[3,0]", "val_accuracy")
    ],
)
def test_a_component_may_be_the_objective(objective):
    watcher = Watcher()
    loop = train(plan(model=classifier, data=data, epochs=2, objective=objective), watcher)
    name, _, index = objective.rstrip("]").partition("[")
    vectors = [np.asarray(vector) for vector in loop.history.history[name]]
    components = [
        vector[tuple(map(int, index.split(",")))] if index else vector for vector in vectors
    ]
    assert [metrics[objective] for _, metrics in watcher.epochs] == components


VECTOR = r"shape \[4\].*val_f1_score\[0\]'.*val_f1_score\[3\]'.*average"
ABSENT = r"does not report the objective.*'val_f1_score\[3\]'"
MISSPELT = r"'val_acuracy'; it reports .*'val_accuracy'"


# By default the index after the last: the others are no names either.
@pytest.mark.parametrize(
    ("model", "objective", "message", "freq", "epochs"),
    [
        (classifier, "val_f1_score", VECTOR, 1, 0),
        pytest.param(eager, "val_f1_score", VECTOR, 1, 0, marks=pytest.mark.whole),
        (eager, "val_acuracy", MISSPELT, 1, 0),
        (eager, "val_acuracy", MISSPELT, 2, 1),
        (classifier, "val_f1_score[4]", ABSENT, 1, 0),
        pytest.param(classifier, "f1_score[0,1]", ABSENT, 1, 0, marks=pytest.mark.whole),
        pytest.param(classifier, "val_accuracy[0]", ABSENT, 1, 0, marks=pytest.mark.whole),
    ],
)
def test_an_objective_that_is_no_number_is_refused_as_soon_as_that_is_known(
    model, objective, message, freq, epochs
):
    """Before training, or of an eager model after its first validation."""
    watcher = Watcher()
    infrequent = replace(data(), validation_freq=freq)
    with pytest.raises(ObjectiveError, match=message):
        train(plan(model=model, data=lambda: infrequent, objective=objective), watcher)
    assert len(watcher.epochs) == epochs


class Reports(keras.callbacks.Callback):
    """Puts a value into the logs of the epochs that it is told."""

    def __init__(self, name, value, epochs=range(9)):
        super().__init__()
        self.name = name
        self.value = value
        self.epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        logs["note"] = "no number"
        if epoch in self.epochs:
            logs[self.name] = self.value() if callable(self.value) else self.value


@pytest.mark.parametrize("model", [classifier, pytest.param(eager, marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    ("objective", "value", "epochs"),
    [
        ("val_roc_auc", 0.5, [0, 1]),
        ("auc", lambda: tf.constant(0.5), [0]),
        ("auc[1]", np.array([0.0, 0.5]), [0, 1]),
        ("val_f1_score", 0.5, [0, 1]),
    ],
)
def test_a_callback_may_report_the_objective_as_a_number_a_tensor_or_an_array(
    model, objective, value, epochs
):
    callbacks = [Reports(objective.partition("[")[0], value, epochs)]
    watcher = Watcher()
    train(
        plan(model=model, data=data, callbacks=lambda: callbacks, objective=objective, epochs=2),
        watcher,
    )
    assert [epoch for epoch, metrics in watcher.epochs if objective in metrics] == epochs
    assert watcher.epochs[0][1][objective] == 0.5


@pytest.mark.parametrize("epochs", [(), [1]])
def test_an_objective_that_nobody_reports_is_refused_after_the_first_epoch_which_names_what_is(
    epochs,
):
    watcher = Watcher()
    planned = plan(
        model=classifier,
        data=data,
        callbacks=lambda: [Reports("auc", 1.0), Reports("roc_auc", 1.0, epochs)],
        objective="roc_auc",
    )
    with pytest.raises(ObjectiveError, match="neither the model nor a callback") as raised:
        train(planned, watcher)
    assert "they reported 'accuracy', 'auc', " in str(raised.value)
    assert "'f1_score[0]' to 'f1_score[3]'" in str(raised.value)
    assert "'note'" not in str(raised.value)
    assert not watcher.epochs


def test_callbacks_of_keras_alone_leave_the_refusal_before_training():
    watcher = Watcher()
    planned = plan(
        model=classifier,
        data=data,
        callbacks=lambda: [keras.callbacks.EarlyStopping("val_loss"), Recorder(["on_train_end"])],
        objective="roc_auc",
    )
    with pytest.raises(ObjectiveError, match="the model does not report the objective 'roc_auc'"):
        train(planned, watcher)
    assert watcher.last is None


def test_only_a_component_that_decides_has_to_be_finite():
    def odd():
        return giving("odd", [1.0, math.inf])

    def strict(objective):
        planned = plan(model=odd, data=data, objective=objective, epochs=1)
        return train(replace(planned, nonfinite="fail"), Watcher())

    strict("odd[0]")
    with pytest.raises(NonFiniteError, match=r"odd\[1\] is inf at the end of epoch 1"):
        strict("odd[1]")
