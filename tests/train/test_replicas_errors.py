"""What cannot be trained on several replicas is refused by name, with the names that the user wrote."""

import re
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted
from replicated import two_replicas, under
from small_models import Runner
from trainings import SEEDS, digits, one_layer, unvalidated

from sweeper import (
    Data,
    DataError,
    DefinitionError,
    FactoryError,
    Study,
    Trial,
    UncapturableError,
)
from sweeper.run.trial.parts import strategy_scope
from sweeper.train.replicas import describe_strategy


def refused(error, data=unvalidated, model=one_layer, built=under):
    with pytest.raises(error) as raised:
        fitted(built(model), data)
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
    message = refused(DataError, arrays(samples, **options))
    assert all(name in message for name in (*names, "the 2 replicas of the MirroredStrategy")), (
        message
    )


def test_a_last_batch_that_is_never_drawn_is_not_refused():
    data = arrays(64, batch_size=16, validation=digits(33), validation_steps=2)
    history = fitted(under(one_layer), data, epochs=1)
    assert len(history.history["val_loss"]) == 1
    drawn = arrays(64, batch_size=16, validation=digits(33), validation_steps=3)
    assert "33 samples" in refused(DataError, drawn)


@pytest.mark.parametrize("kind", ["function", "tf.data", "validation"])
def test_a_batch_that_cannot_be_shared_equally_is_refused_where_it_comes(kind):
    x, y = digits(33)

    def batches(_epoch):
        for start in range(0, 33, 16):
            yield x[start : start + 16], y[start : start + 16]

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    factory = {
        "function": lambda: Data(train=batches),
        "tf.data": lambda: Data(train=dataset),
        "validation": lambda: Data(train=digits(64), validation=dataset),
    }[kind]
    message = refused(DataError, factory)
    assert message.startswith("Data(validation=…)" if kind == "validation" else "Data(train=…)")
    assert ("batch 3 of epoch 1" in message) == (kind == "function")
    assert "drop_remainder=True" in message


class OwnStep(keras.Model):
    share = 1

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
            loss = tf.reduce_mean(losses) / self.share
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"mean_loss": self.share * loss}


class SharedStep(OwnStep):
    """Divides the loss of a share, as it is told to."""

    share = 2


def test_a_step_of_the_users_own_is_told_what_it_must_do_and_logs_the_mean_over_the_batch():
    def model(kind):
        inputs = keras.Input((8,))
        built = kind(inputs, keras.layers.Dense(4, activation="softmax")(inputs))
        built.compile(keras.optimizers.SGD(0.1))
        return built

    told = []
    data = arrays(64, batch_size=16)
    two = fitted(under(lambda: model(SharedStep)), data, notice=told.append)
    [notice] = told
    assert "train_step() runs on the 2 replicas" in notice
    assert "divide the loss of a share by 2" in notice
    one = fitted(lambda: model(OwnStep), data)
    assert two.history["mean_loss"] == pytest.approx(one.history["mean_loss"], rel=1e-5)
    np.testing.assert_allclose(*(run.model.get_weights()[0] for run in (two, one)), rtol=1e-5)


def outside(_build):
    """The layers are made before the scope is entered, and the model in it."""

    def built():
        inputs = keras.Input((8,), name="inputs")
        outputs = keras.layers.Dense(4, name="early")(inputs)
        with two_replicas().scope():
            model = keras.Model(inputs, outputs, name="late")
            model.compile("sgd", "mse")
        return model

    return built


def compiled(*layers, **options):
    """A factory of a model; an optimizer is given by what makes it."""

    def build():
        arguments = {"optimizer": lambda: "sgd", "loss": "mse", **options}
        built = [layer() for layer in layers]
        model = keras.Sequential([keras.Input((8,)), *built, keras.layers.Dense(4)], name="net")
        model.compile(**{**arguments, "optimizer": arguments["optimizer"]()})
        return model

    return build


def optimized(**options):
    return compiled(optimizer=lambda: keras.optimizers.SGD(**options))


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


def mean_of_all(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())


MODELS = {
    "clipnorm": (optimized(clipnorm=0.5), ("SGD has clipnorm", "clip_by_gl")),
    "global_clipnorm": (optimized(global_clipnorm=0.5), ("global_clipnorm",)),
    "clipvalue": (optimized(clipvalue=0.5), ("SGD has clipvalue",)),
    "accumulation": (
        optimized(gradient_accumulation_steps=2),
        ("gradient_accumulation_steps", "batch_size"),
    ),
    "loss scale": (compiled(optimizer=scaled), ("LossScaleOptimizer", "mixed_bfloat16")),
    "overwritten averages": (
        optimized(use_ema=True, ema_overwrite_frequency=3),
        ("ema_overwrite_frequency",),
    ),
    "XLA": (by_xla, ("jit_compile=True",)),
    "one number a batch": (
        compiled(loss=mean_of_all),
        ("one number for a whole batch", "a value for each sample"),
    ),
    "add_loss": (compiled(lambda: Adds(name="a")), ("layer 'a'", "extra_losses()")),
    "activity": (
        compiled(lambda: keras.layers.Dense(4, activity_regularizer="l1", name="a")),
        ("layer 'a'", "activity regularizer"),
    ),
}


def four():
    x, _ = digits(64)
    return Data(train=(x, x[:, :4]), batch_size=16)


@pytest.mark.parametrize("case", MODELS)
def test_what_replicas_would_train_otherwise_is_refused_before_training(case):
    model, names = MODELS[case]
    message = refused(FactoryError, four, model)
    assert all(name in message for name in names), message


def test_what_is_made_outside_the_scope_is_refused():
    early = keras.optimizers.SGD(0.1)
    message = refused(FactoryError, model=compiled(optimizer=lambda: early))
    assert "'net' cannot be trained" in message
    assert "its optimizer was made outside the strategy's scope" in message
    message = refused(FactoryError, built=outside)
    assert "model 'late'" in message
    assert "'early/kernel' was made outside the strategy's scope" in message


@pytest.mark.parametrize(
    "kind",
    [
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.ParameterServerStrategy,
        tf.distribute.TPUStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
    ],
)
def test_strategies_whose_replicas_are_not_in_this_process_are_refused(kind):
    model = one_layer()
    model._distribute_strategy = object.__new__(kind)
    message = r"take every step together, and it trains in one process; use tf.distribute.Mirrored"
    with pytest.raises(FactoryError, match=message):
        fitted(lambda: model)


class Noise(keras.layers.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), stddev=0.1) if training else x


def noisy():
    model = keras.Sequential([keras.Input((8,)), Noise(), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_a_global_seed_generator_that_replicas_would_make_is_refused():
    keras.backend.clear_session()
    assert re.search(
        "global seed generator.*every replica", refused(UncapturableError, model=noisy)
    )


# A study's strategy


def layer_of(_trial):
    return one_layer()


def made_elsewhere(_trial):
    """Strategies are a thread's own."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(one_layer).result()


@pytest.mark.parametrize(
    ("model", "strategy", "message"),
    [
        (layer_of, lambda _trial: None, "<lambda> returned None"),
        (layer_of, lambda _trial: ["CPU:0", "CPU:1"], "<lambda> returned a builtins.list"),
        (
            made_elsewhere,
            lambda _trial: two_replicas(),
            "made_elsewhere returned model 'sequential.*', which was made outside every scope",
        ),
    ],
)
def test_a_strategy_or_model_that_is_not_the_studys_is_refused(model, strategy, message, tmp_path):
    with pytest.raises(DefinitionError, match=message):
        Runner(tmp_path)(model, strategy=strategy, objective="loss", epochs=1)


def test_trials_of_one_process_share_a_strategy_that_adds_up_by_collective_ops(tmp_path):
    def collective(_trial):
        return two_replicas(cross_device_ops=None)

    strategies = []
    for number in range(2):
        trial = Trial(number=number, seed=0, directory=tmp_path, ask=lambda *_: 0)
        with strategy_scope(collective, trial, SEEDS) as strategy:
            strategies.append(strategy)
    assert strategies[0] is strategies[1]
    assert describe_strategy(two_replicas()) == "MirroredStrategy, 2 replicas, ReductionToOneDevice"


def test_a_strategy_in_place_of_a_factory_is_refused():
    strategy = two_replicas()
    with pytest.raises(DefinitionError) as raised:
        Study(name="x", model=one_layer, data=dict, epochs=1, trials=1, strategy=strategy)
    assert str(raised.value).startswith(
        "strategy= takes a function, trial -> tf.distribute.Strategy"
    )
