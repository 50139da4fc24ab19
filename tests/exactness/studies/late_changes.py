"""Late changes: layers frozen and unfrozen, schedules set, models compiled again, banks that grow."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from pieces import build_eager, build_model, compiled, layers_of
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

study(
    "unfrozen-by-callback-ema",
    "the same with an optimizer that averages weights, which are put in place at the end",
    either("backbone", by=2),
    model=lambda trial: build_frozen(
        trial, optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    ),
    callbacks=lambda trial: [Unfreezes()],
)


class FreezesForAnEpoch(keras.callbacks.Callback):
    """Freezes a layer for the second epoch alone."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[0].trainable = epoch != 1


study(
    "frozen-for-an-epoch-eager",
    "a layer frozen and unfrozen again by a callback, eagerly",
    either("trainable", by=2),
    model=build_eager,
    callbacks=lambda trial: [FreezesForAnEpoch()],
)


class FreezesInTheMiddle(keras.callbacks.Callback):
    """Freezes a layer in the middle of the first epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.layers[0].trainable = False


study(
    "frozen-mid-epoch-eager",
    "a layer frozen by a callback in the middle of an epoch, eagerly",
    either("trainable"),
    model=build_eager,
    callbacks=lambda trial: [FreezesInTheMiddle()],
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

study(
    "recompiled-by-callback-eager",
    "the same in a model that runs eagerly",
    either("compile", by=3),
    model=lambda trial: build_frozen(trial, run_eagerly=True),
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

study(
    "schedule-set-late-eager",
    "a learning rate schedule set on the optimizer by a callback, eagerly",
    either("learning_rate", by=2),
    model=build_eager,
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


class ModelBank(keras.Model):
    """The same in the model, inside of its step."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(layers_of())
        self.kept = []

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        self.kept.append(tf.Variable(tf.reduce_mean(x, axis=0), trainable=False))
        shift = tf.add_n([v.value() for v in self.kept]) / len(self.kept)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x - shift, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


study(
    "bank-of-variables-in-model",
    "a list of variables of the model that grows with every eager step",
    either("kept"),
    model=lambda trial: compiled(ModelBank(), run_eagerly=True),
)


class ChangesDropout(keras.callbacks.Callback):
    """Scheduled dropout: changes a layer's plain attribute."""

    def on_train_batch_begin(self, batch, logs=None):
        layer = self.model.layers[1]
        layer.rate = min(0.5, layer.rate + 0.02)


study(
    "dropout-rate-changed-eager",
    "a callback that raises Dropout.rate with every batch, eagerly",
    identical(),
    model=build_eager,
    callbacks=lambda trial: [ChangesDropout()],
)

study(
    "dropout-rate-changed-traced",
    "the same in a traced model, where the rate is baked in",
    either("rate"),
    model=build_model,
    callbacks=lambda trial: [ChangesDropout()],
)


class ChangesMomentum(keras.callbacks.Callback):
    """One-cycle: the momentum, a plain number of the optimizer, goes down and up."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.model.optimizer.momentum = 0.95 - 0.1 * abs(10 - self.step) / 10


study(
    "momentum-cycled-eager",
    "one-cycle momentum: a callback sets optimizer.momentum, eagerly",
    identical(),
    model=build_eager,
    callbacks=lambda trial: [ChangesMomentum()],
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


class ChangesLoss(keras.callbacks.Callback):
    """Lowers the smoothing of the compiled loss."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.loss.scale *= 0.7


class ScaledLoss(keras.losses.Loss):
    """A loss with a plain factor."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def call(self, y_true, y_pred):
        return self.scale * keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


study(
    "loss-factor-changed-by-callback",
    "a callback that changes an attribute of the compiled loss, eagerly",
    identical(),
    model=lambda trial: compiled(
        keras.Sequential(layers_of()), loss=ScaledLoss(), run_eagerly=True
    ),
    callbacks=lambda trial: [ChangesLoss()],
)


class Prunes(keras.callbacks.Callback):
    """Magnitude pruning: masks that are made in training."""

    def __init__(self):
        super().__init__()
        self.masks = None

    def on_epoch_end(self, epoch, logs=None):
        kernel = self.model.layers[0].kernel
        if epoch == 1:
            values = np.abs(kernel.numpy())
            self.masks = tf.constant(values > np.quantile(values, 0.3), tf.float32)
        if self.masks is not None:
            kernel.assign(kernel.value * self.masks)

    def on_train_batch_end(self, batch, logs=None):
        if self.masks is not None:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel.value * self.masks)


study(
    "pruning-masks",
    "magnitude pruning whose masks, tensors, are made at the second epoch's end",
    identical(),
    callbacks=lambda trial: [Prunes()],
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


class StepsPerExecution(keras.callbacks.Callback):
    """Makes the rate a keras.Variable of its own."""

    def on_train_begin(self, logs=None):
        self.scale = keras.Variable(1.0, trainable=False)

    def on_train_batch_begin(self, batch, logs=None):
        self.scale.assign(self.scale * 0.97)
        self.model.optimizer.learning_rate = 0.1 * float(self.scale.value)


study(
    "variable-made-in-on-train-begin",
    "a variable that a callback makes when training begins",
    identical(),
    callbacks=lambda trial: [StepsPerExecution()],
)


class LateVariable(keras.callbacks.Callback):
    """Makes its variable with the third batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and not hasattr(self, "anchor"):
            self.anchor = tf.Variable(self.model.layers[0].kernel.value)
        if hasattr(self, "anchor"):
            kernel = self.model.layers[0].kernel
            kernel.assign(0.9 * kernel.value + 0.1 * self.anchor)


study(
    "variable-made-late",
    "a variable that a callback makes in the first epoch, as an anchor",
    either("anchor"),
    callbacks=lambda trial: [LateVariable()],
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
