"""Every kind of data, for trainings of other files, and what a training on it refuses and says.

What each source promises by itself is in ``tests/conformance/test_data_source.py``; that each trains as
in ``model.fit`` is in ``test_loop_equals_fit.py``, and that it is resumed exactly in
``test_exactness_suite.py``.
"""

import functools
import importlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config  # no public function ends determinism
from trainings import (
    Watcher,
    classifying,
    digits,
    one_layer,
    plan,
    resumed,
    train,
    untuned,
)

import sweeper
from sweeper import Data
from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.sources import opening

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
        rows = self.order[index * 8 : index * 8 + 8]
        return X[rows] + np.random.normal(scale=0.01, size=(1, 8)).astype("float32"), Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class ReadAhead(Reshuffled):
    """Shuffles in the same way, and threads read it ahead."""

    def __init__(self):
        keras.utils.PyDataset.__init__(self, workers=2)
        self.order = np.arange(len(X))

    def __getitem__(self, index):
        rows = self.order[index * 8 : index * 8 + 8]
        return X[rows], Y[rows]


def dataset(*, shuffled=False, known=True):
    batches = untuned(tf.data.Dataset.from_tensor_slices((X, Y)))
    if shuffled:
        batches = batches.shuffle(20)
    if not known:
        batches = batches.filter(lambda x, y: y >= 0)
    return batches.batch(8)


def of_epoch(epoch):
    draw = np.random.default_rng(epoch)
    for _ in range(5 + epoch):
        rows = draw.integers(0, len(X), 8)
        yield X[rows], Y[rows]


def grain_data():
    import grain

    samples = grain.MapDataset.range(len(X)).seed(1).shuffle()
    return samples.map(lambda i: (X[i], Y[i])).batch(8)


KINDS = {
    "PyDataset": lambda: Data(train=Reshuffled(), validation=Batches()),
    "PyDataset, read ahead": lambda: Data(train=ReadAhead(), validation=ReadAhead()),
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


class Holding(Batches):
    """Holds what no checkpoint could; counts, and exchanges what it holds if it is told to."""

    def __init__(self, *, exchanges=False):
        super().__init__()
        self.exchanges = exchanges
        self.connection = threading.Lock()
        self.ended = 0

    def on_epoch_end(self):
        self.ended += 1
        if self.exchanges:
            self.connection = threading.Lock()


def test_what_no_checkpoint_holds_of_a_dataset_is_refused_where_it_changes_and_nowhere_else():
    watcher = Watcher()
    train(plan(model=one_layer, data=lambda: Data(train=Holding())), watcher)
    (changed,) = watcher.last.state["user_state"]["changed"].values()
    assert changed["set"] == {"ended": 3}
    with pytest.raises(UncapturableError, match=r"'connection' changed .*lock"):
        train(plan(model=one_layer, data=lambda: Data(train=Holding(exchanges=True))), Watcher())


@pytest.mark.parametrize(
    ("data", "steps_per_epoch", "notices"),
    [
        pytest.param(lambda: (X, Y), 5, 1, id="arrays"),
        pytest.param(lambda: (X, Y), 10, 1, id="fewer arrays than an epoch has steps"),
        pytest.param(lambda: (X, Y), 7, 0, id="a pass is an epoch"),
        pytest.param(lambda: (X, Y), 2, 0, id="three epochs are less than a pass"),
        pytest.param(Batches, 3, 1, id="PyDataset"),
        pytest.param(lambda: dataset(known=False), 7, 0, id="unknown length, a pass is an epoch"),
        pytest.param(lambda: dataset().repeat(), 5, 0, id="tf.data, endless"),
        pytest.param(lambda: of_epoch, 4, 0, id="a function of the epoch"),
    ],
)
def test_one_notice_says_that_an_epoch_goes_on_with_the_next_pass_where_fit_ends_it(
    data, steps_per_epoch, notices, tmp_path
):
    told = []
    training_data = Data(train=data(), batch_size=8, steps_per_epoch=steps_per_epoch)
    sweeper.fit(classifying(), training_data, epochs=3, checkpoints=tmp_path, notice=told.append)
    about = [notice for notice in told if "continues with the next pass" in notice]
    assert len(about) == notices
    assert all(
        f"(steps_per_epoch={steps_per_epoch})" in notice and "has 7 batches" in notice
        for notice in about
    )


NOISY = {"num_parallel_calls": tf.data.AUTOTUNE}
"""Options of a map whose function draws."""


def noisy(x, y):
    return x + tf.random.normal(tf.shape(x)), y


CACHES = {
    "random before": (lambda data: data.map(noisy, **NOISY).cache(), True),
    "random before, shuffled": (lambda data: data.map(noisy, **NOISY).cache().shuffle(8), True),
    "unordered before": (
        lambda data: data.map(
            lambda x, y: (x, y), num_parallel_calls=4, deterministic=False
        ).cache(),
        True,
    ),
    "random after": (lambda data: data.cache().map(noisy, **NOISY), False),
    "one by one": (lambda data: data.map(noisy).cache(), False),
    "parallel": (lambda data: data.map(lambda x, y: (x, y), **NOISY).cache(), False),
}


@pytest.mark.parametrize("already", [False, True], ids=["made in fit", "made before"])
@pytest.mark.parametrize("case", CACHES)
def test_a_cache_that_was_perhaps_filled_in_any_order_is_told_of(case, already, tmp_path):
    make, in_any_order = CACHES[case]
    keras.utils.set_random_seed(1)
    batches = make(tf.data.Dataset.from_tensor_slices((X, Y))).batch(8)
    notices = []
    of_fit = importlib.import_module("sweeper.api.fit")._deterministic_before_fit
    of_fit.cache_clear()
    if not already:
        config.disable_op_determinism()
    try:
        sweeper.fit(small(), batches, verbose=0, checkpoints=tmp_path, notice=notices.append)
    finally:
        tf.config.experimental.enable_op_determinism()
        of_fit.cache_clear()
    about_caches = [notice for notice in notices if "enable_op_determinism() at the top" in notice]
    assert len(about_caches) == (in_any_order and not already)


LOOKED_AT = {
    "one map": lambda one, two, batches: batches.map(one),
    "a second one, not reached by all": lambda one, two, batches: batches.map(one).concatenate(
        batches.map(two)
    ),
}


@pytest.mark.parametrize("set_", [True, False], ids=["set", "control: not set"])
@pytest.mark.parametrize("case", LOOKED_AT)
def test_what_a_script_draws_outside_of_fit_changes_no_training(case, set_, tmp_path, monkeypatch):
    """An iterator that it abandons reads ahead as far as threads come; here, the number of batches differs."""
    if not set_:
        monkeypatch.setattr(opening, "set_generators", lambda *_: None)
    ends = []
    for looked_at in (1, 12):
        keras.utils.set_random_seed(1)
        generators = [keras.random.SeedGenerator(seed) for seed in (5, 6)]
        one, two = (
            lambda x, y, seed=seed: (x + keras.random.normal(tf.shape(x), seed=seed), y)
            for seed in generators
        )
        batches = LOOKED_AT[case](one, two, tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
        model = small()
        for phase in range(2):
            list(batches.take(looked_at))
            directory = tmp_path / f"{looked_at}-{phase}"
            sweeper.fit(model, batches, verbose=0, checkpoints=directory)
            states = [generator.state.numpy() for generator in generators]
            ends.append([*map(np.array, model.get_weights()), *states])
    for of_one, of_all in zip(ends[:2], ends[2:], strict=True):
        same = [np.array_equal(one, other) for one, other in zip(of_one, of_all, strict=True)]
        assert all(same) == set_
    assert ends[0][-2].tolist() != ends[1][-2].tolist(), "the second training draws on"


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


FORMS = ("ragged-arrays", "tf", "scipy", "ragged")


def model_on(form, *, eager):
    options = {"run_eagerly": eager, "jit_compile": False}
    return ragged_model(**options) if form.startswith("ragged") else small(0.0, **options)


def data_in(form, **options):
    if form == "ragged-arrays":
        return Data(train=(rows(), Y), batch_size=8, validation_split=0.2, **options)
    return Data(train=lambda _epoch: sparse_batches(form))


class Bcoo:
    """A sparse array as JAX has it, without JAX: Keras recognizes it by the module of its class."""

    __module__ = "jax.experimental.sparse.bcoo"

    def __init__(self, dense):
        self.indices = np.argwhere(dense)
        self.data = dense[dense != 0]
        self.shape = dense.shape
        self.dtype = dense.dtype


def sparse_batches(form):
    values = np.where(np.abs(X) > 0.8, X, 0)
    converters = {
        "tf": tf.sparse.from_dense,
        "scipy": pytest.importorskip("scipy.sparse").csr_matrix,
        "jax": Bcoo,
        "ragged": lambda part: tf.RaggedTensor.from_row_lengths(
            part.reshape(-1), [1, 15, *[8] * (len(part) - 2)]
        ),
    }
    return [(converters[form](values[i : i + 8]), Y[i : i + 8]) for i in range(0, 48, 8)]


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


# What cannot be trained on


WIDE = [*BATCHES[:2], (np.zeros((8, 9), "float32"), Y[:8])]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (lambda epoch: BATCHES[:2] if epoch == 0 else [], "yielded no batch in epoch 1"),
        (lambda _: WIDE, r"batch 3 of epoch 1 has an array of shape \(8, 9\)"),
    ],
)
def test_an_epoch_without_a_batch_and_a_batch_of_another_form_are_refused(
    batches, message, tmp_path
):
    with pytest.raises(DataError, match=message):
        sweeper.fit(one_layer(), Data(train=batches), epochs=2, checkpoints=tmp_path)
