"""TensorFlow's hidden state: eager random ops, random kernels in functions, late tracing."""

import keras
import tensorflow as tf
from pieces import compiled, layers_of
from registry import either, identical, study


class EagerStep(keras.Model):
    """Adds noise to its input in an eager step."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(layers_of())

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        x = x + tf.random.normal(tf.shape(x), stddev=0.1, seed=7)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


study(
    "eager-step-random-op-seed",
    "tf.random.normal with a seed in a train_step that runs eagerly",
    identical(),
    model=lambda trial: compiled(EagerStep(), run_eagerly=True),
)


def generator_callbacks(trial):
    generator = tf.random.Generator.from_seed(4)

    @tf.function
    def draw():
        return generator.uniform([], 0.02, 0.1)

    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = float(draw())

    return [Draws()]


study(
    "function-closure-generator",
    "a tf.random.Generator closed over by a tf.function, called by a callback",
    identical(),
    callbacks=generator_callbacks,
)


class GlobalGenerator(keras.callbacks.Callback):
    """Draws from TensorFlow's global generator."""

    def on_train_batch_begin(self, batch, logs=None):
        generator = tf.random.get_global_generator()
        self.model.optimizer.learning_rate = float(generator.uniform([], 0.02, 0.1))


def with_global_generator(trial):
    tf.random.set_global_generator(tf.random.Generator.from_seed(6))
    return [GlobalGenerator()]


study(
    "global-generator",
    "tf.random.get_global_generator() in a callback",
    either("generator"),
    callbacks=with_global_generator,
)


class LateTraced(keras.callbacks.Callback):
    """A function that is traced when it is first needed, and bakes in what stands there then."""

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


study(
    "late-traced-function",
    "a tf.function traced in training, with a Python number in it that goes on changing",
    either("factor"),
    callbacks=lambda trial: [LateTraced()],
)


class Clears(keras.callbacks.Callback):
    """Clears the session to save memory, as memory recipes advise."""

    def on_epoch_end(self, epoch, logs=None):
        keras.backend.clear_session()


def build_global_noise(trial):
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, "tanh")(inputs)
    x = keras.layers.Lambda(lambda t: t + keras.random.normal((1, 8), stddev=0.2))(x)
    return compiled(keras.Model(inputs, keras.layers.Dense(3, "softmax")(x)))


study(
    "clear-session-in-callback",
    "clear_session() at every epoch's end, and keras.random without a seed in a layer",
    either("clear_session", by=2),
    model=build_global_noise,
    callbacks=lambda trial: [Clears()],
)


class Reseeds(keras.callbacks.Callback):
    """Seeds everything anew at each epoch, as reproducibility recipes advise."""

    def on_epoch_begin(self, epoch, logs=None):
        keras.utils.set_random_seed(100 + epoch)


study(
    "set-random-seed-beside-keras-random",
    "set_random_seed in a callback, beside a layer that draws from keras.random without a seed",
    either("seed", by=2),
    model=build_global_noise,
    callbacks=lambda trial: [Reseeds()],
)


class ReseedsTensorFlow(keras.callbacks.Callback):
    """Seeds TensorFlow alone, in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            tf.random.set_seed(17)
        self.model.optimizer.learning_rate = 0.02 + float(tf.random.uniform([], 0, 0.1, seed=2))


study(
    "tf-set-seed-mid-epoch",
    "tf.random.set_seed in the middle of an epoch, and seeded eager ops around it",
    identical(),
    callbacks=lambda trial: [ReseedsTensorFlow()],
)
