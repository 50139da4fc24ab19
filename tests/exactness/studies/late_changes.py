"""Late changes: layers frozen and unfrozen, schedules set, models compiled again, banks that grow."""

import keras
import tensorflow as tf
from pieces import build_model, compiled, layers_of
from registry import either, identical, refused, study


def build_frozen(trial, **options):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "tanh", name="backbone"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.get_layer("backbone").trainable = False
    return compiled(model, **options)


class Unfreezes(keras.callbacks.Callback):
    """Gradual unfreezing, without compiling again."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("backbone").trainable = True


study(
    "unfrozen-by-callback",
    "a layer unfrozen by a callback at the second epoch, traced",
    either("backbone", by=2),
    model=build_frozen,
    callbacks=lambda trial: [Unfreezes()],
)


class UnfreezesAndCompiles(keras.callbacks.Callback):
    """Fine-tuning as Keras's guide has it, inside of a callback."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.model.get_layer("backbone").trainable = True
            compiled(self.model, keras.optimizers.SGD(0.01))


study(
    "recompiled-by-callback",
    "a model unfrozen and compiled again by a callback at the third epoch",
    either("compile", by=3),
    model=build_frozen,
    callbacks=lambda trial: [UnfreezesAndCompiles()],
)


class NewOptimizer(keras.callbacks.Callback):
    """Switches from Adam to SGD, by setting the attribute."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer = keras.optimizers.SGD(0.05, 0.9)


study(
    "optimizer-switched-eager",
    "a callback that sets another optimizer, in a model that runs eagerly",
    either("optimizer", by=2),
    model=lambda trial: compiled(
        keras.Sequential(layers_of()), keras.optimizers.Adam(0.02), run_eagerly=True
    ),
    callbacks=lambda trial: [NewOptimizer()],
)


class SetsSchedule(keras.callbacks.Callback):
    """Sets a schedule on the optimizer in mid-training."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 20)


study(
    "schedule-set-late",
    "a learning rate schedule set on the optimizer by a callback, traced",
    either("learning_rate", by=2),
    model=build_model,
    callbacks=lambda trial: [SetsSchedule()],
)


class Bank(keras.callbacks.Callback):
    """A bank of prototypes: a variable more at every epoch's end."""

    def __init__(self):
        super().__init__()
        self.bank = []

    def on_epoch_end(self, epoch, logs=None):
        self.bank.append(tf.Variable(self.model.layers[0].kernel.value * 1.0))
        mean = tf.add_n([tf.convert_to_tensor(v) for v in self.bank]) / len(self.bank)
        self.model.layers[0].kernel.assign(mean)


study(
    "bank-of-variables-grows",
    "a list of tf.Variables that a callback adds one to at every epoch's end",
    either("bank", by=2),
    callbacks=lambda trial: [Bank()],
)


class ChangesDropout(keras.callbacks.Callback):
    """Scheduled dropout: changes a layer's plain attribute."""

    def on_train_batch_begin(self, batch, logs=None):
        layer = self.model.layers[1]
        layer.rate = min(0.5, layer.rate + 0.02)


study(
    "dropout-rate-changed-traced",
    "the same in a traced model, where the rate is baked in",
    either("rate"),
    model=build_model,
    callbacks=lambda trial: [ChangesDropout()],
)


class ChangesRegularizer(keras.callbacks.Callback):
    """Raises the strength of a regularizer of Keras's, a plain attribute."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.layers[0].kernel_regularizer.l2 *= 1.2


def build_regularized(trial):
    layers = layers_of()
    layers[1] = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3))
    return compiled(keras.Sequential(layers), run_eagerly=True)


study(
    "regularizer-strength-changed",
    "a callback that raises the l2 of a Keras regularizer, eagerly",
    identical(),
    model=build_regularized,
    callbacks=lambda trial: [ChangesRegularizer()],
)


class GrowsModel(keras.callbacks.Callback):
    """Adds a loss to the model in the middle of training."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.extra = keras.layers.Dense(2)
            self.model.extra.build((None, 6))


study(
    "layer-added-to-model",
    "a callback that gives the model another layer, which nothing uses",
    either("extra", by=2),
    model=build_model,
    callbacks=lambda trial: [GrowsModel()],
)


class TrainsItsOwn(keras.callbacks.Callback):
    """Trains a number of its own with an optimizer that its first use builds."""

    def __init__(self):
        super().__init__()
        self.temperature = keras.Variable(1.0)
        self.optimizer = keras.optimizers.Adam(0.1)

    def on_epoch_end(self, epoch, logs=None):
        self.optimizer.apply([logs["loss"] * self.temperature], [self.temperature])
        logs["temperature"] = float(self.temperature)


study(
    "optimizer-built-by-callback",
    "an optimizer of a callback's that is built when the first epoch ends",
    refused("callback TrainsItsOwn.optimizer", "Adam", "build", by=2),
    callbacks=lambda trial: [TrainsItsOwn()],
)
