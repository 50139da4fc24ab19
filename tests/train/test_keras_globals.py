"""Keras's global seed generator is restored, or refused where a callback has made that impossible."""

import exactness_models as models
import keras
import pytest
import tensorflow as tf
from trainings import Watcher, equal, plan, resumed, train, unvalidated, weights

from sweeper.errors import UncapturableError


class Predicts(keras.callbacks.Callback):
    """Runs a function that draws from the global generator as it was then; clears it after some steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.count = 0
        self.drawn = tf.function(lambda: keras.random.normal(()))
        self.draws = []

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count in self.steps:
            keras.utils.clear_session()

    def on_epoch_end(self, epoch, logs=None):
        self.draws.append(float(self.drawn()))


def noisy(steps):
    """A plan of 14 steps, whose callback clears Keras's session after some of them."""

    def build():
        return models.compiled(keras.optimizers.SGD(0.1), models.GlobalNoise())

    return plan(model=build, data=unvalidated, callbacks=lambda: [Predicts(steps)], epochs=2)


def test_a_function_traced_with_a_generator_that_was_replaced_is_refused():
    watcher = Watcher(snapshot_at=lambda position: position.step in (7, 10))
    with pytest.raises(UncapturableError, match="was traced with Keras's global seed gen"):
        train(noisy((9,)), watcher)


@pytest.mark.parametrize("steps", [(3,), ()], ids=["replaced before the trace", "never replaced"])
def test_the_global_generator_goes_on_where_it_was(steps, tmp_path):
    whole = train(noisy(steps), Watcher())
    parts = resumed(lambda: noisy(steps), tmp_path, stops=(7, 10))
    assert equal(weights(parts._plan.model), weights(whole._plan.model))
    draws = whole._plan.callbacks[0].draws
    assert len(set(draws)) == 2
    assert parts._plan.callbacks[0].draws == draws
