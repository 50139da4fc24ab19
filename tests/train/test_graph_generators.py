"""Stateful random operations in graphs are drawn by generators, which checkpoints have."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import equal

from sweeper.errors import UncapturableError
from sweeper.train.randomness.hidden_state import HiddenState

KERNELS = {
    "normal": lambda: tf.random.normal((5,), 2.0, 3.0),
    "truncated": lambda: tf.random.truncated_normal((7,), seed=3),
    "uniform": lambda: tf.random.uniform((3, 2), -1.0, 2.0),
    "integers": lambda: tf.random.uniform((4,), 0, 1000, tf.int32),
    "half": lambda: tf.random.normal((3,), dtype=tf.float16),
    "dropout": lambda: tf.nn.dropout(tf.ones(64), 0.5),
}

DRAWS = {
    **{kind: lambda _, draw=draw: tf.cast(draw(), tf.float32) for kind, draw in KERNELS.items()},
    "gamma": lambda x: tf.random.gamma(tf.shape(x), [1.0, 2.0]),
    "poisson": lambda x: tf.random.poisson(tf.shape(x), [1.0, 2.0]),
    "categorical": lambda x: tf.cast(tf.random.categorical(x, 5), tf.float32),
    "shuffle": lambda x: tf.random.shuffle(x)[0],
    "image": lambda x: tf.image.random_brightness(tf.reshape(x, (-1, 2, 4, 1)), 0.5),
    "branch": lambda x: tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.random.normal((4,)), lambda: tf.random.uniform((4,))
    ),
    "loop": lambda _: tf.while_loop(
        lambda i, _: i < 3, lambda i, s: (i + 1, s + tf.random.normal(())), (0, 0.0)
    )[1],
    "helper": lambda _: tf.function(lambda: tf.random.normal((4,)))(),
}


class Noise(keras.layers.Layer):
    """Adds one number to its input, drawn in each of the ways."""

    def __init__(self, kinds):
        super().__init__()
        self.kinds = kinds

    def call(self, x):
        for kind in self.kinds:
            x += 0.01 * tf.reduce_mean(DRAWS[kind](x))
        return x


@pytest.mark.parametrize("kind", KERNELS)
def test_a_graph_draws_the_numbers_of_tensorflows_kernel(kind):
    def drawn():
        tf.random.set_seed(3)
        function = tf.function(KERNELS[kind])
        return [function().numpy() for _ in range(3)]

    usual = drawn()
    with HiddenState(np.random.SeedSequence(1)) as hidden:
        assert equal(drawn(), usual)
        assert len(hidden.operations.generators) == 1
    assert not equal(usual[:1], usual[1:2])


def test_a_function_that_is_traced_again_goes_on_with_its_generators():
    def sums(sizes, state=None):
        with HiddenState(np.random.SeedSequence(1)) as hidden:
            if state is not None:
                hidden.operations.restore(*state)
            tf.random.set_seed(3)
            draw = tf.function(lambda x: tf.reduce_sum(tf.random.normal(tf.shape(x))))
            found = [float(draw(tf.ones(size))) for size in sizes]
            tensors = {}
            return found, (hidden.operations.capture(tensors), tensors)

    whole, _ = sums([3, 5, 3, 5])
    before, state = sums([3, 5])
    after, _ = sums([3, 5], state)
    assert before + after == whole
    # The order in which the shapes come is of no account.
    _, state = sums([5])
    assert sums([3], state)[0] == sums([5, 3])[0][1:]


def test_what_only_works_out_shapes_and_datasets_are_left_alone():
    with HiddenState(np.random.SeedSequence(1)) as hidden:
        inputs = keras.Input((8,))
        keras.Model(inputs, Noise(("normal",))(inputs))
        data = tf.data.Dataset.range(2).map(lambda _: tf.random.uniform((), seed=1))
        assert len(list(data)) == 2
        assert len(hidden.operations.generators) == 0


def test_on_several_replicas_they_are_refused_as_before():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope(), HiddenState(np.random.SeedSequence(1)):
        function = tf.function(KERNELS["normal"])
        with pytest.raises(UncapturableError, match="RandomStandardNormal"):
            function()
