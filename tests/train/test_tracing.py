"""What TensorFlow traces and runs during a training is looked into, whoever made it."""

from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from trainings import Watcher, classifying, one_layer, plan, train, unvalidated

from sweeper.errors import UncapturableError
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.randomness.tracing import TracedFunctions


@tf.function
def seeded():
    return tf.random.normal((4,), seed=1)


@tf.function
def nested():
    return tf.cond(tf.constant(True), lambda: 2 * helper(), lambda: tf.zeros(4))


@tf.function
def helper():
    return tf.random.uniform((4,))


@tf.function
def harmless():
    return tf.random.stateless_normal((4,), seed=(1, 2))


FUNCTIONS = {
    "seeded": seeded,
    "nested": nested,
    "harmless": harmless,
}


class Calls(keras.callbacks.Callback):
    """Calls a function of TensorFlow's, and adds what it gives to a weight."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def on_train_batch_end(self, batch, logs=None):
        self.model.layers[-1].bias.assign_add(0.01 * FUNCTIONS[self.what]())


def training_with(what):
    train(
        plan(model=classifying, data=unvalidated, callbacks=lambda: [Calls(what)], epochs=1),
        Watcher(),
    )


@pytest.mark.parametrize(
    ("what", "op", "line"),
    [
        ("seeded", "RandomStandardNormal", "return tf.random.normal((4,), seed=1)"),
        ("nested", "RandomUniform", "return tf.random.uniform((4,))"),
    ],
)
def test_a_function_that_was_traced_before_and_draws_by_a_kernel_is_refused_with_its_line(
    what, op, line
):
    """One that is traced in training draws by a generator (`test_graph_generators`)."""
    function = FUNCTIONS[what]
    FUNCTIONS[what] = fresh = tf.function(function.python_function)
    fresh()
    with pytest.raises(UncapturableError) as refused:
        training_with(what)
    number = Path(__file__).read_text().splitlines().index(f"    {line}") + 1
    assert str(refused.value).startswith(f"the function {what} holds the random op {op} (")
    assert f"test_tracing.py:{number})" in str(refused.value)


def test_what_is_traced_only_or_has_no_state_is_let_pass():
    """Negative control of the refusal."""
    training_with("harmless")
    with TracedFunctions():
        tf.function(seeded.python_function).get_concrete_function()
        drawn = tf.data.Dataset.range(2).map(lambda _: tf.random.uniform((), seed=1))
        assert len(list(drawn)) == 2


def test_a_helper_of_an_eager_step_is_refused():
    function = tf.function(helper.python_function)
    function()

    class Model(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            self.layers[-1].bias.assign_add(function())
            return logs

    def build():
        inputs = keras.Input((8,))
        model = Model(inputs, keras.layers.Dense(4, activation="softmax")(inputs))
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        return model

    with pytest.raises(UncapturableError, match=r"the function helper .*test_tracing.py:\d+"):
        train(plan(model=build, epochs=1), Watcher())


def test_a_loaded_model_that_draws_is_refused(tmp_path):
    class Draws(tf.Module):
        @tf.function(input_signature=[])
        def draw(self):
            return tf.random.normal((4,))

    tf.saved_model.save(Draws(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with TracedFunctions(), pytest.raises(UncapturableError, match=r"RandomStandardNormal"):
        loaded.draw()


@pytest.mark.parametrize(("name", "message"), [("train_step", "training"), ("test_step", "valid")])
def test_a_layer_that_draws_by_a_kernel_is_refused_with_its_line(name, message):
    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            draws = training if name == "train_step" else not training
            if draws:
                x += tf.raw_ops.RandomStandardNormal(shape=[8], dtype=x.dtype, seed=1)
            return x

    def build():
        model = keras.Sequential([keras.Input((8,)), Noise(), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(
        UncapturableError,
        match=rf"^the {message}\w* step holds .*RandomStandardNormal \(.*test_tracing.py:\d+\)",
    ):
        train(plan(model=build, epochs=1), Watcher())


def test_a_listener_gets_each_traced_function_with_the_variables_that_it_uses():
    traces = []
    before = tf.Variable(1.0, name="before")
    with TracedFunctions() as functions:
        functions.on_trace(traces.append)
        made = [tf.Variable(float(i), name=f"made_{i}") for i in range(3)]

        def uses():
            made[2].assign_add(before)
            return made[1] * 2.0

        tf.function(uses)()
        assert [trace.function for trace in traces] == [uses]
        assert sorted(map(id, traces[0].variables)) == sorted(map(id, (before, made[2], made[1])))


def test_afterwards_tensorflow_is_as_it_was():
    def state():
        return (
            func_graph.func_graph_from_py_func,
            atomic_function.AtomicFunction.call_flat,
        )

    before = state()
    hidden = HiddenState(plan(model=one_layer).order_seed)
    with hidden:
        assert not any(one is other for one, other in zip(before, state(), strict=True))
    assert all(one is other for one, other in zip(before, state(), strict=True))
