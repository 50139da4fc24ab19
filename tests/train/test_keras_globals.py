"""What Keras keeps for the whole process is restored, whatever a callback has made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from trainings import Watcher, plan, train, unvalidated

from sweeper.errors import UncapturableError


def both() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)


MEDDLING: dict[str, Callable[[], object]] = {
    "clears": keras.utils.clear_session,
    "reseeds": lambda: keras.utils.set_random_seed(11),
    "both": both,
}


class Noise(keras.layers.Layer):
    """Draws from Keras's global generator in the step."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), stddev=0.1) if training else x


class Meddles(keras.callbacks.Callback):
    """Draws from the global generator, and does something to it in the middle."""

    def __init__(self, what: str, at: tuple[int, ...]) -> None:
        super().__init__()
        self.what = what
        self.at = at
        self.count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        if self.count in self.at:
            MEDDLING[self.what]()
        if self.count % 2:
            kernel = self.model.layers[-1].kernel
            kernel.assign_add(0.01 * keras.random.normal(kernel.shape))


def build(*, eager: bool) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((8,)), Noise(), keras.layers.Dense(4, activation="softmax")]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", run_eagerly=eager)
    return model


class Predicts(Meddles):
    """Runs a function of TensorFlow's that draws from the global generator as it was then."""

    def __init__(self, what: str, at: tuple[int, ...]) -> None:
        super().__init__(what, at)
        self.drawn = tf.function(lambda: keras.random.normal(()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.drawn()


@pytest.mark.parametrize(("at", "refused"), [((9,), True), ((3,), False), ((), False)], ids=str)
def test_a_function_traced_with_a_generator_that_was_replaced_is_refused(
    at: tuple[int, ...], refused: bool
) -> None:
    """Replaced after the trace, before it, and never."""
    made = plan(
        model=lambda: build(eager=False),
        data=unvalidated,
        callbacks=lambda: [Predicts("clears", at)],
        epochs=2,
    )
    watcher = Watcher(snapshot_at=lambda position: position.step in (7, 10))
    if refused:
        with pytest.raises(UncapturableError, match="was traced with Keras's global seed gen"):
            train(made, watcher)
    else:
        train(made, watcher)
