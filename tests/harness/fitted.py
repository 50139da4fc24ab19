"""Trainings by `sweeper.fit`, from objects that are made anew, with the same seed in every call."""

import signal
from tempfile import TemporaryDirectory

import keras
import pytest
from trainings import small_data

import sweeper


def fitted(model, data=small_data, *, step=None, callbacks=tuple, epochs=2, **options):
    """Train in a directory of its own unless one is given; the history, which has the model."""
    keras.utils.set_random_seed(3)
    built = model()
    taken = None if step is None else step()
    with TemporaryDirectory() as directory:
        arguments = {"checkpoints": directory, "callbacks": callbacks(), "verbose": 0, **options}
        return sweeper.fit(built, data(), step=taken, epochs=epochs, **arguments)


def fitted_in_parts(stops, directory, model, data=small_data, *, callbacks=tuple, **options):
    """Train, stopped after each of these steps and each time going on in fresh objects, to the end."""

    def part(stop):
        def called():
            return [*callbacks(), Stops(stop)]

        return fitted(model, data, callbacks=called, checkpoints=directory, **options)

    for stop in stops:
        with pytest.raises(sweeper.Interrupted, match=f"stopped at step {stop},"):
            part(stop)
    return part(None)


class Stops(keras.callbacks.Callback):
    """Asks the process to stop after a step of the training."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            signal.raise_signal(signal.SIGTERM)

    def get_state(self):
        """Return nothing: where it stops is not for the training to remember."""
        return {}

    def set_state(self, state):
        del state
