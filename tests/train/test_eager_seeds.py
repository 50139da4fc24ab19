"""Eager random operations with seeds of their own go on where they were, though kernels hide it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_random_ops

from sweeper.train.randomness.hidden_state import RandomOperations
from sweeper.train.randomness.interception import STATEFUL_RANDOM

DRAWS = {
    "normal": lambda: tf.random.normal((4,), seed=1),
    "uniform and normal": lambda: tf.random.uniform((4,), seed=1) + tf.random.normal((4,), seed=1),
    "truncated": lambda: tf.random.truncated_normal((4,), seed=3),
    "integers": lambda: tf.random.uniform((4,), maxval=9, dtype=tf.int32, seed=4),
    "gamma": lambda: tf.random.gamma((4,), 2.0, seed=4),
    "poisson": lambda: tf.random.poisson((4,), 3.0, seed=4),
    "categorical": lambda: tf.random.categorical([[0.1, 0.2, 0.3]], 4, seed=1)[0],
    "shuffle": lambda: tf.random.shuffle(tf.range(4), seed=2),
    "dropout": lambda: tf.nn.dropout(tf.ones((4,)), 0.5, seed=5),
    "image": lambda: tf.image.random_brightness(tf.ones((2, 2, 1)), 0.5, seed=6)[0, :, 0],
    "box": lambda: tf.image.sample_distorted_bounding_box([8, 8, 3], [[[0.1, 0.1, 0.9, 0.9]]], 6)[
        0
    ],
    "sampler": lambda: tf.random.uniform_candidate_sampler([[1]], 1, 4, True, 999, seed=7)[0],
    "explicit": lambda: tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, seed=1, seed2=2),
    "variable": lambda: tf.random.normal(keras.ops.shape(keras.Variable(np.ones(4))), seed=8),
    "without": lambda: tf.random.normal((4,)),
}
TOGETHER = "together"


def drawn(what):
    """Four numbers that depend on all that is drawn, be it of one operation or of every one."""
    each = DRAWS.values() if what == TOGETHER else [DRAWS[what]]
    return tf.add_n([in_order(draw()) for draw in each]) * tf.ones(4)


def in_order(values):
    """A sum in which each value counts otherwise: to shuffle them has to change it."""
    flat = tf.reshape(tf.cast(values, tf.float32), [-1])
    return tf.tensordot(flat, tf.range(1.0, 1.0 + tf.size(flat, tf.float32)), 1)


@pytest.mark.parametrize("what", DRAWS)
def test_every_draw_changes_what_is_added(what):
    """Or no training would tell that it went on elsewhere."""
    tf.random.set_seed(5)
    with RandomOperations():
        found = {float(in_order(DRAWS[what]())) for _ in range(20)}
    assert len(found) > 1


def test_the_first_call_gives_what_it_always_gives_and_every_other_something_new():
    tf.random.set_seed(5)
    usual = [float(tf.random.normal((), seed=1)), float(tf.random.uniform((), seed=1))]
    tf.random.set_seed(5)
    with RandomOperations():
        assert [float(tf.random.normal((), seed=1)), float(tf.random.uniform((), seed=1))] == usual
        more = {float(tf.random.normal((), seed=1)) for _ in range(50)}
        assert len(more - set(usual)) == 50
        tf.random.set_seed(5)
        assert float(tf.random.normal((), seed=1)) == usual[0], "set_seed begins all again"


def test_datasets_and_graphs_keep_their_seeds():
    def order():
        return [int(i) for i in tf.data.Dataset.range(9).shuffle(9, seed=1)]

    @tf.function
    def drawn():
        return tf.random.normal((), seed=1)

    tf.random.set_seed(5)
    usual = order(), float(drawn())
    tf.random.set_seed(5)
    with RandomOperations() as seeds:
        assert order() == order() == usual[0]
        assert seeds.capture({}) == {"calls": [], "graphs": {"!": "dict", "v": []}}


def test_afterwards_tensorflow_is_as_it_was():
    def state():
        raw = tf.raw_ops.RandomUniform
        return context.internal_operation_seed, gen_random_ops.random_uniform, raw

    before = state()
    with RandomOperations():
        assert not any(one is other for one, other in zip(before, state(), strict=True))
    assert all(one is other for one, other in zip(before, state(), strict=True))


def test_every_random_op_of_tensorflow_with_a_state_of_its_own_is_known():
    """CuDNN's recurrent nets draw only with a dropout, which Keras never gives; queues hold data."""
    passed_over = ("CudnnRNN", "RandomShuffleQueue")
    found = set()
    for name in dir(tf.raw_ops):
        definition = op_def_registry.get(name)
        if definition is not None and definition.is_stateful:
            seeds = {attr.name for attr in definition.attr} >= {"seed", "seed2"}
            if seeds and not name.startswith(passed_over):
                found.add(name)
    assert found == STATEFUL_RANDOM
