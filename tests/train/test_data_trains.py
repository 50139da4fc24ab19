"""Training on every kind of data: equal to ``model.fit``, and what it refuses.

What each source promises by itself is in ``tests/conformance/test_data_source.py``; that each is
resumed exactly is in ``test_exactness_suite.py``.
"""

from __future__ import annotations

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import (
    HOOKS,
    Recorder,
    Watcher,
    classifying,
    digits,
    equal,
    one_layer,
    plan,
    resumed,
    train,
    untuned,
    weights,
)

import sweeper
from sweeper import Data
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.sources import tfdata

X, Y = digits(50)
BATCHES = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 50, 8)]


def small(dropout=0.3, **options):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.5),
        loss="sparse_categorical_crossentropy",
        **options,
    )
    return model


class Batches(keras.utils.PyDataset):
    """The samples in order."""

    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        return BATCHES[index]


class Reshuffled(keras.utils.PyDataset):
    """Shuffles its own samples with NumPy's global generator at an epoch's end, as many do."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(len(X))

    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        chosen = self.order[index * 8 : index * 8 + 8]
        return X[chosen] + np.random.normal(scale=0.01, size=(1, 8)).astype("float32"), Y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def dataset(*, shuffled=False, known=True):
    made = untuned(tf.data.Dataset.from_tensor_slices((X, Y)))
    if shuffled:
        made = made.shuffle(20)
    if not known:
        made = made.filter(lambda x, y: y >= 0)
    return made.batch(8)


def of_epoch(epoch):
    draw = np.random.default_rng(epoch)
    for _ in range(5 + epoch):
        chosen = draw.integers(0, len(X), 8)
        yield X[chosen], Y[chosen]


def grain_data():
    import grain

    samples = grain.MapDataset.range(len(X)).seed(1).shuffle()
    return samples.map(lambda i: (X[i], Y[i])).batch(8)


KINDS = {
    "PyDataset": lambda: Data(train=Reshuffled(), validation=Batches()),
    "tf.data": lambda: Data(
        train=dataset(shuffled=True, known=False),
        validation=dataset(shuffled=True),
        validation_steps=4,
    ),
    "tf.data, going on": lambda: Data(
        train=dataset(shuffled=True).repeat(),
        steps_per_epoch=5,
        validation=untuned(
            tf.data.Dataset.from_generator(
                lambda: iter(BATCHES[:3]),
                output_signature=(
                    tf.TensorSpec((None, 8), tf.float32),
                    tf.TensorSpec((None,), tf.int64),
                ),
            )
        ),
    ),
    "function of the epoch": lambda: Data(train=of_epoch, validation=of_epoch, validation_freq=2),
    "grain": lambda: Data(train=grain_data(), validation=grain_data(), validation_freq=[1, 3]),
}


def parts_of_one_shuffle(**options):
    def make():
        whole = untuned(tf.data.Dataset.from_tensor_slices((X, Y))).shuffle(20)
        part = whole.skip(12).batch(8)
        return Data(train=part, validation=whole.take(12).batch(8), **options)

    return make


def test_control_without_their_order_the_parts_of_one_shuffle_are_others(tmp_path, monkeypatch):
    def make():
        return plan(model=small, data=parts_of_one_shuffle())

    watcher = Watcher(tmp_path, lambda position: position.step == 5, block=1)
    expected = weights(train(make(), watcher)._plan.model)
    monkeypatch.setattr(tfdata.PassSeeds, "begin", lambda *_: None)
    loaded = load_checkpoint(watcher.kept[0])
    assert not equal(weights(train(make(), Watcher(), loaded)._plan.model), expected)


class Holding(Batches):
    """Holds what no checkpoint could, and a large array; changes what it is told to."""

    changes: str = ""

    def __init__(self):
        super().__init__()
        self.connection = threading.Lock()
        self.samples = np.zeros((1000, 10))
        self.ended = 0

    def on_epoch_end(self):
        self.ended += 1
        if self.changes == "connection":
            self.connection = threading.Lock()
        if self.changes == "samples":
            self.samples[3, 3] += 1


def captured(changes):
    """The last checkpoint of a training on a dataset that changes so."""
    holding = Holding()
    holding.changes = changes
    watcher = Watcher(snapshot_at=lambda position: position.step_in_epoch == 0)
    train(plan(model=one_layer, data=lambda: Data(train=holding)), watcher)
    assert watcher.last is not None
    return watcher.last


def test_only_what_has_changed_of_a_dataset_is_in_a_checkpoint_whatever_else_it_holds():
    plain, written = captured(""), captured("samples")
    (added,) = set(written.tensors) - set(plain.tensors)
    assert "samples" in added
    (changed,) = plain.state["user_state"]["changed"].values()
    assert changed["set"] == {"ended": 3}


def test_what_no_checkpoint_holds_of_a_dataset_is_refused_where_it_changes():
    with pytest.raises(UncapturableError, match=r"'connection' changed .*lock"):
        captured("connection")


@pytest.mark.parametrize(
    ("data", "steps_per_epoch", "notices"),
    [
        pytest.param(lambda: (X, Y), 5, 1, id="arrays"),
        pytest.param(lambda: (X, Y), 10, 1, id="fewer arrays than an epoch has steps"),
        pytest.param(lambda: (X, Y), 7, 0, id="a pass is an epoch"),
        pytest.param(Batches, 3, 1, id="PyDataset"),
        pytest.param(lambda: dataset(known=False), 7, 0, id="unknown length, a pass is an epoch"),
        pytest.param(lambda: dataset().repeat(), 5, 0, id="tf.data, endless"),
        pytest.param(lambda: of_epoch, 4, 0, id="a function of the epoch"),
    ],
)
def test_one_notice_says_that_an_epoch_goes_on_with_the_next_pass_where_fit_ends_it(
    data, steps_per_epoch, notices
):
    told = []
    given = Data(train=data(), batch_size=8, steps_per_epoch=steps_per_epoch)
    TrainingLoop(plan(model=classifying, data=lambda: given), Watcher(), told.append).run()
    about = [each for each in told if "continues with the next pass" in each]
    assert len(about) == notices
    assert all(
        f"(steps_per_epoch={steps_per_epoch})" in each and "has 7 batches" in each for each in about
    )


class MeanOfRows(keras.Model):
    """The mean of each row of a ragged batch, through a layer."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="softmax")

    def call(self, x):
        return self.dense(tf.reduce_mean(x, axis=1)[:, tf.newaxis])


def ragged_model(**options):
    model = MeanOfRows()
    model.compile(keras.optimizers.SGD(0.1, 0.5), "sparse_categorical_crossentropy", **options)
    return model


@functools.cache
def rows():
    """Ragged; made when a test first asks for them, because files are imported before they are forked."""
    return tf.RaggedTensor.from_row_lengths(X.reshape(-1)[:150], [1 + n % 5 for n in range(50)])


def ragged_arrays(shuffle=True):
    return Data(train=(rows(), Y), batch_size=8, validation_split=0.2, shuffle=shuffle)


@pytest.mark.whole
@pytest.mark.parametrize("eager", [False, True])
def test_ragged_tensors_train_as_in_fit(eager):
    def planned():
        model = functools.partial(model_on, "ragged-arrays", eager=eager)
        return plan(model=model, data=lambda: ragged_arrays(shuffle=False))

    ours = train(planned(), Watcher()).history.history
    fitted = planned().model.fit(
        rows(), Y, batch_size=8, shuffle=False, validation_split=0.2, epochs=3, verbose=0
    )
    for name, values in fitted.history.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-5)


FORMS = ("ragged-arrays", "tf", "scipy", "ragged")


def model_on(form, *, eager):
    options = {"run_eagerly": eager, "jit_compile": False}
    return ragged_model(**options) if form.startswith("ragged") else small(0.0, **options)


def data_in(form):
    if form == "ragged-arrays":
        return ragged_arrays()
    return Data(train=lambda _epoch: sparse_batches(form))


BY_REQUEST = [("tf", False), ("tf", True), ("scipy", False), ("ragged", False), ("ragged", True)]
"""SciPy's batches become TensorFlow's; a model on ragged tensors is above."""


def sparse_batches(form):
    kept = np.where(np.abs(X) > 0.8, X, 0)
    made = {
        "tf": tf.sparse.from_dense,
        "scipy": pytest.importorskip("scipy.sparse").csr_matrix,
        "ragged": lambda part: tf.RaggedTensor.from_row_lengths(
            part.reshape(-1), [1, 15, *[8] * (len(part) - 2)]
        ),
    }
    return [(made[form](kept[i : i + 8]), Y[i : i + 8]) for i in range(0, 48, 8)]


@pytest.mark.parametrize(
    ("form", "eager"),
    [
        ("scipy", True),
        *(pytest.param(*case, marks=pytest.mark.whole) for case in BY_REQUEST),
    ],
)
def test_sparse_and_ragged_batches_of_a_function_train_as_in_fit(form, eager):
    def planned():
        model = functools.partial(model_on, form, eager=eager)
        return plan(model=model, data=lambda: data_in(form))

    ours = train(planned(), Watcher()).history.history
    endless = (batch for _ in range(4) for batch in sparse_batches(form))
    fitted = planned().model.fit(endless, steps_per_epoch=6, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(ours["loss"], fitted.history["loss"], rtol=1e-5)


def test_the_data_of_a_checkpoint_must_be_of_the_same_kind(tmp_path):
    def planned(train):
        return plan(model=one_layer, data=lambda: Data(train=train))

    train(planned(Batches()), Watcher(tmp_path, stop_at=2))
    with pytest.raises(RestoreError, match=r"PyDatasetSource.*TfDataSource"):
        resumed(lambda: planned(dataset()), tmp_path)


def test_on_epoch_end_is_called_once_an_epoch_however_often_training_stops(tmp_path):
    calls = []

    class Counted(Batches):
        def on_epoch_begin(self):
            calls.append("begin")

        def on_epoch_end(self):
            calls.append("end")

    def make():
        return plan(model=one_layer, data=lambda: Data(train=Counted()), epochs=2)

    # Step 7 is the last of an epoch: the calls of that epoch's end are still to come.
    resumed(make, tmp_path, [3, 7])
    assert calls == ["begin", "end"] * 2


# Against fit


FITTED = {
    "PyDataset": lambda: (
        Data(train=Batches(), validation=Batches(), shuffle=False, class_weight={1: 2.0}),
        {"x": Batches(), "validation_data": Batches(), "class_weight": {0: 1.0, 1: 2.0}},
    ),
    "tf.data": lambda: (
        Data(train=dataset(), validation=dataset(), validation_steps=3, class_weight={1: 2.0}),
        {
            "x": dataset(),
            "validation_data": dataset(),
            "validation_steps": 3,
            "class_weight": {0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0},
        },
    ),
    "tf.data, endless": lambda: (
        Data(train=dataset().repeat(), steps_per_epoch=5),
        {"x": dataset().repeat(), "steps_per_epoch": 5},
    ),
    "arrays, split": lambda: (
        Data(train=(X, Y), batch_size=8, shuffle=False, validation_split=0.3, validation_freq=[2]),
        {"x": X, "y": Y, "batch_size": 8, "validation_split": 0.3, "validation_freq": [2]},
    ),
}


@pytest.mark.usefixtures("_without_constant_folding")
@pytest.mark.parametrize(
    "kind",
    [
        *("tf.data", "arrays, split"),
        *(
            pytest.param(kind, marks=pytest.mark.whole)
            for kind in ("PyDataset", "tf.data, endless")
        ),
    ],
)
def test_a_training_on_any_kind_of_data_is_fits_own(kind):
    data, given = FITTED[kind]()
    theirs, ours = Recorder(HOOKS), Recorder(HOOKS)
    model = plan(model=small, data=lambda: data).model
    model.fit(**given, epochs=2, shuffle=False, callbacks=[theirs], verbose=0)
    planned = plan(model=small, data=lambda: data, callbacks=lambda: [ours], epochs=2)
    loop = train(planned, Watcher())
    assert ours.calls == theirs.calls
    assert equal(weights(planned.model), weights(model))
    assert loop.history.history == model.history.history


@pytest.mark.usefixtures("_without_constant_folding")
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.whole), {"steps_per_execution": 3}]
)
def test_a_dataset_of_unknown_length_calls_back_as_fit_does(options):
    # Fit finds the end by a step that fails, and that still counts the optimizer's iterations and
    # draws a dropout's seed (not so with steps_per_execution): no dropout, and the weights alone.
    options = {**options, "dropout": 0.0}
    data = Data(train=dataset(known=False))
    theirs, ours = Recorder(HOOKS), Recorder(HOOKS)
    model = plan(model=lambda: small(**options), data=lambda: data).model
    model.fit(data.train, epochs=2, shuffle=False, callbacks=[theirs], verbose=0)
    planned = plan(
        model=lambda: small(**options), data=lambda: data, callbacks=lambda: [ours], epochs=2
    )
    train(planned, Watcher())
    assert ours.calls == theirs.calls
    assert equal(planned.model.get_weights(), model.get_weights())
    assert int(planned.model.optimizer.iterations) == 14


def test_a_model_that_runs_eagerly_trains_on_batches_and_datasets_alike():
    trained = [
        weights(
            train(
                plan(model=lambda: small(run_eagerly=True), data=lambda d=data: d, epochs=1),
                Watcher(),
            )._plan.model
        )
        for data in (
            Data(train=Batches(), shuffle=False),
            Data(train=dataset()),
            Data(train=(X, Y), batch_size=8, shuffle=False),
        )
    ]
    assert equal(trained[0], trained[1])
    assert equal(trained[0], trained[2])


# What cannot be trained on


def test_an_epoch_without_a_batch_is_refused():
    data = Data(train=lambda epoch: BATCHES[:2] if epoch == 0 else [])
    with pytest.raises(DataError, match="yielded no batch in epoch 1"):
        train(plan(model=small, data=lambda: data), Watcher())


def test_a_batch_of_another_form_is_refused_with_its_position():
    wide = [*BATCHES[:2], (np.zeros((8, 9), "float32"), Y[:8])]
    with pytest.raises(DataError, match=r"batch 3 of epoch 1 has an array of shape \(8, 9\)"):
        train(plan(model=small, data=lambda: Data(train=lambda _epoch: wide)), Watcher())


class Rebuilds(keras.Model):
    """A model whose own step is given ``x`` alone, as published autoencoders are."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(X.shape[1])

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data, training=True) - data))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_step_of_its_own_is_given_x_alone_as_fit_gives_it(eager, tmp_path):
    def made():
        keras.utils.set_random_seed(1)
        model = Rebuilds()
        model(X[:1])
        model.compile(optimizer="sgd", loss="mse", run_eagerly=eager)
        return model

    expected = made()
    expected.fit(X, batch_size=10, epochs=2, shuffle=False, verbose=0)
    given = made()
    data = Data(train=X, batch_size=10, shuffle=False)
    sweeper.fit(given, data, epochs=2, checkpoints=tmp_path)
    assert equal(weights(given), weights(expected))
