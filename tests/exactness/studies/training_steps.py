"""Training steps in parts: what they hold, what they count, and who changes it."""

import keras
import tensorflow as tf
from pieces import CLASSES, FEATURES, layers_of
from registry import identical, study

from sweeper import EverySteps, TrainingStep


def build_plain(trial):
    return keras.Sequential(layers_of())


def settings(**options):
    return {
        "optimizer": keras.optimizers.Adam(0.02),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        **options,
    }


class Teacher(TrainingStep):
    """A network of the step's own, an average of the model's weights, and an optimizer of its own."""

    def __init__(self, trial):
        super().__init__(**settings())
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
        super().__init__(**settings())
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
