"""What cannot be trained on several replicas is refused by name, with the names that the user wrote."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import two_replicas, under
from trainings import SEEDS, Watcher, digits, one_layer, plan, train

from sweeper import Data, DataError, DefinitionError, FactoryError, Study, Trial
from sweeper.run.trial.parts import check_made_in, strategy_scope
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.replicas import check_strategy, describe_strategy


def refused(error, data=None, model=one_layer, built=under):
    given = {} if data is None else {"data": data}
    with pytest.raises(error) as raised:
        train(plan(model=built(model), **given), Watcher())
    return str(raised.value)


def arrays(samples, **options):
    return lambda: Data(train=digits(samples), **options)


@pytest.mark.parametrize(
    ("samples", "options", "names"),
    [
        (
            65,
            {"batch_size": 16},
            ("Data(train=…)", "the last", "arrays of 65 samples", "1 sample,"),
        ),
        (64, {"batch_size": 15}, ("each of the batches of 15", "multiples of 2 (batch_size=)")),
        (
            64,
            {"batch_size": 16, "validation": digits(33)},
            ("Data(validation=…)", "33 samples", "(validation_batch_size=)"),
        ),
    ],
    ids=["a last batch", "every batch", "a last batch of validation"],
)
def test_batches_that_cannot_be_shared_equally_are_refused_before_training(samples, options, names):
    said = refused(DataError, arrays(samples, **options))
    assert all(name in said for name in (*names, "the 2 replicas of the MirroredStrategy")), said


def test_a_last_batch_that_is_never_drawn_is_not_refused():
    data = arrays(64, batch_size=16, validation=digits(33), validation_steps=2)
    train(plan(model=under(one_layer), data=data, epochs=1), Watcher())


@pytest.mark.parametrize("kind", ["function", "tf.data", "validation"])
def test_a_batch_that_cannot_be_shared_equally_is_refused_where_it_comes(kind):
    x, y = digits(33)

    def batches(_epoch):
        for at in range(0, 33, 16):
            yield x[at : at + 16], y[at : at + 16]

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    given = {
        "function": lambda: Data(train=batches),
        "tf.data": lambda: Data(train=dataset),
        "validation": lambda: Data(train=digits(64), validation=dataset),
    }[kind]
    said = refused(DataError, given)
    assert said.startswith("Data(validation=…)" if kind == "validation" else "Data(train=…)")
    assert ("batch 3 of epoch 1" in said) == (kind == "function")
    assert "drop_remainder=True" in said


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
            loss = tf.reduce_mean(losses) / 2
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"mean_loss": 2 * loss}


def own_step():
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(4, activation="softmax")(inputs)
    model = OwnStep(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1))
    return model


def test_a_step_of_the_users_own_is_told_what_it_must_do_and_logs_the_mean_over_the_batch():
    told = []
    data = arrays(64, batch_size=16)
    two = plan(model=under(own_step), data=data, epochs=1)
    loop = TrainingLoop(two, Watcher(), told.append)
    loop.run()
    [said] = told
    assert "train_step() runs on the 2 replicas" in said
    assert "divide the loss of a share by 2" in said

    one = own_step()
    one.set_weights(plan(model=own_step, data=data).model.get_weights())
    x, y = digits(64)
    order = loop._train.source.order(0)
    for at in range(0, 64, 16):
        chosen = order[at : at + 16]
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                tf.constant(y[chosen]), one(x[chosen])
            )
            loss = tf.reduce_mean(losses)
        one.optimizer.apply(tape.gradient(loss, one.trainable_variables), one.trainable_variables)
    np.testing.assert_allclose(two.model.weights[0].numpy(), one.weights[0].numpy(), rtol=1e-5)
    assert loop.epochs[-1].metrics["mean_loss"] == pytest.approx(float(loss), rel=1e-5)


def outside(build):
    """The layers are made before the scope is entered, and the model in it."""

    def built():
        inputs = keras.Input((8,), name="inputs")
        outputs = keras.layers.Dense(4, name="early")(inputs)
        with two_replicas().scope():
            model = keras.Model(inputs, outputs, name="late")
            model.compile("sgd", "mse")
        return model

    del build
    return built


def compiled(**options):
    def build():
        given = {name: value() if callable(value) else value for name, value in options.items()}
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="net")
        model.compile(**{"optimizer": "sgd", "loss": "mse", **given})
        return model

    return build


def by_xla():
    model = compiled()()
    # With deterministic kernels Keras takes none of its own layers for one that XLA compiles.
    model._jit_compile = True
    return model


class Adds(keras.layers.Layer):
    """Adds to the loss."""

    def call(self, x):
        self.add_loss(0.3 * tf.reduce_mean(tf.square(x)))
        return x


def with_layer(make):
    def build():
        model = keras.Sequential([keras.Input((8,)), make(), keras.layers.Dense(4)], name="net")
        model.compile("sgd", "mse")
        return model

    return build


def mean_of_all(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


def optimized(make):
    return compiled(optimizer=make)


def four(*more):
    x, _ = digits(64)
    return lambda: Data(train=(x, x[:, :4], *more), batch_size=16)


SGD = keras.optimizers.SGD

MODELS = {
    "clipnorm": (optimized(lambda: SGD(clipnorm=0.5)), None, ("SGD has clipnorm", "clip_by_gl")),
    "global_clipnorm": (optimized(lambda: SGD(global_clipnorm=0.5)), None, ("global_clipnorm",)),
    "clipvalue": (optimized(lambda: SGD(clipvalue=0.5)), None, ("SGD has clipvalue",)),
    "accumulation": (
        optimized(lambda: SGD(gradient_accumulation_steps=2)),
        None,
        ("gradient_accumulation_steps", "batch_size"),
    ),
    "loss scale": (
        optimized(lambda: keras.optimizers.LossScaleOptimizer(SGD())),
        None,
        ("LossScaleOptimizer", "mixed_bfloat16"),
    ),
    "overwritten averages": (
        optimized(lambda: SGD(use_ema=True, ema_overwrite_frequency=3)),
        None,
        ("ema_overwrite_frequency",),
    ),
    "XLA": (by_xla, None, ("jit_compile=True",)),
    "one number a batch": (
        compiled(loss=lambda: mean_of_all),
        four(),
        ("one number for a whole batch", "a value for each sample"),
    ),
    "add_loss": (with_layer(lambda: Adds(name="a")), four(), ("layer 'a'", "extra_losses()")),
    "activity": (
        with_layer(lambda: keras.layers.Dense(4, activity_regularizer="l1", name="a")),
        four(),
        ("layer 'a'", "activity regularizer"),
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_what_replicas_would_train_otherwise_is_refused_before_training(case):
    model, data, names = MODELS[case]
    said = refused(FactoryError, data, model)
    assert all(name in said for name in names), said


def test_an_optimizer_made_outside_the_scope_is_refused():
    said = refused(FactoryError, model=compiled(optimizer=SGD(0.1)))
    assert "'net' cannot be trained" in said
    assert "its optimizer was made outside the strategy's scope" in said


def test_layers_made_outside_the_scope_are_refused():
    said = refused(FactoryError, built=outside)
    assert "model 'late'" in said
    assert "'early/kernel' was made outside the strategy's scope" in said


def test_strategies_whose_replicas_are_not_in_this_process_are_refused():
    several = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    with pytest.raises(FactoryError, match=r"trains in one process; use .*MirroredStrategy"):
        check_strategy(several)
    for kind in (
        tf.distribute.ParameterServerStrategy,
        tf.distribute.TPUStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    ):
        with pytest.raises(
            FactoryError, match=r"take every step together.* use tf.distribute.Mirrored"
        ):
            check_strategy(object.__new__(kind))
    check_strategy(tf.distribute.get_strategy())
    check_strategy(tf.distribute.OneDeviceStrategy("CPU:1"))
    assert describe_strategy(two_replicas()) == "MirroredStrategy, 2 replicas, ReductionToOneDevice"


def a_trial(directory):
    return Trial(number=0, seed=0, directory=directory, ask=lambda *_: 0)


@pytest.mark.parametrize(
    ("given", "shown"), [(None, "None"), (["CPU:0", "CPU:1"], "a builtins.list")]
)
def test_a_strategy_factory_that_returns_something_else_is_named(given, shown, tmp_path):
    def replicas(_trial):
        return given

    with (
        pytest.raises(FactoryError) as raised,
        strategy_scope(replicas, a_trial(tmp_path), SEEDS),
    ):
        pytest.fail("no scope")
    assert f"{replicas.__qualname__} returned {shown}" in str(raised.value)


def test_a_model_made_outside_the_studys_scope_is_refused(tmp_path):
    before = compiled()()
    with strategy_scope(lambda _trial: two_replicas(), a_trial(tmp_path), SEEDS) as strategy:
        check_made_in(strategy, compiled()(), "build_model")
        with pytest.raises(FactoryError) as raised:
            check_made_in(strategy, before, "build_model")
    assert "build_model returned model 'net', which was made outside" in str(raised.value)


def test_trials_of_one_process_share_a_strategy_that_adds_up_by_collective_ops(tmp_path):
    given = []
    for _ in range(2):
        with strategy_scope(
            lambda _trial: two_replicas(cross_device_ops=None), a_trial(tmp_path), SEEDS
        ) as strategy:
            given.append(strategy)
    assert given[0] is given[1]


def test_a_strategy_in_place_of_a_factory_is_refused():
    strategy = two_replicas()
    with pytest.raises(DefinitionError) as raised:
        Study(
            name="x",
            model=one_layer,
            data=dict,
            epochs=1,
            trials=1,
            strategy=strategy,
        )
    assert str(raised.value).startswith(f"strategy={strategy!r} cannot be called; give a function")
