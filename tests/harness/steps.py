"""Models that are not compiled, and training steps for them."""

import keras
import tensorflow as tf
from trainings import digits

from sweeper import Data, TrainingStep


def uncompiled(**options):
    """As `trainings.mlp`, with a regularizer, and not compiled."""
    inputs = keras.Input((8,))
    x = keras.layers.Dense(16, "relu", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.3)(x)
    outputs = keras.layers.Dense(4, activation="softmax")(x)
    return keras.Model(inputs, outputs, **options)


def settings():
    """What `uncompiled` is compiled with, by hand or by a step."""
    return {
        "optimizer": keras.optimizers.RMSprop(
            keras.optimizers.schedules.CosineDecay(0.01, 40), momentum=0.5
        ),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }


def compiled(options=settings, build=uncompiled):
    model = build()
    model.compile(**options())
    return model


def default():
    return TrainingStep(**settings())


class GanStep(TrainingStep):
    """A network against a critic that is the step's own: two losses, two optimizers, in turn."""

    def __init__(self):
        super().__init__()
        dense = keras.layers.Dense
        self.critic = keras.Sequential([keras.Input((8,)), dense(1)])
        self.of_critic = keras.optimizers.Adam(0.02)
        self.of_maker = keras.optimizers.SGD(0.05, momentum=0.5)
        self.noise = keras.random.SeedGenerator(5)
        self.losses = {"critic": keras.metrics.Mean("critic"), "maker": keras.metrics.Mean("maker")}
        self.turns = keras.Variable(0, dtype="int64", trainable=False, name="turns")

    def critic_loss(self, real):
        generated = self.model(self.drawn(real), training=True)
        real_loss = tf.nn.softplus(-self.critic(real))
        return self.reduce(real_loss + tf.nn.softplus(self.critic(generated)))

    def maker_loss(self, real):
        generated = self.model(self.drawn(real), training=True)
        return self.reduce(tf.nn.softplus(-self.critic(generated)))

    def drawn(self, real):
        return keras.random.normal((tf.shape(real)[0], 3), seed=self.noise)

    def train_step(self, batch):
        real = self.inputs(batch)
        critic = self.critic.trainable_variables
        loss = self.minimize(lambda: self.critic_loss(real), critic, self.of_critic)
        self.losses["critic"].update_state(loss)
        loss = self.minimize(
            lambda: self.maker_loss(real), self.model.trainable_variables, self.of_maker
        )
        self.losses["maker"].update_state(loss)
        self.turns.assign_add(1)
        return {"loss": loss, **{m.name: m.result() for m in self.metrics}}

    def test_step(self, batch):
        return {"loss": self.maker_loss(self.inputs(batch))}


def maker():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])


class GroupsStep(TrainingStep):
    """An optimizer of its own for the last layer."""

    def __init__(self):
        super().__init__(**settings())
        self.of_head = keras.optimizers.Adam(0.05)

    def update(self, gradients, variables, values):
        del values
        pairs = list(zip(gradients, variables, strict=True))
        self.optimizer.apply_gradients(pairs[:-2])
        self.of_head.apply_gradients(pairs[-2:])


def two_outputs():
    """Not compiled: outputs by the names ``kind``, of four classes, and ``size``."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    first = keras.layers.Dense(4, "softmax", name="kind")(hidden)
    return keras.Model(inputs, [first, keras.layers.Dense(1, name="size")(hidden)])


def two_targets():
    x, y = digits()
    return Data(train=(x, {"kind": y, "size": x[:, :1]}), batch_size=14)


def light_settings():
    """As `settings`, with an optimizer that is quickly traced and has slots."""
    return {**settings(), "optimizer": keras.optimizers.SGD(0.05, momentum=0.5), "metrics": None}


def regularized():
    """Not compiled: a seed generator, and one layer that adds to the loss."""
    dense = keras.layers.Dense(4, "softmax", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), dense])


class NoisyStep(TrainingStep):
    """Draws from a generator, counts in a variable and averages weights, all its own."""

    def __init__(self):
        super().__init__(**light_settings())
        self.noise = keras.random.SeedGenerator(3)
        self.parts = {"count": keras.Variable(0.0, trainable=False, name="count")}
        self.norm = keras.metrics.Mean("norm")

    def make_batch(self, batch, *, training):
        if not training:
            return batch
        x, y = batch
        self.parts["count"].assign_add(1.0)
        scale = 0.01 * self.parts["count"]
        return x + scale * keras.random.normal(tf.shape(x), seed=self.noise), y

    def process_gradients(self, gradients, values):
        self.norm.update_state(tf.linalg.global_norm(gradients))
        return gradients


def eager():
    return TrainingStep(**light_settings(), run_eagerly=True)


def accumulating():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)
    return TrainingStep(**{**settings(), "optimizer": optimizer})
