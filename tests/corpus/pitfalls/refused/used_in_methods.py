"""A layer of the module that a layer's call uses, and an optimizer of it that a training step applies."""

import keras
import tensorflow as tf
from small_study import compiled, study_of

projection = keras.layers.Dense(4, name="projection")
adversary = keras.optimizers.SGD(0.1, name="adversary")


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(projection(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        adversary.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


def build_model(trial):
    model = Adversarial()
    model.build((None, 8))
    return compiled(model)


study = study_of(build_model)
