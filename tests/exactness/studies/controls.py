"""Studies that come out well without anything new: what the harness itself is measured by."""

import keras
import pieces
from registry import identical, study

study(
    "plain",
    "dropout, momentum and nothing else",
    identical(),
)


class RateByLosses(keras.callbacks.Callback):
    """Lowers the rate by what it has seen so far."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.1 / (1 + sum(self.seen))


study(
    "callback-with-a-list",
    "a callback keeps the losses in a list of its own and sets the rate by them",
    identical(),
    data=pieces.load_validated,
    callbacks=lambda trial: [RateByLosses()],
)
