"""Sums do not depend on which of their terms other operations still need."""

import numpy as np
import pytest
import tensorflow as tf

from sweeper.errors import UncapturableError
from sweeper.train.randomness.hidden_state import HiddenState

TERMS = np.float32([1e8, -1e8, 1])
NEEDED = ((), (0,), (0, 1), (0, 1, 2))
"""Terms that an operation after the sum needs, whose buffers the sum cannot take."""


def gradient(a, b, c):
    with tf.GradientTape() as tape:
        x = tf.ones(())
        tape.watch(x)
        used = a * x + b * x + c * x
    return tape.gradient(used, x)


SUMS = {
    "add_n": lambda a, b, c: tf.add_n([a, b, c]),
    "a + (b + c)": lambda a, b, c: a + (b + c),
    "accumulate_n": lambda a, b, c: tf.math.accumulate_n([a, b, c]),
    "gradient": gradient,
}


def summed(add):
    """Return the sum of the same terms, once for each choice of terms that are needed later."""

    def results(needed):
        @tf.function
        def step(*summands):
            terms = [tf.abs(summand) * tf.sign(summand) for summand in summands]
            total = tf.abs(add(*terms))
            with tf.control_dependencies([total]):
                return total, [terms[n] + 1 for n in needed]

        return float(step(*map(tf.constant, TERMS))[0])

    return [results(needed) for needed in NEEDED]


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_the_same_whichever_of_its_terms_are_needed_later(name):
    with HiddenState(np.random.SeedSequence(1)):
        assert len(set(summed(SUMS[name]))) == 1


def test_without_it_the_sums_of_tensorflow_differ():
    names = {name for name, add in SUMS.items() if len(set(summed(add))) > 1}
    assert names == set(SUMS)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 10, 17, 30])
def test_terms_are_added_as_tensorflow_adds_them(count):
    terms = list(np.random.default_rng(count).normal(size=(count, 50)).astype("float32"))
    expected = tf.add_n(terms).numpy()
    with HiddenState(np.random.SeedSequence(1)):
        assert np.array_equal(tf.add_n(terms).numpy(), expected)
        assert np.array_equal(tf.function(tf.add_n)(terms).numpy(), expected)


def test_a_raw_sum_is_refused_with_the_cure():
    with (
        HiddenState(np.random.SeedSequence(1)),
        pytest.raises(UncapturableError, match=r"AddN adds 3 tensors .* use tf\.add_n"),
    ):
        tf.function(lambda x: tf.raw_ops.AddN(inputs=[x, x, x]))(tf.ones(2))
