"""A variational autoencoder of sequences, with two schedules per batch that callbacks hold.

A digit is read as a sequence of eight rows of eight pixels. What is trained is the reconstruction
and, weighted by ``beta``, the divergence of the code from a normal distribution; ``beta`` rises and
the learning rate falls with every batch. Both schedules count batches in a plain attribute of a
callback, and a killed trial goes on at the exact batch. Half a minute at most on one core::

    sweeper run studies/sequence_vae.py
"""

from __future__ import annotations

from typing import Any

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Every, Study, TrainingStep, Trial
from sweeper.gradients import clip_by_global_norm, nan_to_zero

ROWS, PIXELS, CODE = 8, 8, 6
BATCH = 64


@keras.saving.register_keras_serializable("sequence_vae")
class Sampling(keras.layers.Layer):
    """A code drawn around its mean; the mean itself when nothing is trained."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed
        self.noise = keras.random.SeedGenerator(seed)

    def get_config(self) -> dict[str, Any]:
        """What a ``.keras`` file needs to make it again."""
        return {**super().get_config(), "seed": self.seed}

    def call(self, mean: Any, log_variance: Any, training: bool = False) -> Any:
        if not training:
            return mean
        drawn = keras.random.normal(keras.ops.shape(mean), seed=self.noise)
        return mean + keras.ops.exp(0.5 * log_variance) * drawn


def build_model(trial: Trial) -> keras.Model:
    """Encoder and decoder, a recurrent layer each; nothing is compiled here."""
    units = trial.suggest_int("units", 24, 48, step=24)
    rows = keras.Input((ROWS, PIXELS))
    read = keras.layers.GRU(units)(rows)
    mean = keras.layers.Dense(CODE, name="mean")(read)
    log_variance = keras.layers.Dense(CODE, name="log_variance")(read)
    code = Sampling(trial.seed, name="code")(mean, log_variance)
    repeated = keras.layers.RepeatVector(ROWS)(keras.layers.Dense(units, "tanh")(code))
    written = keras.layers.GRU(units, return_sequences=True)(repeated)
    pixels = keras.layers.TimeDistributed(keras.layers.Dense(PIXELS, "sigmoid"))(written)
    return keras.Model(rows, {"pixels": pixels, "mean": mean, "log_variance": log_variance})


class VaeStep(TrainingStep):
    """Reconstruction and divergence; the target is the input itself.

    Attributes:
        beta: The weight of the divergence; a callback raises it.
        reconstruction, divergence, bound: Means over an epoch. The bound has the divergence's full
            weight, so that trials and epochs compare, whatever ``beta`` is.
    """

    def __init__(self, trial: Trial) -> None:
        del trial
        super().__init__(
            optimizer=keras.optimizers.Adam(), gradients=[nan_to_zero, clip_by_global_norm(20.0)]
        )
        self.beta = keras.Variable(0.0, trainable=False, name="beta")
        self.reconstruction = keras.metrics.Mean("reconstruction")
        self.divergence = keras.metrics.Mean("divergence")
        self.bound = keras.metrics.Mean("bound")

    def loss_inputs(self, batch: Any, outputs: Any) -> tuple[Any, Any]:
        """The input is the target."""
        return self.inputs(batch), outputs

    def per_example_loss(self, targets: Any, predictions: Any) -> Any:
        """The squared error over all pixels, and the divergence."""
        ops = keras.ops
        mean, log_variance = predictions["mean"], predictions["log_variance"]
        squared = ops.sum(ops.square(targets - predictions["pixels"]), axis=(1, 2))
        divergence = 0.5 * ops.sum(
            ops.square(mean) + ops.exp(log_variance) - log_variance - 1.0, axis=1
        )
        self.reconstruction.update_state(squared)
        self.divergence.update_state(divergence)
        self.bound.update_state(squared + divergence)
        return squared + self.beta * divergence


class Annealing(keras.callbacks.Callback):
    """Raises ``beta`` from 0 to ``most`` over so many batches; it counts them itself."""

    def __init__(self, most: float, batches: int) -> None:
        super().__init__()
        self.most = most
        self.batches = batches
        self.seen = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        del batch, logs
        beta = self.most * min(1.0, self.seen / self.batches)
        self.model.training_step.beta.assign(beta)
        self.seen += 1


class LearningRatePerBatch(keras.callbacks.Callback):
    """Lowers the learning rate by a constant factor with every batch, down to ``least``."""

    def __init__(self, first: float, least: float, factor: float) -> None:
        super().__init__()
        self.first = first
        self.least = least
        self.factor = factor
        self.counter = 0
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        del batch, logs
        rate = max(self.least, self.first * self.factor**self.counter)
        self.model.optimizer.learning_rate = rate
        self.rates.append(rate)
        self.counter += 1


def build_callbacks(trial: Trial) -> list[keras.callbacks.Callback]:
    """Both schedules, made anew for every trial."""
    first = trial.suggest_float("learning_rate", 3e-3, 2e-2, log=True)
    return [Annealing(0.5, batches=60), LearningRatePerBatch(first, 1e-3, factor=0.995)]


def load_data(_trial: Trial) -> Data:
    """Pixels scaled to 0..1, as eight rows; a fifth of the digits for validation."""
    pixels, _ = load_digits(return_X_y=True)
    rows = (pixels / 16.0).astype("float32").reshape(-1, ROWS, PIXELS)
    train, validation = train_test_split(rows, test_size=0.2, random_state=0)
    return Data(train=(train,), validation=(validation,), batch_size=BATCH)


study = Study(
    name="sequence-vae",
    model=build_model,
    step=VaeStep,
    data=load_data,
    callbacks=build_callbacks,
    objective="val_bound",
    direction="minimize",
    epochs=6,
    trials=2,
    sampler="random",
    checkpoint_every=Every(steps=10),
    seed=0,
)
