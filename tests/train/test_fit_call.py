"""``sweeper.fit`` where ``model.fit`` stood: its arguments, its output, an override of it, and calls in a loop."""

import functools
import inspect
import re
import shutil
from dataclasses import fields

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import Stops
from plain_settings import plain_settings
from short_trials import Answering
from trainings import equal, one_layer, unoptimized

import sweeper
from sweeper.errors import DataError, FactoryError, UncapturableError, UsageError
from sweeper.run.protocol.messages import Assignment, EpochsEnded
from sweeper.run.trial.run import run_trial
from sweeper.train import keras_methods, model_settings
from sweeper.train.fit_call import FitArguments
from sweeper.train.randomness import generators

X = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
Y = X[:, 0]
WEIGHT = np.linspace(0, 1, 40)
BRIEF = {"verbose": 0, "shuffle": False, "batch_size": 16}


@pytest.fixture(autouse=True)
def _unoptimized():
    with unoptimized():
        yield


def made(kind=keras.Sequential, **options):
    keras.utils.set_random_seed(3)
    model = kind([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", weighted_metrics=["mae"], **options)
    return model


def two_inputs():
    keras.utils.set_random_seed(3)
    a = keras.Input((8,), name="a")
    b = keras.Input((8,), name="b")
    model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Add()([a, b])))
    model.compile("sgd", "mse")
    return model


def own_target():
    keras.utils.set_random_seed(3)
    a = keras.Input((8,))
    b = keras.Input((8,))
    model = Distance([a, b], keras.layers.Dense(1)(keras.layers.Add()([a, b])))
    model.compile("sgd")
    return model


class Distance(keras.Model):
    """A model that is given two inputs and no target."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - x[1][:, :1]))


class Subclassed(keras.Model):
    """A model without inputs to count."""


def parameters(function):
    all_parameters = inspect.signature(function).parameters.values()
    return [
        (parameter.name, parameter.default)
        for parameter in all_parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


def test_the_signature_is_that_of_the_installed_keras():
    _, *keras_own = parameters(keras.Model.fit)
    _, *positional = parameters(sweeper.fit)
    assert positional == keras_own
    assert [(field.name, field.default) for field in fields(FitArguments)] == keras_own


CALLS = {
    "split and weights": (made, (X, Y), {"sample_weight": WEIGHT, "validation_split": 0.25}),
    "validation data before the split": (
        made,
        (X, Y, 8),
        {"validation_data": [X[:9], Y[:9]], "validation_split": 0.5, "validation_batch_size": 4},
    ),
    "a later first epoch": (made, (X, Y), {"initial_epoch": 1, "validation_freq": [3]}),
    "a list of inputs, split": (two_inputs, ([X, X], Y), {"validation_split": 0.2}),
    "a dict of inputs, split": (two_inputs, ({"a": X, "b": X}, Y), {"validation_split": 0.2}),
    "two inputs and no targets": (own_target, ((X, X),), {}),
    "one callback, no list": (made, (X, Y), {"callbacks": keras.callbacks.TerminateOnNaN()}),
    "a later first epoch of few steps": (
        made,
        (X[:32], Y[:32]),
        {"initial_epoch": 1, "steps_per_epoch": 2},
    ),
}


LATER = {
    *("validation data before the split", "a dict of inputs, split", "one callback, no list"),
    *("AddsCallback", "Delegates"),
}
"""What the second tier tries as well."""


def marked(names):
    return [pytest.param(n, marks=pytest.mark.whole if n in LATER else ()) for n in names]


@pytest.mark.parametrize("name", marked(CALLS))
def test_replacing_fit_and_giving_a_directory_is_the_whole_edit(name, tmp_path):
    build, arguments, options = CALLS[name]
    options = {"epochs": 3, **BRIEF, **options}
    if len(arguments) == 3:
        del options["batch_size"]
    keras_model = build()
    model = build()
    expected = keras_model.fit(*arguments, **options)
    history = sweeper.fit(model, *arguments, **options, checkpoints=tmp_path)
    assert (history.history, history.epoch) == (expected.history, expected.epoch)
    assert equal([v.numpy() for v in model.variables], [v.numpy() for v in keras_model.variables])


@pytest.mark.parametrize("verbose", ["auto", 2])
def test_the_output_is_that_of_keras(verbose, tmp_path, capsys):
    def lines():
        text = re.sub(r"\x1b\[\d*m|[\b]+", "", capsys.readouterr().out)
        shown_lines = []
        for line in re.split(r"[\r\n]+", text):
            # A bar shows steps as often as time allows, and each epoch's end.
            if shown_lines and line.startswith("3/3") and shown_lines[-1].startswith("3/3"):
                shown_lines.pop()
            if re.match("Epoch|3/3", line):
                shown_lines.append(re.sub(r"\d+(us|ms|s)\b(/step)?", "", line).strip())
        return shown_lines

    options = {**BRIEF, "verbose": verbose, "epochs": 2, "validation_split": 0.1}
    made().fit(X, Y, **options)
    expected = lines()
    sweeper.fit(made(), X, Y, **options, checkpoints=tmp_path)
    assert lines() == expected
    assert len(expected) == 4


def test_a_tuple_is_inputs_and_targets_unless_the_model_has_as_many_inputs(tmp_path):
    def history(number, *data, **options):
        options = {"checkpoints": tmp_path / str(number), **options}
        return sweeper.fit(made(), *data, **options).history

    apart = history(0, X, Y)
    assert history(1, (X, Y)) == apart == history(2, data=(X, Y))
    assert history(3, sweeper.Data(train=(X, Y))) == apart == history(4, sweeper.Data((X, Y)))
    subclassed = Subclassed()
    subclassed.compile("sgd")
    with pytest.raises(
        UsageError, match=r"x is a tuple of 2 arrays and y is not given, and .* data="
    ):
        sweeper.fit(subclassed, (X, Y), checkpoints=tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, DataError, "x is not given"),
        ({"x": X, "data": (X, Y)}, UsageError, "both given"),
        (
            {"x": sweeper.Data((X, Y)), "batch_size": 8, "y": Y},
            UsageError,
            r"batch_size, y: given beside a Data; give it to Data\(",
        ),
        ({"x": lambda epoch: [(X, Y)], "y": Y}, UsageError, "leave y out"),
        ({"x": X, "y": Y, "shuffle": "batch"}, DataError, "shuffle='batch'"),
    ],
)
def test_arguments_that_contradict_are_refused_by_name(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        sweeper.fit(made(), **arguments, checkpoints=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def unlabelled():
    return tf.data.Dataset.from_tensor_slices(X).batch(8)


def labelled():
    return tf.data.Dataset.from_tensor_slices((X, Y))


TEXTS = np.array(["a"] * 40)

MISTAKES = {
    "x and y of other lengths": ((X, Y[:30]), {}, "x has 40, y has 30"),
    "inputs of other lengths": (({"a": X, "b": X[:9]}, Y), {}, r"x\['b'\] has 9, y has 40"),
    "weights of another length": ((X, Y), {"sample_weight": Y[:9]}, "sample_weight has 9"),
    "validation of other lengths": (
        (X, Y),
        {"validation_data": (X, Y[:9])},
        r"validation_data\[0\] has 40, validation_data\[1\] has 9",
    ),
    "no y": ((X,), {}, r"^x=… is given without targets \(y\)"),
    "no y of a dataset": (lambda: (unlabelled(),), {}, r"^x=… is given without targets \(y\)"),
    "no y of the validation": (
        (X, Y),
        {"validation_data": X},
        r"^validation_data=… is given without targets \(y\)",
    ),
    "a path": (("data.csv", Y), {}, "^x is a str; expected a NumPy array"),
    "a path of validation data": ((X, Y), {"validation_data": "v"}, "^validation_data=… is a str;"),
    "a name of weights": ((X, Y), {"sample_weight": "balanced"}, "^sample_weight is a str;"),
    "a number": ((3, Y), {}, "^x is the single value 3;"),
    "texts": ((np.array([["a"] * 8] * 40), Y), {}, r"^x has texts .*TextVectorization"),
    "texts as labels": ((X, TEXTS), {}, "^y has texts where the model, its loss"),
    "a generator": ((iter([(X, Y)]),), {}, r"^x=… is a list_iterator, .* x=lambda epoch: …"),
    "a generator to validate on": (
        (X, Y),
        {"validation_data": iter([(X, Y)])},
        r"^validation_data=… is a list_iterator, .* validation_data=lambda epoch: …",
    ),
    "an exhausted function": ((lambda _: [],), {}, "^x=… has no batch"),
    "a function without an epoch": ((lambda: [X],), {}, "^x=… is the function <lambda>, which"),
    "an endless dataset": (
        lambda: (labelled().batch(8).repeat(),),
        {},
        r"^x=… never ends; give steps_per_epoch=…$",
    ),
    "an endless validation": (
        (X, Y),
        lambda: {"validation_data": labelled().batch(8).repeat()},
        r"^validation_data=… never ends; give validation_steps=…$",
    ),
    "samples": (
        lambda: (labelled(),),
        {},
        r"^x=…: the dataset's elements are single samples, .*\.batch",
    ),
    "a part of a dataset": (
        lambda: (labelled().batch(8),),
        {"validation_split": 0.2},
        r"^validation_split=0\.2 needs arrays, and x=… is a tf\.data\.Dataset; give validation_data=…",
    ),
    "targets beside a dataset": (
        lambda: (labelled().batch(8), Y),
        {},
        r"x is a tf\.data\.Dataset, whose",
    ),
    "a part of nothing": (
        (X[:1], Y[:1]),
        {"validation_split": 0.2},
        r"^validation_split=0\.2 of 1",
    ),
    "no samples": ((X[:0], Y[:0]), {}, "^x=… contains arrays without samples"),
    "a name of class weights": (
        (X, Y),
        {"class_weight": "balanced"},
        "^class_weight='balanced': it",
    ),
    "both weights": ((X, Y), {"class_weight": {0: 2.0}, "sample_weight": Y}, "^x=…: class_weight"),
    "a size of batches": ((X, Y), {"batch_size": 8.0}, r"^batch_size=8\.0: it must be a whole"),
    "epochs": ((X, Y), {"epochs": "3"}, "^epochs='3': it must be a whole number"),
    "a first epoch": ((X, Y), {"initial_epoch": 0.5}, r"^initial_epoch=0\.5: it must be a whole"),
    "a callback's name": ((X, Y), {"callbacks": "History"}, "^callbacks: 'History' is no callback"),
    "a callback's class": ((X, Y), {"callbacks": [Subclassed]}, "^callbacks: <class .* is no call"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_name_the_arguments_that_were_written(name, tmp_path):
    arguments, options, message = MISTAKES[name]
    # Datasets are made here, because files of tests are imported before TensorFlow runs.
    arguments, options = (part() if callable(part) else part for part in (arguments, options))
    with pytest.raises((DataError, UsageError), match=message) as caught:
        sweeper.fit(
            made(), *arguments, **options, notice=lambda _: None, checkpoints=tmp_path / "c"
        )
    assert "Data(" not in str(caught.value)
    assert not list((tmp_path / "c").glob("step-*"))


def test_errors_about_a_data_name_its_arguments(tmp_path):
    """Negative control: the names are those of the user, and not always those of fit."""
    with pytest.raises(DataError, match=r"Data\(train\[0\]\) has 40, Data\(train\[1\]\) has 30"):
        sweeper.fit(made(), sweeper.Data((X, Y[:30])), checkpoints=tmp_path)
    with pytest.raises(DataError, match=r"Data\(validation_split=2\): "):
        sweeper.Data((X, Y), validation_split=2)


# The fit of a class, of an object and of a library


class Scaled(keras.Sequential):
    """As KerasHub's tasks: data are preprocessed in ``fit``."""

    def fit(self, x, y=None, **options):
        options["shuffle"] = False
        return super().fit(tf.data.Dataset.from_tensor_slices((x / 9, y)).batch(16), **options)


class Counting(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs += 1


class AddsCallback(keras.Sequential):
    """As a tutorial's model: ``fit`` adds a callback."""

    def fit(self, *arguments, callbacks=None, **options):
        self.counting = Counting()
        return super().fit(*arguments, callbacks=[*(callbacks or ()), self.counting], **options)


class Delegates(keras.Sequential):
    def fit(self, *arguments, **options):
        return super().fit(*arguments, **options)


class Renames(keras.Sequential):
    """Other names and another result."""

    def fit(self, images, labels, epochs=1):
        return super().fit(x=images, y=labels, epochs=epochs, **BRIEF).history["loss"]


def own_of_object():
    model = made()
    keras_fit = model.fit
    model.fit = lambda *data, **options: keras_fit(*data, **options, class_weight={0: 3.0})
    return model


KINDS = {kind.__name__: functools.partial(made, kind) for kind in (Scaled, AddsCallback, Delegates)}
KINDS["of the object"] = own_of_object


@pytest.fixture
def patched(monkeypatch):
    """A library that replaces ``keras.Model.fit`` by a function around the one that it found; its notes."""
    original = keras.Model.fit
    notes = []

    def safe_patch(model, *arguments, **options):
        notes.append("begin")
        options["callbacks"] = [*options.get("callbacks", ()), Counting()]
        history = original(model, *arguments, **options)
        notes.append(history.epoch)
        return history

    monkeypatch.setattr(keras.Model, "fit", safe_patch)
    return notes


def trained(build, directory, stop=None, **options):
    """The weights and the history of a training, or of its part up to step ``stop``."""
    model = build()
    options = {"epochs": 3, "verbose": 0, "notice": lambda _: None, **options}
    callbacks = [Stops(stop)]
    history = sweeper.fit(model, X, Y, callbacks=callbacks, checkpoints=directory, **options)
    return [v.numpy() for v in model.variables], history.history


@pytest.mark.parametrize("kind", marked([*KINDS, "patched"]))
def test_an_override_of_fit_is_called_and_resumes(kind, tmp_path, request):
    notes = request.getfixturevalue("patched") if kind == "patched" else None
    build = KINDS.get(kind, made)
    model = build()
    expected = model.fit(X, Y, epochs=3, verbose=0, shuffle=False)
    whole = trained(build, tmp_path / "whole", shuffle=False)
    assert whole[1] == expected.history
    assert equal(whole[0], [v.numpy() for v in model.variables])
    for stop in (1, 3):
        with pytest.raises(sweeper.Interrupted):
            trained(build, tmp_path / "parts", stop, shuffle=False)
    parts = trained(build, tmp_path / "parts", shuffle=False)
    assert equal(parts[0], whole[0])
    assert parts[1] == whole[1]
    if notes is not None:
        assert notes == ["begin", [0, 1, 2], "begin", [0, 1, 2], *["begin"] * 3, [0, 1, 2]]


def test_an_override_has_its_own_names_and_its_own_result(tmp_path):
    expected = made().fit(X, Y, epochs=2, **BRIEF).history["loss"]
    assert sweeper.fit(made(Renames), X, Y, epochs=2, checkpoints=tmp_path) == expected


def test_without_the_override_the_training_is_another_one(tmp_path):
    """Negative control: what the override does is in the weights."""
    scaled, plain = (trained(b, tmp_path / str(b)) for b in (KINDS["Scaled"], made))
    assert not equal(scaled[0], plain[0])


def test_a_trial_calls_the_override(tmp_path):
    """In a study as well: the epochs of a trial are those of the model's own fit."""

    def losses(kind, name):
        study = sweeper.Study(
            name="a",
            model=lambda trial: made(kind),
            data=lambda trial: sweeper.Data(train=(X, Y), shuffle=False),
            epochs=2,
            trials=1,
        )
        place = str(tmp_path / name)
        assignment = Assignment(
            plain_settings(epochs=2), 0, 1, f"{place}/files", f"{place}/1/log", (f"{place}/c",)
        )
        link = Answering()
        run_trial(study, assignment, link)
        records = [message.epochs for message in link.messages if isinstance(message, EpochsEnded)]
        return [record.metrics["loss"] for (record,) in records]

    expected = made(Scaled).fit(X, Y, epochs=2, verbose=0).history["loss"]
    assert losses(Scaled, "override") == expected
    assert losses(keras.Sequential, "plain") != expected


def test_other_models_in_an_override_are_fitted_by_keras(tmp_path):
    teacher = made()
    fits = []

    class Distilled(keras.Sequential):
        def fit(self, x, y, **options):
            fits.append(teacher.fit(x, y, verbose=0).history["loss"])
            return super().fit(x, y, **options)

    sweeper.fit(made(Distilled), X, Y, checkpoints=tmp_path, verbose=0)
    assert fits == [made().fit(X, Y, verbose=0, shuffle=False).history["loss"]] or len(fits[0]) == 1
    assert int(teacher.optimizer.iterations) == 2


class TrainsOnBatches(keras.Sequential):
    def fit(self, x, y, epochs=1):
        for _ in range(epochs):
            self.train_on_batch(x, y)


class OwnTape(keras.Sequential):
    def fit(self, x, y, epochs=1):
        for _ in range(epochs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x)[:, 0] - y))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


class Tunes(keras.Sequential):
    """Trains on after Keras's ``fit``."""

    def fit(self, x, y, epochs=1):
        super().fit(x, y, epochs=epochs, verbose=0)
        self.train_on_batch(x, y)


class Twice(keras.Sequential):
    def fit(self, *arguments, **options):
        super().fit(*arguments, **options)
        return super().fit(*arguments, **options)


class Inner(keras.Sequential):
    def fit(self, *arguments, **options):
        return self.inner.fit(*arguments, **options)


@pytest.mark.parametrize(
    ("kind", "message", "steps"),
    [
        (TrainsOnBatches, r"TrainsOnBatches\.fit, .* takes a step of the optimizer before", 0),
        (OwnTape, r"before keras\.Model\.fit; .* call super\(\)\.fit", 0),
        (Tunes, r"after keras\.Model\.fit", 4),
        (Twice, r"Twice\.fit, the fit of .* a second time, .* its own directory", 4),
        (Inner, "has not called keras.Model.fit of this model", 0),
    ],
)
def test_a_fit_that_trains_by_itself_is_refused_by_name(kind, message, steps, tmp_path):
    model = made(kind)
    if kind is Inner:
        model.inner = made()
    with pytest.raises(FactoryError, match=message):
        sweeper.fit(model, X, Y, epochs=2, checkpoints=tmp_path)
    assert int(model.optimizer.iterations) == steps
    made().fit(X, Y, verbose=0)  # nothing of it stays behind


def test_a_replaced_base_that_hides_keras_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(keras_methods.TensorFlowTrainer, "fit", lambda *_, **__: None)
    keras_methods.keras_method.cache_clear()
    with pytest.raises(FactoryError, match=r"was replaced by .*<lambda>, .* functools\.wraps"):
        sweeper.fit(made(), X, Y, checkpoints=tmp_path)


class Quiet(keras.Sequential):
    def fit(self, x, y, *, scale=1.0, **options):
        return super().fit(x * scale, y, **options)


class Strict(keras.Sequential):
    def fit(self, x, y, scale=1.0):
        return super().fit(x * scale, y, **BRIEF)


@pytest.mark.parametrize("kind", [Quiet, Strict])
def test_an_argument_that_an_override_adds_is_passed_on(kind, tmp_path):
    expected = made(kind).fit(X, Y, scale=0.5).history["loss"]
    options = {} if kind is Strict else {"shuffle": False}

    def losses(name, **others):
        history = sweeper.fit(made(kind), X, Y, checkpoints=tmp_path / name, **options, **others)
        return history.history["loss"]

    if kind is Quiet:
        expected = made(kind).fit(X, Y, scale=0.5, shuffle=False).history["loss"]
    assert losses("named", scale=0.5) == expected == losses("others", others={"scale": 0.5})
    assert losses("control") != expected, "negative control"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (keras.Sequential, r"sweeper\.fit\(…\) got an unknown argument 'epoch'; .* 'epochs'"),
        (Strict, r"sweeper\.fit\(…\) got an unknown argument 'epoch'; .* 'epochs'"),
        (Quiet, r"keras\.Model\.fit\(…\), called by Quiet\.fit, .* argument 'epoch'; .* 'epochs'"),
    ],
)
def test_an_argument_that_nothing_takes_is_refused_by_name(kind, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        sweeper.fit(made(kind), X, Y, epoch=3, checkpoints=tmp_path)


# The evaluate of a class, which ``fit`` calls for its validations


class Measures(keras.Sequential):
    """Measures more than its metrics, by a pass of its own over the validation data."""

    def evaluate(self, x=None, y=None, **options):
        logs = super().evaluate(x, y, **options)
        logs["worst"] = float(np.max(np.abs(self.predict(x, verbose=0)[:, 0] - y)))
        return logs


class OwnEvaluation(keras.Sequential):
    """Evaluates other data than ``fit`` gives, by Keras's loop."""

    def evaluate(self, x=None, y=None, callbacks=None, return_dict=False, **options):
        return super().evaluate(x * 2, y, callbacks=callbacks, verbose=0, return_dict=True)


class Hooks(keras.callbacks.Callback):
    """Records the hooks of tests."""

    def __init__(self):
        super().__init__()
        self.names = []

    def on_test_begin(self, logs=None):
        self.names.append("begin")

    def on_test_batch_end(self, batch, logs=None):
        self.names.append(batch)

    def on_test_end(self, logs=None):
        self.names.append(sorted(logs))


VALIDATED = {**BRIEF, "validation_split": 0.25, "validation_batch_size": 4}


@pytest.mark.parametrize("kind", [Measures, OwnEvaluation])
def test_an_override_of_evaluate_validates_and_resumes(kind, tmp_path):
    hooks = [Hooks(), Hooks()]
    model = made(kind)
    expected = model.fit(X, Y, epochs=3, callbacks=[hooks[0]], **VALIDATED)
    replaced = made(kind)
    history = sweeper.fit(
        replaced, X, Y, epochs=3, callbacks=[hooks[1]], **VALIDATED, checkpoints=tmp_path / "whole"
    )
    assert history.history == expected.history
    assert hooks[1].names == hooks[0].names
    assert equal([v.numpy() for v in replaced.variables], [v.numpy() for v in model.variables])
    for stop in (1, 3):
        with pytest.raises(sweeper.Interrupted):
            trained(functools.partial(made, kind), tmp_path / "parts", stop, **VALIDATED)
    parts = trained(functools.partial(made, kind), tmp_path / "parts", **VALIDATED)
    assert parts[1] == expected.history
    plain = made().fit(X, Y, epochs=3, **VALIDATED).history
    assert plain != expected.history, "negative control"


def test_an_objective_may_be_what_an_override_of_evaluate_measures(tmp_path):
    """In a study as well, and in its evaluations."""
    study = sweeper.Study(
        name="a",
        model=lambda trial: made(Measures),
        data=lambda trial: sweeper.Data(train=(X, Y), validation=(X, Y), shuffle=False),
        objective="val_worst",
        direction="minimize",
        epochs=1,
        trials=1,
    )
    place = str(tmp_path)
    settings = plain_settings(epochs=1, objective="val_worst")
    assignment = Assignment(settings, 0, 1, f"{place}/files", f"{place}/log", (f"{place}/c",))
    link = Answering()
    run_trial(study, assignment, link)
    [ended] = [message.epochs for message in link.messages if isinstance(message, EpochsEnded)]
    expected = made(Measures).fit(X, Y, validation_data=(X, Y), verbose=0, shuffle=False)
    assert ended[0].metrics["val_worst"] == expected.history["val_worst"][0]


class Listed(keras.Sequential):
    def evaluate(self, *arguments, **options):
        return list(super().evaluate(*arguments, **options).values())


class ReadsTwice(keras.Sequential):
    def evaluate(self, *arguments, **options):
        super().evaluate(*arguments, **options)
        return super().evaluate(*arguments, **options)


class OwnStepFunction(keras.Sequential):
    def make_train_function(self, force=False):
        self.train_function = lambda iterator: {"loss": 0.0}


class OwnTestFunction(keras.Sequential):
    def make_test_function(self, force=False):
        self.test_function = lambda iterator: {"loss": 0.0}


class Makes(keras.Sequential):
    """Makes Keras's function, and notes it."""

    def make_train_function(self, force=False):
        self.made = True
        return super().make_train_function(force)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Listed, r"Listed\.evaluate, .* returned \[.*; expected a dict"),
        (ReadsTwice, r"ReadsTwice\.evaluate, .* a second time"),
        (
            OwnStepFunction,
            r"OwnStepFunction\.make_train_function, .* train_step\(\); override that",
        ),
        (OwnTestFunction, r"OwnTestFunction\.make_test_function, .* test_step\(\)"),
    ],
)
def test_what_fit_would_call_and_the_loop_does_not_is_refused_by_name(kind, message, tmp_path):
    with pytest.raises(FactoryError, match=message):
        sweeper.fit(made(kind), X, Y, **VALIDATED, checkpoints=tmp_path)


def test_an_override_that_makes_the_function_of_keras_is_trained(tmp_path):
    model = made(Makes)
    sweeper.fit(model, X, Y, **VALIDATED, checkpoints=tmp_path)
    assert model.made


# Tensors that a layer keeps from a trace


@keras.saving.register_keras_serializable()
class KeepsTensors(keras.layers.Dense):
    """Collects its tensors in each call, as layers of public packages do."""

    def call(self, inputs):
        self.collected = [inputs]
        outputs = super().call(inputs)
        self.collected.append(self.other(outputs))
        return outputs

    def other(self, outputs):
        return outputs


class KeepsIterator(KeepsTensors):
    def other(self, outputs):
        return iter([1])


class Predicts(keras.callbacks.Callback):
    """Has the model traced again during the training."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.predict(X[:3], verbose=0)


def keeping(layer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), layer(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def test_tensors_that_a_layer_keeps_from_a_trace_are_no_state(tmp_path):
    build = functools.partial(keeping, KeepsTensors)
    options = {
        "shuffle": False,
        "checkpoint_every": sweeper.Every(steps=1),
        "validation_split": 0.2,
    }

    def trained_with(directory, stop=None):
        model = build()
        callbacks = [Predicts(), Stops(stop)]
        history = sweeper.fit(
            model, X, Y, epochs=3, verbose=0, callbacks=callbacks, checkpoints=directory, **options
        )
        return [v.numpy() for v in model.variables], history.history

    whole = trained_with(tmp_path / "whole")
    for stop in (1, 3):
        with pytest.raises(sweeper.Interrupted):
            trained_with(tmp_path / "parts", stop)
    parts = trained_with(tmp_path / "parts")
    assert equal(parts[0], whole[0])
    assert parts[1] == whole[1]


def test_what_a_layer_keeps_beside_tensors_is_refused(tmp_path):
    """Negative control: an iterator has a position."""
    with pytest.raises(
        UncapturableError, match=r"attribute 'collected'\[1\] changed .* is an iterator"
    ):
        sweeper.fit(
            keeping(KeepsIterator), X, Y, epochs=2, callbacks=[Predicts()], checkpoints=tmp_path
        )


# Calls in a loop, and phases


def one_epoch_each(directory, count, between=lambda _model: None, **options):
    model = made()
    for epoch in range(count):
        arguments = {
            "epochs": epoch + 1,
            "initial_epoch": epoch,
            "notice": lambda _: None,
            **options,
        }
        sweeper.fit(model, X, Y, **BRIEF, **arguments, checkpoints=directory)
        between(model)
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def test_a_loop_of_one_epoch_each_is_one_training(tmp_path):
    model = made()
    sweeper.fit(model, X, Y, **BRIEF, epochs=4, checkpoints=tmp_path / "whole")
    whole = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    assert equal(one_epoch_each(tmp_path / "loop", 4), whole)


def test_what_a_script_changes_between_its_calls_stays_changed_also_after_a_kill(tmp_path):
    def halves(model):
        rate = model.optimizer.learning_rate
        rate.assign(rate * 0.5)
        model.layers[0].bias.assign([1.0])

    keras_model = made()
    for epoch in range(4):
        keras_model.fit(X, Y, **BRIEF, epochs=epoch + 1, initial_epoch=epoch)
        halves(keras_model)
    expected = [v.numpy() for v in (*keras_model.variables, *keras_model.optimizer.variables)]
    assert equal(one_epoch_each(tmp_path / "whole", 4, halves), expected)
    for count in (1, 3):
        one_epoch_each(tmp_path / "parts", count, halves)
    assert equal(one_epoch_each(tmp_path / "parts", 4, halves), expected)
    assert not equal(one_epoch_each(tmp_path / "control", 4), expected), "negative control"


def test_a_loop_that_always_asks_for_one_epoch_is_an_error_that_names_the_cure(tmp_path):
    with pytest.raises(UsageError, match=r"the same call comes again; .* epochs=i \+ 1"):
        one_epoch_each(tmp_path, 2, epochs=1, initial_epoch=0)


def predictions_of_members(directory, train):
    """What three models predict that a script builds and trains one after the other, from one seed."""
    keras.utils.set_random_seed(5)
    predicted, drawn = [], []
    for member in range(3):
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        before = model.get_weights()[0].tolist()
        train(model, directory / str(member))
        predicted.append((before, model.predict(X[:1], verbose=0).item()))
        drawn.append(np.random.rand())
    return predicted, drawn


def test_models_that_a_script_builds_after_a_training_begin_as_without_it(tmp_path, monkeypatch):
    def train(model, directory):
        sweeper.fit(model, X, Y, **BRIEF, epochs=2, seed=0, checkpoints=directory, notice=print)

    whole = predictions_of_members(tmp_path, train)
    untrained, drawn = predictions_of_members(tmp_path, lambda model, directory: None)
    assert [before for before, _ in whole[0]] == [before for before, _ in untrained]
    assert whole[1] == drawn
    assert len({value for _, value in whole[0]}) == 3
    # Run again from its top, as after a kill in the third training.
    shutil.rmtree(tmp_path / "2")
    assert predictions_of_members(tmp_path, train) == whole
    monkeypatch.setattr(generators.RecordedState, "restore", lambda self: None)
    members, drawn = predictions_of_members(tmp_path / "control", train)
    assert members[1] == members[2]
    assert drawn[1] == drawn[2]


def test_draws_of_a_script_without_a_seed_of_tensorflow_do_not_repeat(tmp_path, monkeypatch):
    def drawn_after_trainings(directory):
        tf.random.set_seed(None)
        numbers = []
        for member in ("first", "second"):
            model = one_layer()
            model.compile("sgd", "mse")
            sweeper.fit(model, X, Y, **BRIEF, seed=0, checkpoints=directory / member, notice=print)
            numbers.append(tf.random.normal([]).numpy().item())
        return numbers

    assert len(set(drawn_after_trainings(tmp_path / "two"))) == 2
    monkeypatch.setattr(generators.RecordedState, "restore", lambda self: None)
    assert len(set(drawn_after_trainings(tmp_path / "control"))) == 1


def order_of_data(directory, of_script=None, *, again=False, **options):
    """Return the order in which a training sees its samples, after the script has set a seed."""
    if not again:
        tf.random.set_seed(of_script)
    samples = []
    model = one_layer()
    model.compile("sgd", "mse", run_eagerly=True)
    step = model.train_step
    model.train_step = lambda batch: samples.extend(batch[1].numpy().tolist()) or step(batch)
    sweeper.fit(model, X, Y, 16, verbose=0, checkpoints=directory, notice=print, **options)
    return samples


def test_the_order_of_the_data_follows_the_scripts_seed_and_stays_with_the_training(tmp_path):
    first, second = (order_of_data(tmp_path / str(seed), seed) for seed in (1, 2))
    assert sorted(first) == sorted(second)
    assert first != second, "what a script compares by several seeds differs by the order, too"
    assert first == order_of_data(tmp_path / "given", 2, seed=1)
    without = order_of_data(tmp_path / "without")
    # After a training the process has a seed that no script has set.
    assert without == order_of_data(tmp_path / "again", again=True)
    assert without == order_of_data(tmp_path / "none", 1, seed=0)
    # What the step has seen is part of the checkpoint.
    further = order_of_data(tmp_path / "1", 2, epochs=2)
    assert further == order_of_data(tmp_path / "two", 1, epochs=2)


def test_a_later_process_with_other_settings_says_which(tmp_path, monkeypatch):
    def notices_of(units, rate, dropout, epochs, *, later):
        if later:
            monkeypatch.setattr(model_settings, "_SEEN", set())
        keras.utils.set_random_seed(5)
        layers = [keras.layers.Dense(units), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input(X.shape[1:]), *layers])
        model.compile(keras.optimizers.SGD(rate), "mse")
        notices = []
        options = {**BRIEF, "epochs": epochs, "checkpoints": tmp_path, "notice": notices.append}
        sweeper.fit(model, X, Y, **options)
        return [notice for notice in notices if "other settings" in notice]

    assert notices_of(4, 0.1, 0.5, 1, later=False) == []
    assert notices_of(4, 0.1, 0.5, 2, later=True) == [], "layers have other names, and nothing else"
    [notice] = notices_of(4, 0.2, 0.25, 3, later=True)
    assert (
        "layers[2].Dropout.rate was 0.5 and is 0.25; optimizer.SGD.learning_rate was 0.1 and is 0.2. "
        in notice
    )
    assert notices_of(4, 0.3, 0.5, 4, later=False) == [], "the process that said so may go on"


def test_another_model_of_a_loop_does_not_get_the_first_ones_state(tmp_path):
    def trained(rate):
        keras.utils.set_random_seed(5)
        model = one_layer()
        model.compile(keras.optimizers.SGD(rate), "mse")
        return sweeper.fit(
            model, X, Y, **BRIEF, epochs=2, checkpoints=tmp_path / "one", notice=print
        )

    first = trained(0.1).history
    assert trained(0.1).history == first, "the same model, as in a script that is run again"
    with pytest.raises(
        UsageError, match=r"with a model of other values, .* checkpoints=f\"one/\{i\}\""
    ):
        trained(0.01)


def test_a_finished_training_says_so_once_and_does_not_undo_changes(tmp_path):
    notices = []
    model = made()
    options = {**BRIEF, "epochs": 2, "checkpoints": tmp_path, "notice": notices.append}
    first = sweeper.fit(model, X, Y, **options)
    history = dict(first.history)
    repeated = sweeper.fit(model, X, Y, **options)
    assert repeated.history == history
    assert [re.sub(r" in \S+", "", line) for line in notices] == [
        "the training has finished, with 2 epochs: nothing is trained, and its newest checkpoint is restored"
    ]
    model.layers[0].bias.assign([5.0])
    with pytest.raises(UsageError, match=r"was changed since, .* epochs=i \+ 1"):
        sweeper.fit(model, X, Y, **options)
    assert model.layers[0].bias.numpy() == [5.0]
    assert sweeper.fit(made(), X, Y, **options).history == history


@pytest.mark.parametrize("keep", [None, sweeper.Keep(every_epochs=1)])
@pytest.mark.parametrize("stop", [6, 7, 8])
def test_a_change_between_two_calls_is_made_once_wherever_the_script_was_stopped(
    stop, keep, tmp_path
):
    """At the end of the second epoch, which has three steps, and within the third.

    After the last call before it, and after every one whose checkpoint is kept, the model is what it was.
    """

    def looped(directory, stop=None):
        keras.utils.set_random_seed(5)
        model = one_layer()
        weights, notices = [], []
        options = {**BRIEF, "checkpoints": directory, "notice": notices.append, "keep": keep}
        for epoch in range(4):
            history = sweeper.fit(
                model, X, Y, **options, epochs=epoch + 1, callbacks=[Stops(stop)]
            ).history
            variables = [*model.variables, *model.optimizer.variables]
            weights.append([*(variable.numpy().tobytes() for variable in variables), history])
            model.optimizer.learning_rate = 0.5 * model.optimizer.learning_rate
        return weights, notices

    whole, _ = looped(tmp_path / "whole")
    with pytest.raises(sweeper.Interrupted, match=f"at step {stop}"):
        looped(tmp_path / "stopped", stop)
    resumed, notices = looped(tmp_path / "stopped")
    before = 1 if stop == 6 else 2
    first = 0 if keep else before - 1
    assert resumed[first:] == whole[first:]
    finished = [notice.partition("nothing is trained, and ")[2] for notice in notices]
    own = [f"the checkpoint of the end of epoch {n + 1} is restored" for n in range(first, before)]
    assert finished[first:] == own
    assert all(
        "newest checkpoint, of a later call, because" in notice for notice in finished[:first]
    )


class Remembers(keras.callbacks.Callback):
    """Changes each of its attributes in one epoch alone, or in all."""

    def __init__(self):
        super().__init__()
        self.first = None
        self.given = {"a": 0}
        self.ratios = []
        self.unused = "deleted"
        self.rng = np.random.default_rng(1)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.first = logs["loss"]
            self.made = [{"epoch": epoch}, np.ones(3)]
            self.given["b"] = self.made
            del self.unused
        elif epoch == 2:
            self.made[0]["later"] = epoch
        self.ratios.append(logs["loss"] / self.first + self.rng.random())

    def values(self):
        names = ("first", "given", "ratios", "unused", "phase")
        own = {name: getattr(self, name, None) for name in names}
        return repr(own), self.given["b"] is self.made, self.rng.random()


@pytest.mark.parametrize("stops", [(4,), (7,), (8, 11), (11,)])
def test_a_callback_of_several_calls_remembers_what_it_saw_in_the_first_one(stops, tmp_path):
    def looped(directory, stop=None):
        keras.utils.set_random_seed(5)
        model, remembers = one_layer(), Remembers()
        options = {**BRIEF, "checkpoints": directory, "notice": print}
        for epoch in range(4):
            called = [Stops(stop), remembers]
            sweeper.fit(model, X, Y, **options, epochs=epoch + 1, callbacks=called)
            # What the script changes between two calls stays changed.
            remembers.ratios.append("--")
            remembers.made.append(remembers.rng.random())
            remembers.phase = epoch
        assert [type(ratio) for ratio in remembers.ratios] == [float, str] * 4
        return remembers.values()

    whole = looped(tmp_path / "whole")
    for stop in stops:
        with pytest.raises(sweeper.Interrupted, match=f"at step {stop}"):
            looped(tmp_path / "stopped", stop)
    assert looped(tmp_path / "stopped") == whole


def test_phases_have_a_directory_each(tmp_path):
    """Freeze, then fine-tune, killed in both phases: the script runs again from its top."""

    def script(directory, stop=None):
        keras.utils.set_random_seed(3)
        base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model = keras.Sequential([base, keras.layers.Dense(1)])
        base.trainable = False
        model.compile("adam", "mse")
        options = {**BRIEF, "callbacks": [Stops(stop)], "notice": lambda _: None}
        first = sweeper.fit(model, X, Y, **options, epochs=2, checkpoints=directory / "head")
        base.trainable = True
        model.compile(keras.optimizers.Adam(1e-4), "mse")
        begin = first.epoch[-1] + 1
        options |= {"callbacks": [Stops(None if stop is None else stop - 6)]}
        second = sweeper.fit(
            model, X, Y, **options, epochs=4, initial_epoch=begin, checkpoints=directory / "all"
        )
        return second.epoch, [v.numpy() for v in model.variables]

    epochs, whole = script(tmp_path / "whole")
    assert epochs == [2, 3]
    for stop in (2, 5, 7, 11):
        with pytest.raises(sweeper.Interrupted):
            script(tmp_path / "parts", stop)
    assert equal(script(tmp_path / "parts")[1], whole)


def test_a_second_phase_in_the_directory_of_the_first_is_refused(tmp_path):
    model = made()
    options = {**BRIEF, "checkpoints": tmp_path}
    sweeper.fit(model, X, Y, **options, epochs=1)
    with pytest.raises(UsageError, match=r"initial_epoch=5, .* is in epoch 1"):
        sweeper.fit(model, X, Y, **options, epochs=9, initial_epoch=5)
    model.compile("sgd", "mse")
    with pytest.raises(UsageError, match=r"compiled again .* another directory"):
        sweeper.fit(model, X, Y, **options, epochs=2)


@pytest.mark.parametrize(
    ("samples", "batch"),
    [(10, 1), pytest.param(10, 5, marks=pytest.mark.whole), (11, 5)],
)
def test_a_stateful_network_trains_as_in_fit(samples, batch, tmp_path):
    def network():
        keras.utils.set_random_seed(1)
        layers = [keras.Input(batch_shape=(batch, 3, 1)), keras.layers.LSTM(4, stateful=True)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    series = np.random.default_rng(0).random((samples, 3, 1))
    options = {"batch_size": batch, "shuffle": False, "epochs": 2, "verbose": 0}
    expected = network()
    model = network()
    expected.fit(series, series[:, 0], **options)
    sweeper.fit(model, series, series[:, 0], **options, checkpoints=tmp_path)
    weights, expected_weights = (
        [v.numpy() for v in built.variables] for built in (model, expected)
    )
    for weight, keras_own in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(weight, keras_own, rtol=1e-5)


def test_a_library_that_is_not_installed_twice_trains_once():
    """The plain model has no wrapper around its training, and Keras's own fit is itself again."""
    function = keras_methods.keras_method("fit")
    assert function.cell.cell_contents is function.plain
    assert one_layer().fit.__func__ is function.wrapper
