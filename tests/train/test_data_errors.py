"""What cannot be read by position is refused by name before training, with what to do instead."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from sweeper import Data
from sweeper.errors import DataError, UncapturableError
from sweeper.train.sources.opening import open_sources

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def opened(data):
    """The two sources of ``data``, and every notice."""
    notices = []
    train, test = open_sources(data, np.random.SeedSequence(1), notices.append)
    return train, test, notices


def numbers():
    keras.utils.set_random_seed(1)
    return tf.data.Dataset.range(8).map(lambda n: (tf.cast(n, tf.float32), n))


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


def test_the_split_takes_the_last_samples_before_any_shuffling():
    train, test, _ = opened(Data(train=({"a": X}, Y, None), validation_split=0.3))
    np.testing.assert_array_equal(train.arrays[1], Y[:7])
    np.testing.assert_array_equal(test.arrays[0]["a"], X[7:].astype("float32"))
    with pytest.raises(DataError, match="leaves 0 for training and 10 for validation"):
        opened(Data(train=(X, Y), validation_split=0.99))
    with pytest.raises(DataError, match=r"needs arrays, and Data\(train=…\) is a .*Plain"):
        opened(Data(train=Plain(), validation_split=0.3))


def test_frames_series_and_tensors_become_arrays_as_in_fit():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    train, _, _ = opened(Data(train=(frame, pandas.Series(Y), tf.constant(X[:, 0]))))
    assert [array.shape for array in train.arrays] == [(10, 2), (10, 1), (10,)]
    assert [str(array.dtype) for array in train.arrays] == ["float32", "int64", "float32"]


# Forms that are no data


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda: iter([(X, Y)]), r"whose position cannot be saved.*lambda epoch: …"),
        (lambda: ((x, y) for x, y in [(X, Y)]), "is a builtins.generator"),
        (object, r"is a builtins.object; expected arrays as \(x, y\).*PyDataset.*grain"),
        (lambda: 7, r"builtins.int; expected arrays"),
        (lambda: (X, object()), r"Data\(train\[1\]\) is a object; expected a NumPy array"),
        (lambda: lambda: [(X, Y)], r"which cannot be called with an epoch.*lambda epoch: …"),
        (lambda: (tf.sparse.eye(10), Y), r"Data\(train\[0\]\) is a sparse SparseTensor.*dense"),
        (lambda: (tf.ragged.constant([[1], [2, 3]]), Y), r"train\[0\] has 2, train\[1\] has 10"),
        (lambda: (X, Y, Y, Y), "is a tuple of 4"),
        (lambda: (scipy.sparse.csr_matrix(X), Y), "sparse csr_"),
        (numbers, r"single samples, .*call \.batch"),
        (lambda: numbers().batch(2).repeat(), r"never ends; give Data\(steps_per_epoch=…\)"),
    ],
)
def test_what_is_no_data_is_refused_with_the_kinds_that_are(train, message):
    with pytest.raises(DataError, match=message):
        opened(Data(train=train()))


def test_validation_data_without_end_need_a_number_of_steps():
    with pytest.raises(DataError, match=r"never ends; give Data\(validation_steps=…\)"):
        opened(Data(train=(X, Y), validation=numbers().batch(2).repeat()))


# Batches of no known form


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (list, "has no batch"),
        (lambda: [(X, Y, Y, Y)], "a batch is a tuple of 4"),
        (lambda: ["text"], "a batch is a str"),
        (lambda: [(X, Y), (X,)], "different structures"),
        (lambda: [(X, Y), (X[0], Y)], "in the same place; expected arrays of one dtype"),
        (lambda: [(np.array([{}]), Y)], "an array of Python objects"),
    ],
)
def test_batches_of_no_known_form_are_refused(batches, message):
    train, _, _ = opened(Data(train=lambda _epoch: batches()))
    with pytest.raises(DataError, match=message):
        train.spec()


def test_a_dense_batch_after_sparse_ones_is_refused():
    train, _, _ = opened(Data(train=lambda _epoch: [(tf.sparse.eye(2, 3), Y[:2])]))
    with pytest.raises(DataError, match=r"an array of shape \(2, 3\).*had a sparse tensor of"):
        train.spec().tensors((np.eye(2, 3, dtype="float32"), Y[:2]), "batch 2")


def test_a_function_that_gives_fewer_batches_than_before_is_refused():
    train, _, _ = opened(Data(train=lambda _epoch: [(X, Y)] * 3))
    with pytest.raises(DataError, match="yielded 3 batches now and at least 5 before"):
        next(train.open(0, 5))


def test_going_on_in_a_function_of_the_epoch_tells_what_it_costs():
    train, _, notices = opened(Data(train=lambda _epoch: [(X, Y)] * 3))
    next(train.open(1, 2))
    assert "2 batches are read and dropped" in notices[0]


# PyDatasets


class Drawing(Plain):
    def __getitem__(self, index):
        return X[:1] + np.random.rand(), Y[:1]


def test_workers_are_refused_where_batches_depend_on_which_comes_first():
    opened(Data(train=Drawing()))
    with pytest.raises(UncapturableError, match="with workers=2 the batches would depend"):
        opened(Data(train=Drawing(workers=2)))


def test_processes_are_said_to_be_threads():
    *_, notices = opened(Data(train=Plain(workers=2, use_multiprocessing=True)))
    assert "2 threads read ahead" in notices[0]


# tf.data


def in_map(function):
    return Data(train=numbers().map(function).batch(2))


def test_a_random_op_in_a_map_is_read_again_and_without_a_seed_it_is_refused():
    train, _, notices = opened(in_map(lambda x, y: (x + tf.random.uniform((), seed=3), y)))
    assert train.is_read_again
    assert notices == []
    unseeded = tf.raw_ops.RandomUniform
    with pytest.raises(UncapturableError, match="has no seed"):
        opened(
            in_map(lambda x, y: (x + unseeded(shape=tf.zeros(0, tf.int32), dtype=tf.float32), y))
        )


def test_a_keras_layer_with_random_state_in_a_map_is_read_again():
    seed = keras.random.SeedGenerator(1)
    train, _, notices = opened(in_map(lambda x, y: (x + keras.random.uniform((), seed=seed), y)))
    assert set(train.written) == {id(seed.state.value)}
    assert train.is_read_again
    assert notices == []
    generator = tf.random.Generator.from_seed(1)
    train, _, _ = opened(in_map(lambda x, y: (x + generator.uniform(()), y)))
    assert set(train.written) == {id(generator.state)}


def test_a_validation_that_writes_a_variable_is_read_to_its_end():
    seed = keras.random.SeedGenerator(1)
    given = in_map(lambda x, y: (x + keras.random.uniform((), seed=seed), y)).train
    with pytest.raises(UncapturableError, match="writes a variable"):
        opened(Data(train=numbers().batch(2), validation=given, validation_steps=1))


def test_stateless_random_ops_in_a_map_are_fine():
    stateless = tf.random.stateless_uniform
    _, _, notices = opened(in_map(lambda x, y: (x + stateless((), seed=(y, 0)), y)))
    assert notices == []


def test_python_code_in_a_dataset_is_read_again_and_the_user_warned():
    signature = tf.TensorSpec((2,), tf.int64)
    made = tf.data.Dataset.from_generator(lambda: iter([[1, 2]]), output_signature=signature)
    train, _, notices = opened(Data(train=made))
    assert "they must return the same elements each time" in notices[0]
    train.open(0, 1)
    assert "1 batch is read and dropped" in notices[1]
    with pytest.raises(DataError, match="yielded 1 batches now and at least 2 before"):
        train.open(0, 2)


def split(whole, **options):
    return Data(train=whole.skip(3).batch(2), validation=whole.take(3).batch(2), **options)


def test_parts_of_one_shuffle_for_training_and_validation_are_told_of():
    [notice] = opened(split(numbers().shuffle(8)))[2]
    assert "samples move from one part to the other" in notice
    # As in a siamese network's triplets: one shuffle in a part, and one of the whole.
    pairs = tf.data.Dataset.zip((numbers(), numbers().shuffle(9))).shuffle(10)
    [notice] = opened(split(pairs))[2]
    assert "before every shuffle, or give each" in notice
    partly = tf.data.Dataset.zip((numbers(), numbers().shuffle(9)))
    partly = partly.shuffle(10, reshuffle_each_iteration=False)
    assert len(opened(split(partly))[2]) == 1
    assert opened(split(numbers().shuffle(8, reshuffle_each_iteration=False)))[2] == []


@pytest.mark.parametrize(
    "data",
    [
        lambda: split(numbers().shuffle(8), validation_steps=1),
        lambda: split(numbers().shuffle(8), steps_per_epoch=2),
    ],
)
def test_parts_of_one_shuffle_whose_order_cannot_be_saved_are_refused(data):
    with pytest.raises(
        DataError, match="could not split them as before; split it before every shuffle"
    ):
        opened(data())


def test_a_shuffle_without_any_seed_is_refused():
    made = numbers().shuffle(8)
    made._seed = made._seed2 = tf.constant(0, tf.int64)
    with pytest.raises(UncapturableError, match=r"has no seed.*inside the data factory"):
        opened(Data(train=made.batch(2)))


def test_class_weights_need_batches_of_one_target_and_no_weights():
    weights = {1: 2.0}
    for train in (
        tf.data.Dataset.from_tensors((X, Y, Y)),
        lambda _epoch: [(X, Y, Y)],
    ):
        with pytest.raises(DataError, match="class_weight needs batches"):
            opened(Data(train=train, class_weight=weights))[0].spec()


def test_a_class_that_has_no_weight_weighs_one():
    labels = np.array([[0], [1], [7]])
    source, _, _ = opened(
        Data(train=tf.data.Dataset.from_tensors((X[:3], labels)), class_weight={1: 2.0})
    )
    (batch,) = source.open(0, 0)
    assert batch[2].numpy().tolist() == [1.0, 2.0, 1.0]
