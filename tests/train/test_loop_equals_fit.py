"""The loop does what ``model.fit`` does: the same calls, values and weights, bit for bit.

Single steps and steps in a loop of the graph are optimized differently by TensorFlow's constant
folding, and sums of three terms by its arithmetic optimizer, in the last bits; so both run without them here,
as `docs/explanation` says.
"""

import keras
import numpy as np
import pytest
from trainings import (
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
from sweeper.train.randomness.seeds import seed_everything

HOOKS = [
    f"on_{where}_{when}"
    for where in ("epoch", "train", "test", "train_batch", "test_batch")
    for when in ("begin", "end")
]


class Recorder(keras.callbacks.Callback):
    """Records every call with all its arguments; only the hooks it is told to listen to."""

    def __init__(self, hooks):
        super().__init__()
        self.calls = []
        for hook in hooks:
            setattr(self, hook, self._recording(hook))

    def _recording(self, hook):
        def record(*arguments, logs=None):
            given = [dict(a) if isinstance(a, dict) else a for a in arguments]
            self.calls.append((hook, *given, None if logs is None else dict(logs)))

        return record

    def get_state(self):
        return [repr(call) for call in self.calls]

    def set_state(self, state):
        raise AssertionError(state)


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


# One at a time is what the tests above do.
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.whole), 3])
def test_steps_per_execution_calls_back_as_fit_does(steps):
    data = small_data(shuffle=False)
    theirs, ours = Recorder(HOOKS), Recorder(HOOKS)

    def build():
        return compiled(steps_per_execution=steps)

    model = fitted([theirs], data, build)
    loop = train(plan(model=build, data=lambda: data, callbacks=lambda: [ours]), Watcher())
    assert ours.calls == theirs.calls
    assert equal(weights(loop._plan.model), weights(model))


def weighing():
    model = one_layer()
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    return model


def test_sample_weights_and_class_weights_are_fits_own():
    x, y = digits()
    weighted = Data(train=(x, y, np.linspace(0, 1, len(x))), batch_size=16, shuffle=False)
    by_class = Data(train=(x, y), batch_size=16, shuffle=False, class_weight={0: 2.0, 2: 0.5})
    for data in (weighted, by_class):
        model = fitted([], data, build=weighing)
        loop = train(plan(model=weighing, data=lambda d=data: d), Watcher())
        assert equal(weights(loop._plan.model), weights(model))
        assert loop.history.history == model.history.history


def test_keras_own_callbacks_steer_as_in_fit():
    data = small_data(shuffle=False, validation_freq=1)

    def callbacks():
        return [
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=10.0, factor=0.5),
            keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0),
        ]

    planned = plan(model=one_layer, data=lambda: data)
    planned.model.fit(
        *data.train, batch_size=16, epochs=6, shuffle=False, verbose=0,
        validation_data=data.validation, callbacks=callbacks(),
    )  # fmt: skip
    loop = train(plan(model=one_layer, data=lambda: data, callbacks=callbacks, epochs=6), Watcher())
    assert len(loop.history.epoch) == 2, "early stopping ended it"
    assert loop.history.history == planned.model.history.history
    assert equal(weights(loop._plan.model), weights(planned.model))


def test_exponential_averages_end_in_the_model_as_in_fit():
    data = small_data(shuffle=False)

    def averaged():
        model = one_layer()
        optimizer = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer, "mse")
        return model

    planned = plan(model=averaged, data=lambda: data)
    planned.model.fit(*data.train, batch_size=16, epochs=3, shuffle=False, verbose=0)
    unvalidated = Data(train=data.train, batch_size=16, shuffle=False)
    loop = train(plan(model=averaged, data=lambda: unvalidated), Watcher())
    assert equal(weights(loop._plan.model), weights(planned.model))


@pytest.mark.whole
def test_a_model_built_by_its_first_batch_trains_as_in_fit():
    def unbuilt():
        model = keras.Sequential([keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    data = Data(train=digits(), batch_size=16, shuffle=False)
    planned = plan(model=unbuilt, data=lambda: data)
    planned.model.fit(*data.train, batch_size=16, epochs=3, shuffle=False, verbose=0)
    loop = train(plan(model=unbuilt, data=lambda: data), Watcher())
    assert equal(weights(loop._plan.model), weights(planned.model))


def test_a_model_that_runs_eagerly_trains_as_in_fit():
    data = Data(train=digits(40), batch_size=16, shuffle=False)

    def build():
        return compiled(run_eagerly=True)

    model = fitted([], data, build)
    loop = train(plan(model=build, data=lambda: data), Watcher())
    assert equal(weights(loop._plan.model), weights(model))
    seed_everything(0)


@pytest.mark.whole
def test_averages_left_in_the_model_are_fits_own():
    def averaged():
        model = dropping()
        model.compile(keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.7), "mse")
        return model

    def swapping():
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    data = small_data(shuffle=False)
    model = fitted(swapping(), data, averaged)
    loop = train(plan(model=averaged, data=lambda: data, callbacks=swapping), Watcher())
    assert equal(weights(loop._plan.model), weights(model))
    assert loop.history.history == model.history.history
