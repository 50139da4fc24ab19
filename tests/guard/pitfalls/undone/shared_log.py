"""Every trial's callback appends to one list."""

import keras
from small_study import build_model, study_of

log = []


class Recorder(keras.callbacks.Callback):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append((epoch, logs["loss"]))
        if len(self.rows) > 20:
            self.model.stop_training = True


def build_callbacks(trial):
    return [Recorder(log)]


study = study_of(build_model, callbacks=build_callbacks)
