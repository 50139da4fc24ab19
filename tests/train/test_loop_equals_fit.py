"""The loop does what ``model.fit`` does: the same calls, values and weights, bit for bit.

Single steps and steps in a loop of the graph are optimized differently by TensorFlow's constant
folding, and sums of three terms by its arithmetic optimizer, in the last bits; so both run without them here,
as `docs/explanation` says.
"""

import keras
import numpy as np
import pytest
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

from sweeper import Data


@pytest.fixture(autouse=True)
def _unoptimized():
    with unoptimized():
        yield


def fitted(callbacks, data, build=mlp):
    """``model.fit`` on the same model, from the same seeds."""
    planned = plan(model=build, data=lambda: data)
    model = planned.model
    model.fit(
        *data.train[:2],
        sample_weight=data.train[2] if len(data.train) > 2 else None,
        batch_size=data.batch_size,
        epochs=3,
        shuffle=False,
        validation_data=data.validation,
        validation_freq=data.validation_freq,
        class_weight=data.class_weight,
        callbacks=callbacks,
        verbose=0,
    )
    return model


def compiled(**options):
    model = dropping()
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, 0.5),
        loss="mse",
        weighted_metrics=["mae"],
        **options,
    )
    return model


BY_EPOCHS = ["on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end", "on_test_end"]


@pytest.fixture(scope="module")
def fit():
    """``model.fit`` on `mlp`, and two that listened: to everything, and not to batches."""
    everything, epochs = Recorder(HOOKS), Recorder(BY_EPOCHS)
    with unoptimized():
        return fitted([everything, epochs], small_data(shuffle=False)), everything, epochs


def test_every_call_and_every_value_is_fits_own(fit):
    data = small_data(shuffle=False)
    model, theirs, _ = fit
    ours = Recorder(HOOKS)
    loop = train(plan(model=mlp, data=lambda: data, callbacks=lambda: [ours]), Watcher())
    assert len(theirs.calls) > 60
    assert ours.calls == theirs.calls
    assert equal(weights(loop._plan.model), weights(model))
    assert loop.history.history == model.history.history


def test_weights_and_logs_are_fits_own_when_no_callback_listens_to_batches(fit):
    data = small_data(shuffle=False)
    model, _, theirs = fit
    ours = Recorder(BY_EPOCHS)
    loop = train(plan(model=mlp, data=lambda: data, callbacks=lambda: [ours]), Watcher())
    assert ours.calls == theirs.calls
    assert equal(weights(loop._plan.model), weights(model))


def test_another_order_of_the_data_is_noticed():
    """Negative control: equality above is not for free."""
    given = small_data(shuffle=False)
    model = plan(model=one_layer).model
    model.fit(*given.train, batch_size=16, epochs=3, shuffle=False, verbose=0)
    for shuffle in (False, True):
        data = small_data(validation=None, shuffle=shuffle)
        loop = train(plan(model=one_layer, data=lambda d=data: d), Watcher())
        assert equal(weights(loop._plan.model), weights(model)) != shuffle


def test_steps_per_execution_calls_back_as_fit_does():
    data = small_data(shuffle=False)
    theirs, ours = Recorder(HOOKS), Recorder(HOOKS)

    def build():
        return compiled(steps_per_execution=3)

    model = fitted([theirs], data, build)
    loop = train(plan(model=build, data=lambda: data, callbacks=lambda: [ours]), Watcher())
    assert ours.calls == theirs.calls
    assert equal(weights(loop._plan.model), weights(model))


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


SCALE = np.linspace(0, 1, 100)
nightly = pytest.mark.whole


@pytest.mark.parametrize(
    ("build", "data", "callbacks"),
    [
        pytest.param(compiled, in_order(100, SCALE), tuple, id="sample weights"),
        pytest.param(compiled, in_order(class_weight={0: 2.0, 2: 0.5}), tuple, id="class weights"),
        pytest.param(averaging, in_order(), tuple, id="averages end in the model"),
        pytest.param(lambda: compiled(run_eagerly=True), in_order(40), tuple, id="eager"),
        pytest.param(unbuilt, in_order(), tuple, id="built by its first batch", marks=nightly),
        pytest.param(
            averaging,
            small_data(shuffle=False),
            swapping,
            id="averages left in the model",
            marks=nightly,
        ),
        pytest.param(one_layer, small_data(shuffle=False), steering, id="stops early"),
    ],
)
def test_weights_and_history_are_fits_own(build, data, callbacks):
    model = fitted(callbacks(), data, build)
    loop = train(plan(model=build, data=lambda: data, callbacks=callbacks), Watcher())
    assert equal(weights(loop._plan.model), weights(model))
    assert loop.history.history == model.history.history
    assert len(loop.history.epoch) == (2 if callbacks is steering else 3)
