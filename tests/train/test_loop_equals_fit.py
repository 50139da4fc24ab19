"""The loop does what ``model.fit`` does: the same calls, values and weights, bit for bit.

Single steps and steps in a loop of the graph are optimized differently by TensorFlow's constant
folding, and sums of three terms by its arithmetic optimizer, in the last bits; so both run without them here,
as `docs/explanation` says.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import test_data_trains as kinds
from test_data_trains import Batches, dataset
from trainings import (
    HOOKS,
    Recorder,
    Watcher,
    digits,
    dropping,
    equal,
    mlp,
    one_layer,
    plan,
    small_data,
    train,
    unoptimized,
    weights,
)

import sweeper
from sweeper import Data


@pytest.fixture(autouse=True)
def _unoptimized():
    with unoptimized():
        yield


def options_of(data):
    """The arguments of ``model.fit`` for arrays in order."""
    x, y, *sample_weight = data.train
    return {
        "x": x,
        "y": y,
        "sample_weight": sample_weight[0] if sample_weight else None,
        "batch_size": data.batch_size,
        "validation_data": data.validation,
        "validation_split": data.validation_split,
        "validation_freq": data.validation_freq,
        "class_weight": data.class_weight,
    }


def compared(build, data, options, callbacks=tuple, hooks=HOOKS):
    """The model that ``fit`` has trained, and our loop, from the same seeds; both were called alike."""
    keras_recorder = Recorder(hooks)
    recorder = Recorder(hooks)
    model = plan(model=build, data=lambda: data).model
    model.fit(
        **options, epochs=3, shuffle=False, callbacks=[*callbacks(), keras_recorder], verbose=0
    )
    planned = plan(model=build, data=lambda: data, callbacks=lambda: [*callbacks(), recorder])
    loop = train(planned, Watcher())
    assert recorder.calls == keras_recorder.calls
    return model, loop


def compiled(**options):
    model = dropping()
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, 0.5),
        loss="mse",
        weighted_metrics=["mae"],
        **options,
    )
    return model


def averaging():
    model = dropping()
    model.compile(keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.7), "mse")
    return model


def unbuilt():
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def swapping():
    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]


def steering():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=10.0, factor=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0),
    ]


def in_order(samples=100, *more, **options):
    return Data(train=(*digits(samples), *more), batch_size=16, shuffle=False, **options)


validated = functools.partial(small_data, shuffle=False)
SCALE = np.linspace(0, 1, 100)
BY_EPOCHS = ["on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end", "on_test_end"]
"""What a callback hears that leaves the steps of an epoch to one call."""

ARRAYS = {
    "every call": (mlp, validated),
    "by epochs": (mlp, validated, tuple, BY_EPOCHS),
    "steps per execution": (lambda: compiled(steps_per_execution=3), validated),
    "stops early": (one_layer, validated, steering),
    "sample weights": (compiled, lambda: in_order(100, SCALE), tuple, BY_EPOCHS),
    "class weights": (compiled, lambda: in_order(class_weight={0: 2.0, 2: 0.5})),
    "averages end in the model": (averaging, in_order, tuple, BY_EPOCHS),
    "eager": (lambda: compiled(run_eagerly=True), lambda: in_order(40)),
    "split": (
        kinds.small,
        lambda: in_order(50, validation_split=0.3, validation_freq=[2]),
    ),
    "built by its first batch": (unbuilt, in_order),
    "averages left in the model": (averaging, validated, swapping, BY_EPOCHS),
}
OTHERS = {
    "tf.data": lambda: (
        Data(train=dataset(), validation=dataset(), validation_steps=3, class_weight={1: 2.0}),
        {
            "x": dataset(),
            "validation_data": dataset(),
            "validation_steps": 3,
            "class_weight": {0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0},
        },
    ),
    "PyDataset": lambda: (
        Data(train=Batches(), validation=Batches(), shuffle=False, class_weight={1: 2.0}),
        {"x": Batches(), "validation_data": Batches(), "class_weight": {0: 1.0, 1: 2.0}},
    ),
    "tf.data, endless": lambda: (
        Data(train=dataset().repeat(), steps_per_epoch=5),
        {"x": dataset().repeat(), "steps_per_epoch": 5},
    ),
}
ON_REQUEST = {
    *("built by its first batch", "averages left in the model"),
    *("PyDataset", "tf.data, endless"),
}


def marked(names):
    return [
        pytest.param(name, marks=pytest.mark.whole if name in ON_REQUEST else ()) for name in names
    ]


def check(model, loop, epochs=3):
    assert equal(weights(loop._plan.model), weights(model))
    assert loop.history.history == model.history.history
    assert len(loop.history.epoch) == epochs


@pytest.mark.parametrize("name", marked(ARRAYS))
def test_every_call_and_every_value_is_fits_own(name):
    build, make_data, *more = ARRAYS[name]
    data = make_data()
    check(*compared(build, data, options_of(data), *more), 2 if steering in more else 3)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", marked(OTHERS))
def test_a_training_on_other_kinds_of_data_is_fits_own(kind, eager):
    check(*compared(functools.partial(kinds.small, run_eagerly=eager), *OTHERS[kind]()))


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.whole), 3])
def test_a_dataset_of_unknown_length_calls_back_as_fit_does(steps):
    # Fit finds the end by a step that fails, and that still counts the optimizer's iterations and
    # draws a dropout's seed (not so with several): no dropout, and the weights alone.
    build = functools.partial(kinds.small, 0.0, steps_per_execution=steps)
    data = dataset(known=False)
    model, loop = compared(build, Data(train=data), {"x": data})
    assert equal(loop._plan.model.get_weights(), model.get_weights())
    assert int(loop._plan.model.optimizer.iterations) == 21


@pytest.mark.parametrize(
    ("form", "eager"),
    [
        ("scipy", True),
        ("jax", False),
        *(
            pytest.param(form, eager, marks=pytest.mark.whole)
            for form in kinds.FORMS
            for eager in (False, True)
            if (form, eager) != ("scipy", True)
        ),
    ],
)
def test_sparse_and_ragged_batches_and_ragged_tensors_train_as_in_fit(form, eager):
    def planned():
        model = functools.partial(kinds.model_on, form, eager=eager)
        return plan(model=model, data=lambda: kinds.data_in(form, shuffle=False))

    losses = train(planned(), Watcher()).history.history
    if form == "ragged-arrays":
        arguments = options_of(planned().data)
    else:
        endless = (batch for _ in range(4) for batch in kinds.sparse_batches(form))
        arguments = {"x": endless, "steps_per_epoch": 6}
    fitted = planned().model.fit(**arguments, epochs=3, shuffle=False, verbose=0)
    for name, values in fitted.history.items():
        np.testing.assert_allclose(losses[name], values, rtol=1e-5)


class Rebuilds(keras.Model):
    """A model whose own step is given ``x`` alone, as published autoencoders are."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(8)

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data, training=True) - data))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_step_of_its_own_is_given_x_alone_as_fit_gives_it(eager, tmp_path):
    def made():
        keras.utils.set_random_seed(1)
        model = Rebuilds()
        model(kinds.X[:1])
        model.compile(optimizer="sgd", loss="mse", run_eagerly=eager)
        return model

    expected = made()
    fitted_model = made()
    expected.fit(kinds.X, batch_size=10, epochs=2, shuffle=False, verbose=0)
    data = Data(train=kinds.X, batch_size=10, shuffle=False)
    sweeper.fit(fitted_model, data, epochs=2, checkpoints=tmp_path)
    assert equal(weights(fitted_model), weights(expected))


class TrainsOnBatches(keras.callbacks.Callback):
    """Trains on batches of its own, before the training and in it."""

    def on_train_begin(self, logs=None):
        self.on_epoch_end(0)

    def on_epoch_end(self, epoch, logs=None):
        x, y = small_data().train
        logs = {} if logs is None else logs
        logs["own"] = float(self.model.train_on_batch(x[:4], y[:4], return_dict=True)["loss"])


def test_batches_that_a_callback_trains_on_change_the_training_as_in_fit():
    data = small_data(shuffle=False)
    check(*compared(dropping, data, options_of(data), callbacks=lambda: [TrainsOnBatches()]))


def test_another_order_of_the_data_is_noticed():
    """Negative control: equality above is not for free."""
    unshuffled = small_data(shuffle=False)
    model = plan(model=one_layer).model
    model.fit(*unshuffled.train, batch_size=16, epochs=3, shuffle=False, verbose=0)
    for shuffle in (False, True):
        data = small_data(validation=None, shuffle=shuffle)
        loop = train(plan(model=one_layer, data=lambda d=data: d), Watcher())
        assert equal(weights(loop._plan.model), weights(model)) != shuffle
