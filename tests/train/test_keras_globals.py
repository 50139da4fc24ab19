"""What Keras keeps for the whole process is restored, whatever a callback has made of it."""

import exactness_models as models
import keras
import pytest
import tensorflow as tf
from trainings import Watcher, plan, train, unvalidated

from sweeper.errors import UncapturableError


class Predicts(keras.callbacks.Callback):
    """Runs a function that draws from the global generator as it was then; clears it after some steps."""

    def __init__(self, at):
        super().__init__()
        self.at = at
        self.count = 0
        self.drawn = tf.function(lambda: keras.random.normal(()))

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count in self.at:
            keras.utils.clear_session()

    def on_epoch_end(self, epoch, logs=None):
        self.drawn()


@pytest.mark.parametrize(("at", "refused"), [((9,), True), ((3,), False), ((), False)], ids=str)
def test_a_function_traced_with_a_generator_that_was_replaced_is_refused(at, refused):
    """Replaced after the trace, before it, and never."""

    def build():
        return models.compiled(keras.optimizers.SGD(0.1), models.GlobalNoise())

    made = plan(model=build, data=unvalidated, callbacks=lambda: [Predicts(at)], epochs=2)
    watcher = Watcher(snapshot_at=lambda position: position.step in (7, 10))
    if refused:
        with pytest.raises(UncapturableError, match="was traced with Keras's global seed gen"):
            train(made, watcher)
    else:
        train(made, watcher)
