"""What cannot be read by position is refused by name before training, with what to do instead."""

import itertools
import shutil

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import sweeper
from sweeper import Data, Every
from sweeper.errors import DataError, UncapturableError

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10)


@pytest.fixture
def fit(tmp_path):
    """Train one epoch in a directory of its own, or the one given; return the losses and every notice."""
    directories = map(str, itertools.count())

    def fit(data, directory=None, **options):
        notices = []
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        checkpoints = tmp_path / (directory or next(directories))
        arguments = {"epochs": 1, "checkpoints": checkpoints, "notice": notices.append, **options}
        return sweeper.fit(model, data, **arguments).history["loss"], notices

    return fit


def numbers():
    keras.utils.set_random_seed(1)
    return tf.data.Dataset.range(8).map(lambda n: (tf.cast(n, tf.float32)[None], n))


class Plain(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index : index + 1], Y[index : index + 1]


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps_per_epoch": 0}, r"steps_per_epoch=0\): it must be a whole number"),
        ({"validation_steps": 1.5}, "validation_steps=1.5"),
        ({"validation_freq": [2, 0]}, "validation_freq=0"),
        ({"validation_freq": "2"}, "validation_freq='2'"),
        ({"validation_split": 1.0}, r"validation_split=1.0\): it must be a number from 0"),
        ({"validation_split": 0.2, "validation": (X, Y)}, "leave one out"),
        ({"class_weight": "balanced"}, r"class_weight='balanced'\): it must be a dict"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options, message):
    with pytest.raises(DataError, match=message):
        Data(train=(X, Y), **options)


def test_validation_runs_where_fit_would_run_it():
    every = Data(train=(X, Y), validation=(X, Y), validation_freq=2)
    listed = Data(train=(X, Y), validation_split=0.5, validation_freq=[1, 4])
    never = Data(train=(X, Y), validation_freq=1)
    assert [e for e in range(6) if every.validates_after(e)] == [1, 3, 5]
    assert [e for e in range(6) if listed.validates_after(e)] == [0, 3]
    assert not any(map(never.validates_after, range(6)))


def test_frames_series_and_tensors_train_as_the_arrays_that_they_hold(fit):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    result = fit(Data(train=(frame, pandas.Series(Y), tf.constant(Y))))
    assert result == fit(Data(train=(X.astype("float32"), Y[:, None], Y)))


# Forms that are no data


def split(whole, **options):
    return Data(train=whole.skip(3).batch(2), validation=whole.take(3).batch(2), **options)


ENDLESS = r"never ends; give Data\(%s=…\)"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: iter([(X, Y)]), r"whose position cannot be saved.*lambda epoch: …"),
        (lambda: ((x, y) for x, y in [(X, Y)]), "is a generator"),
        (object, r"is a object; expected arrays as \(x, y\).*PyDataset.*grain"),
        (lambda: 7, r"is a int; expected arrays"),
        (lambda: (X, object()), r"Data\(train\[1\]\) is a object; expected a NumPy array"),
        (lambda: lambda: [(X, Y)], r"which cannot be called with an epoch.*lambda epoch: …"),
        (lambda: (tf.sparse.eye(10), Y), r"Data\(train\[0\]\) is a sparse SparseTensor.*dense"),
        (
            lambda: (tf.ragged.constant([[1], [2, 3]]), Y),
            r"Data\(train\[0\]\) has 2, Data\(train\[1\]\) has 10",
        ),
        (lambda: (X, Y, Y, Y), "is a tuple of 4"),
        (lambda: (scipy.sparse.csr_matrix(X), Y), "sparse csr_"),
        (numbers, r"single samples, .*call \.batch"),
        (lambda: numbers().batch(2).repeat(), ENDLESS % "steps_per_epoch"),
        (
            lambda: Data(train=(X, Y), validation=numbers().batch(2).repeat()),
            ENDLESS % "validation_steps",
        ),
        (
            lambda: Data(train=(X, Y), validation_split=0.99),
            "leaves 0 for training and 10 for validation",
        ),
        (
            lambda: Data(train=Plain(), validation_split=0.3),
            r"needs arrays, and Data\(train=…\) is a .*Plain",
        ),
        # Batches of no known form
        (lambda: lambda _: [], "has no batch"),
        (lambda: lambda _: [(X, Y, Y, Y)], "a batch is a tuple of 4"),
        (lambda: lambda _: ["text"], "a batch is a str"),
        (lambda: lambda _: [(X, Y), (X,)], "different structures"),
        (
            lambda: lambda _: [(X, Y), (X[0], Y)],
            "in the same place; expected arrays of one dtype",
        ),
        (lambda: lambda _: [(np.array([{}]), Y)], "an array of Python objects"),
        (
            lambda: lambda _: [(tf.sparse.eye(2, 3), Y[:2])] * 5 + [(np.eye(2, 3), Y[:2])],
            r"an array of shape \(2, 3\).*had a sparse tensor of",
        ),
        (
            lambda: Data(train=tf.data.Dataset.from_tensors((X, Y, Y)), class_weight={1: 2.0}),
            "class_weight needs batches",
        ),
        (
            lambda: Data(train=lambda _epoch: [(X, Y, Y)], class_weight={1: 2.0}),
            "class_weight needs batches",
        ),
        # Parts of one shuffle, whose order cannot be saved
        *(
            (lambda more=more: split(numbers().shuffle(8), **more), "split it before every shuffle")
            for more in ({"validation_steps": 1}, {"steps_per_epoch": 2})
        ),
    ],
)
def test_what_is_no_data_is_refused_with_what_to_do(data, message, fit):
    value = data()
    with pytest.raises(DataError, match=message):
        fit(value if isinstance(value, Data) else Data(train=value))


def batches(count):
    return lambda _epoch: [(X, Y)] * count


def generated(count):
    shapes = tf.TensorSpec((10, 2)), tf.TensorSpec((10,))
    return tf.data.Dataset.from_generator(batches(count), args=[0], output_signature=shapes)


@pytest.mark.parametrize("data", [batches, generated])
def test_going_on_in_what_is_read_again_tells_what_it_costs_and_fewer_batches_are_refused(
    data, fit, tmp_path
):
    fit(Data(train=data(3)), "resumed", checkpoint_every=Every(steps=2))
    shutil.rmtree(tmp_path / "resumed/step-000000003")
    with pytest.raises(DataError, match="yielded 1 batches now and at least 2 before"):
        fit(Data(train=data(1)), "resumed")
    _, notices = fit(Data(train=data(3)), "resumed")
    assert "2 batches are read and dropped" in notices[-1]


# PyDatasets and tf.data


class Drawing(Plain):
    def __getitem__(self, index):
        return X[:1] + np.random.rand(), Y[:1]


def in_map(function):
    return Data(train=numbers().map(function).batch(2))


def drawn_by_keras():
    seed = keras.random.SeedGenerator(1)
    return in_map(lambda x, y: (x + keras.random.uniform((), seed=seed), y))


def without_seed():
    dataset = numbers().shuffle(8)
    dataset._seed = dataset._seed2 = tf.constant(0, tf.int64)
    return Data(train=dataset.batch(2))


def unseeded(x, y):
    return x + tf.raw_ops.RandomUniform(shape=tf.zeros(0, tf.int32), dtype=tf.float32), y


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: Data(train=Drawing(workers=2)), "with workers=2 the batches would depend"),
        (lambda: in_map(unseeded), "has no seed"),
        (without_seed, r"has no seed.*inside the data factory"),
        (
            lambda: Data(
                train=numbers().batch(2), validation=drawn_by_keras().train, validation_steps=1
            ),
            "writes a variable",
        ),
    ],
)
def test_what_no_checkpoint_could_hold_is_refused(data, message, fit):
    with pytest.raises(UncapturableError, match=message):
        fit(data())


def zipped(**options):
    """As in a siamese network's triplets: one shuffle in a part, and one of the whole."""
    pairs = tf.data.Dataset.zip((numbers(), numbers().shuffle(9))).shuffle(10, **options)
    return split(pairs.map(lambda one, other: (one[0], other[1])))


def fixed(shuffle):
    return numbers().shuffle(shuffle, reshuffle_each_iteration=False)


NOTICES = [
    (lambda: Data(train=Plain(workers=2, use_multiprocessing=True)), "2 threads read ahead"),
    (lambda: Data(train=generated(3)), "they must return the same elements each time"),
    (lambda: split(numbers().shuffle(8)), "samples move from one part to the other"),
    (zipped, "before every shuffle, or give each"),
    (
        lambda: zipped(reshuffle_each_iteration=False),
        "before every shuffle, or give each",
    ),
]

SILENT = {
    "a PyDataset that draws": lambda: Data(train=Drawing()),
    "a seeded op": lambda: in_map(lambda x, y: (x + tf.random.uniform((), seed=3), y)),
    "stateless ops": lambda: in_map(
        lambda x, y: (x + tf.random.stateless_uniform((), seed=(y, 0)), y)
    ),
    "a generator of Keras": drawn_by_keras,
    "a cache of a shuffle": lambda: Data(train=numbers().shuffle(4).cache().batch(2)),
    "a shuffle after a cache": lambda: Data(train=numbers().cache().shuffle(4).batch(2)),
    "one order": lambda: Data(train=fixed(4).repeat(2).batch(2)),
    "parts of one order": lambda: split(fixed(8)),
}


@pytest.mark.parametrize(("data", "message"), NOTICES, ids=lambda value: str(value)[:30])
def test_what_a_resume_costs_or_may_change_is_told_in_one_notice(data, message, fit):
    [notice] = fit(data())[1]
    assert message in notice


@pytest.mark.parametrize("name", SILENT)
def test_control_data_that_can_be_read_by_position_are_trained_on_in_silence(name, fit):
    assert fit(SILENT[name]())[1] == []
