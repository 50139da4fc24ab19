"""Late changes: layers frozen and unfrozen, schedules set, models compiled again, banks that grow."""

import keras
import tensorflow as tf
from pieces import compiled, stacked
from registry import either, identical, study_callback, study_model


def build_frozen(trial):
    return stacked(first=keras.layers.Dense(8, "tanh", name="backbone", trainable=False))


@study_callback(
    "unfrozen-by-callback",
    "a layer unfrozen by a callback at the second epoch, traced",
    either("backbone", by=2),
    model=build_frozen,
)
class Unfreezes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("backbone").trainable = True


@study_callback(
    "recompiled-by-callback",
    "a model unfrozen and compiled again by a callback at the third epoch",
    either("compile", by=3),
    model=build_frozen,
)
class UnfreezesAndCompiles(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.model.get_layer("backbone").trainable = True
            compiled(self.model, keras.optimizers.SGD(0.01))


@study_callback(
    "schedule-set-late",
    "a learning rate schedule set on the optimizer by a callback, traced",
    either("learning_rate", by=2),
)
class SetsSchedule(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 20)


@study_callback(
    "bank-of-variables-grows",
    "a list of tf.Variables that a callback adds one to at every epoch's end",
    either("bank", by=2),
)
class Bank(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.bank = []

    def on_epoch_end(self, epoch, logs=None):
        self.bank.append(tf.Variable(self.model.layers[0].kernel.value * 1.0))
        mean = tf.add_n([tf.convert_to_tensor(v) for v in self.bank]) / len(self.bank)
        self.model.layers[0].kernel.assign(mean)


@study_callback(
    "dropout-rate-changed-traced",
    "a layer's dropout rate changed by a callback in a traced model, where it is baked in",
    either("rate"),
)
class ChangesDropout(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        layer = self.model.layers[1]
        layer.rate = min(0.5, layer.rate + 0.02)


class ChangesRegularizer(keras.callbacks.Callback):
    """Raises the strength of a regularizer of Keras's, a plain attribute."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.layers[0].kernel_regularizer.l2 *= 1.2


@study_model(
    "regularizer-strength-changed",
    "a callback that raises the l2 of a Keras regularizer, eagerly",
    identical(),
    callbacks=lambda trial: [ChangesRegularizer()],
)
def build_regularized(trial):
    first = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3))
    return stacked(first=first, run_eagerly=True)


@study_callback(
    "layer-added-to-model",
    "a callback that gives the model another layer, which nothing uses",
    either("extra", by=2),
)
class GrowsModel(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.extra = keras.layers.Dense(2)
            self.model.extra.build((None, 6))
