"""Random operations of TensorFlow with a state of their own: replaced where they run eagerly or in graphs
that training traces, so that checkpoints have their positions, and refused by name elsewhere."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from trainings import Watcher, classifying, equal, plan, train, unvalidated

from sweeper.errors import UncapturableError
from sweeper.train.randomness.hidden_state import HiddenState, RandomOperations
from sweeper.train.randomness.interception import STATEFUL_RANDOM
from sweeper.train.randomness.tracing import TracedFunctions

EAGER = {
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

KERNELS = {
    "normal": lambda: tf.random.normal((5,), 2.0, 3.0),
    "truncated": lambda: tf.random.truncated_normal((7,), seed=3),
    "uniform": lambda: tf.random.uniform((3, 2), -1.0, 2.0),
    "integers": lambda: tf.random.uniform((4,), 0, 1000, tf.int32),
    "half": lambda: tf.random.normal((3,), dtype=tf.float16),
    "dropout": lambda: tf.nn.dropout(tf.ones(64), 0.5),
}

IN_GRAPHS = {
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


def drawn_eagerly():
    """Four numbers that depend on all that is drawn by each operation."""
    return tf.add_n([in_order(draw()) for draw in EAGER.values()]) * tf.ones(4)


def in_order(values):
    """A sum in which each value counts otherwise: to shuffle them has to change it."""
    flat = tf.reshape(tf.cast(values, tf.float32), [-1])
    return tf.tensordot(flat, tf.range(1.0, 1.0 + tf.size(flat, tf.float32)), 1)


class Noise(keras.layers.Layer):
    """Adds numbers to its input, drawn by ``draws``."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def call(self, x):
        for draw in self.draws:
            x += 0.01 * tf.reduce_mean(draw(x))
        return x


# Eager operations


@pytest.mark.parametrize("operation", EAGER)
def test_every_draw_changes_what_is_added(operation):
    """Or no training would tell that it went on elsewhere."""
    tf.random.set_seed(5)
    with RandomOperations():
        sums = {float(in_order(EAGER[operation]())) for _ in range(20)}
    assert len(sums) > 1


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


def test_every_random_op_of_tensorflow_with_a_state_of_its_own_is_known():
    """CuDNN's recurrent nets draw only with a dropout, which Keras never gives; queues hold data."""
    passed_over = ("CudnnRNN", "RandomShuffleQueue")
    operations = set()
    for name in dir(tf.raw_ops):
        definition = op_def_registry.get(name)
        if definition is not None and definition.is_stateful:
            seeds = {attr.name for attr in definition.attr} >= {"seed", "seed2"}
            if seeds and not name.startswith(passed_over):
                operations.add(name)
    assert operations == STATEFUL_RANDOM


# Graphs


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
            totals = [float(draw(tf.ones(size))) for size in sizes]
            tensors = {}
            return totals, (hidden.operations.capture(tensors), tensors)

    whole, _ = sums([3, 5, 3, 5])
    first, state = sums([3, 5])
    after, _ = sums([3, 5], state)
    assert first + after == whole
    # The order in which the shapes come is of no account.
    _, state = sums([5])
    assert sums([3], state)[0] == sums([5, 3])[0][1:]


def test_what_only_works_out_shapes_and_datasets_are_left_alone():
    def order():
        return [int(i) for i in tf.data.Dataset.range(9).shuffle(9, seed=1)]

    tf.random.set_seed(5)
    usual = order()
    tf.random.set_seed(5)
    with HiddenState(np.random.SeedSequence(1)) as hidden:
        inputs = keras.Input((8,))
        keras.Model(inputs, Noise([IN_GRAPHS["normal"]])(inputs))
        data = tf.data.Dataset.range(2).map(lambda _: tf.random.uniform((), seed=1))
        assert len(list(data)) == 2
        assert order() == order() == usual
        assert hidden.operations.capture({}) == {"calls": [], "graphs": {"!": "dict", "v": []}}


# Refusals


def refusal(draw):
    """What is said of a training whose callback adds what ``draw`` gives to a weight, if it is refused."""

    class Calls(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.layers[-1].bias.assign_add(0.01 * draw())

    planned = plan(model=classifying, data=unvalidated, callbacks=lambda: [Calls()], epochs=1)
    try:
        train(planned, Watcher())
    except UncapturableError as error:
        return str(error)
    return None


def traced(function):
    """The function of TensorFlow's, which was traced before any training."""
    function = tf.function(function)
    function()
    return function


def seeded():
    return tf.random.normal((4,), seed=1)


def helper():
    return tf.random.uniform((4,))


def nested():
    return tf.cond(tf.constant(True), lambda: 2 * tf.function(helper)(), lambda: tf.zeros(4))


@pytest.mark.parametrize(
    ("function", "op", "line"),
    [
        (seeded, "RandomStandardNormal", "return tf.random.normal((4,), seed=1)"),
        (nested, "RandomUniform", "return tf.random.uniform((4,))"),
    ],
)
def test_a_function_that_was_traced_before_and_draws_by_a_kernel_is_refused_with_its_line(
    function, op, line
):
    """One that is traced in training draws by a generator."""
    message = refusal(traced(function))
    number = Path(__file__).read_text().splitlines().index(f"    {line}") + 1
    assert message.startswith(f"the function {function.__name__} holds the random op {op} (")
    assert f"{Path(__file__).name}:{number})" in message


def test_control_a_function_without_state_that_was_traced_before_is_let_pass():
    assert refusal(traced(lambda: tf.random.stateless_normal((4,), seed=(1, 2)))) is None


def test_a_loaded_model_that_draws_is_refused(tmp_path):
    class Draws(tf.Module):
        @tf.function(input_signature=[])
        def draw(self):
            return tf.random.normal((4,))

    tf.saved_model.save(Draws(), str(tmp_path))
    assert "RandomStandardNormal" in refusal(tf.saved_model.load(str(tmp_path)).draw)


@pytest.mark.parametrize(("name", "message"), [("train_step", "training"), ("test_step", "valid")])
def test_a_layer_that_draws_by_a_kernel_is_refused_with_its_line(name, message):
    class DrawsByKernel(keras.layers.Layer):
        def call(self, x, training=False):
            draws = training if name == "train_step" else not training
            if draws:
                x += tf.raw_ops.RandomStandardNormal(shape=[8], dtype=x.dtype, seed=1)
            return x

    def build():
        model = keras.Sequential([keras.Input((8,)), DrawsByKernel(), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(
        UncapturableError,
        match=rf"^the {message}\w* step holds .*RandomStandardNormal \(.*operations.py:\d+\).*SeedGenerator",
    ):
        train(plan(model=build, epochs=1), Watcher())


def test_on_several_replicas_they_are_refused():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope(), HiddenState(np.random.SeedSequence(1)):
        function = tf.function(KERNELS["normal"])
        with pytest.raises(UncapturableError, match="RandomStandardNormal"):
            function()


def test_a_listener_gets_each_traced_function_with_the_variables_that_it_uses():
    traces = []
    variable = tf.Variable(1.0, name="before")
    with TracedFunctions() as functions:
        functions.on_trace(traces.append)
        variables = [tf.Variable(float(i), name=f"made_{i}") for i in range(3)]

        def uses():
            variables[2].assign_add(variable)
            return variables[1] * 2.0

        tf.function(uses)()
        assert [trace.function for trace in traces] == [uses]
        assert sorted(map(id, traces[0].variables)) == sorted(
            map(id, (variable, variables[2], variables[1]))
        )
