"""Models, optimizers and steps of one's own, what callbacks change of them late, and TensorFlow's hidden state."""

import keras
import numpy as np
import tensorflow as tf
from pieces import CLASSES, FEATURES, Wrapping, compiled, layers_of, stacked
from registry import identical, refused, study, study_callback, study_model

from sweeper import EverySteps, TrainingStep


class Clipped(keras.optimizers.SGD):
    """An optimizer of one's own with attributes in Python: clips by what it has seen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norms = []

    def apply(self, grads, trainable_variables=None):
        norm = float(tf.linalg.global_norm(grads))
        self.norms.append(norm)
        limit = float(np.median(self.norms))
        return super().apply([g * min(1.0, limit / norm) for g in grads], trainable_variables)


class Spectral(keras.layers.Layer):
    """Power iteration whose vector is a plain tensor attribute, eagerly."""

    def __init__(self):
        super().__init__()
        self.vector = tf.ones([8, 1])

    def call(self, x):
        if tf.inside_function():
            return x
        self.vector = tf.linalg.l2_normalize(
            tf.matmul(x, tf.matmul(x, self.vector), transpose_a=True) + 0.1 * self.vector
        )
        return x / (1 + 0.1 * tf.reduce_sum(self.vector))


class RaisesStrength(keras.callbacks.Callback):
    """Raises the strength of a regularizer of Keras's, a plain attribute."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.layers[0].kernel_regularizer.l2 *= 1.2


@study_model(
    "eager-attributes",
    "a list of an optimizer's, a tensor of a layer's and the strength of a regularizer, all replaced",
    identical(),
    callbacks=lambda trial: [RaisesStrength()],
)
def build_eager_model(trial):
    first = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3))
    optimizer = Clipped(learning_rate=0.1)
    return stacked(Spectral(), first=first, optimizer=optimizer, run_eagerly=True)


@study_model(
    "python-counter-in-traced-step",
    "a Python counter in a traced train_step, which counts tracings",
    identical(),
)
class TracedCounter(Wrapping):
    def __init__(self):
        super().__init__()
        self.traced = 0

    def train_step(self, data):
        self.traced += 1
        x, y = data
        return {"loss": self.step(x * (1 + 0.1 * self.traced), y)}


def build_plain(trial):
    return keras.Sequential(layers_of())


SETTINGS = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Teacher(TrainingStep):
    """A network of the step's own, an average of the model's weights, and an optimizer of its own."""

    def __init__(self, trial):
        super().__init__(optimizer=keras.optimizers.Adam(0.02), **SETTINGS)
        dense = keras.layers.Dense
        self.teacher = keras.Sequential([keras.Input((FEATURES,)), dense(CLASSES, "softmax")])
        self.of_teacher = keras.optimizers.RMSprop(0.02, momentum=0.5)
        self.noise = keras.random.SeedGenerator(3)

    def make_batch(self, batch, *, training):
        x, y = batch
        if training:
            x = x + 0.1 * keras.random.normal(tf.shape(x), seed=self.noise)
        return x, y

    def train_step(self, batch):
        x, y = self.make_batch(batch, training=True)
        wanted = tf.one_hot(tf.cast(tf.reshape(y, [-1]), tf.int32), CLASSES)

        def loss():
            return self.reduce(keras.losses.categorical_crossentropy(wanted, self.teacher(x)))

        self.minimize(loss, self.teacher.trainable_variables, self.of_teacher)
        return super().train_step(batch)

    def extra_losses(self):
        return [0.1 * tf.reduce_sum(tf.square(self.teacher.trainable_variables[0]))]


study(
    "training-step-own-network",
    "a network, an optimizer and a seed generator that are a TrainingStep's own",
    identical(),
    model=build_plain,
    step=Teacher,
)


def every_other_step(trial):
    called = []

    def lower(step, logs, model):
        called.append(logs["loss"])
        model.training_step.scale.assign(1.0 / len(called))

    return [EverySteps(2, lower)]


class Scaled(TrainingStep):
    def __init__(self, trial):
        super().__init__(optimizer=keras.optimizers.Adam(0.02), **SETTINGS)
        self.scale = keras.Variable(1.0, trainable=False, name="scale")

    def process_gradients(self, gradients, values):
        return [g * self.scale for g in super().process_gradients(gradients, values)]


study(
    "every-steps-closure",
    "a list in the closure of an EverySteps function, by whose length it scales gradients",
    identical(),
    model=build_plain,
    step=Scaled,
    callbacks=every_other_step,
)


def build_frozen(trial):
    return stacked(first=keras.layers.Dense(8, "tanh", name="backbone", trainable=False))


@study_callback(
    "unfrozen-by-callback",
    "a layer unfrozen by a callback at the second epoch, traced",
    identical(),
    model=build_frozen,
)
class Unfreezes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("backbone").trainable = True


@study_callback(
    "recompiled-by-callback",
    "a model unfrozen and compiled again by a callback at the third epoch",
    refused("model.optimizer", "compile", by=3),
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
    refused("learning_rate", by=2),
)
class SetsSchedule(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 20)


@study_callback(
    "layer-added-to-model",
    "a callback that gives the model another layer, which nothing uses",
    refused("extra", "made during training", by=2),
)
class GrowsModel(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.extra = keras.layers.Dense(2)
            self.model.extra.build((None, 6))


@study_callback(
    "bank-of-variables-grows",
    "a list of tf.Variables that grows, and a dropout rate that a traced model has baked in",
    identical(),
)
class Bank(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.bank = []

    def on_train_batch_begin(self, batch, logs=None):
        dropout = self.model.layers[1]
        dropout.rate = min(0.5, dropout.rate + 0.02)

    def on_epoch_end(self, epoch, logs=None):
        kernel = self.model.layers[0].kernel
        self.bank.append(tf.Variable(kernel.value * 1.0))
        mean = tf.add_n([tf.convert_to_tensor(v) for v in self.bank]) / len(self.bank)
        kernel.assign(mean)


@study_callback(
    "late-traced-function",
    "a tf.function traced in training, with a Python number in it that goes on changing",
    refused("factor", "traced by TensorFlow during training"),
)
class LateTraced(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

        @tf.function
        def lowered(rate):
            return rate * self.factor

        self.lowered = lowered

    def on_train_batch_end(self, batch, logs=None):
        self.factor *= 0.98
        self.model.optimizer.learning_rate = float(self.lowered(tf.constant(0.1)))


@study_callback(
    "generators-of-tensorflow",
    "one in a tf.function's closure, the global one, and set_seed before ops with seeds of their own",
    identical(),
)
def drawing_callbacks(trial):
    own = tf.random.Generator.from_seed(4)
    tf.random.set_global_generator(tf.random.Generator.from_seed(6))

    @tf.function
    def draw():
        return own.uniform([], 0.02, 0.1)

    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                tf.random.set_seed(17)
            rate = draw() + tf.random.get_global_generator().uniform([], 0.02, 0.1)
            self.model.optimizer.learning_rate = float(rate + tf.random.uniform([], 0, 0.1, seed=2))

    return [Draws()]


def build_global_noise(trial):
    noise = keras.layers.Lambda(lambda x: x + keras.random.normal((1, 8), stddev=0.2))
    return stacked(noise)


@study_callback(
    "global-seeds-in-callback",
    "set_random_seed and clear_session at each epoch, and keras.random without a seed in a layer",
    identical(),
    model=build_global_noise,
)
class Reseeds(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        keras.utils.set_random_seed(100 + epoch)

    def on_epoch_end(self, epoch, logs=None):
        keras.backend.clear_session()
