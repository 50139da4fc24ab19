"""Callbacks as scripts and packages publish them: averaging, snapshots, curricula, noise, meters, output."""

import collections
import time

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, build_eager, load_validated, samples
from registry import identical, refused, study, study_callback, study_data

from sweeper import Data

study("plain", "dropout, momentum and nothing else", identical())


@study_callback(
    "callback-with-a-list",
    "a callback keeps the losses in a list of its own and sets the rate by them",
    identical(),
    data=load_validated,
)
class RateByLosses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.1 / (1 + sum(self.seen))


@study_callback(
    "bound-methods-of-a-list",
    "a callback keeps nothing of its list but the methods that append to it and read it",
    identical(),
    data=load_validated,
)
class RateByMethods(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        losses = collections.deque(maxlen=3)
        self.add, self.count, self.last = losses.append, losses.__len__, losses.__getitem__

    def on_train_batch_end(self, batch, logs=None):
        self.add(logs["loss"])
        self.model.optimizer.learning_rate = 0.1 / (1 + self.count() + self.last(0))


@study_callback(
    "ema-for-validation",
    "averaged weights in variables made in on_train_begin, swapped in for validation",
    identical(),
    data=load_validated,
    objective="val_loss",
)
class EMA(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.shadow = [tf.Variable(w, trainable=False) for w in self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None):
        for shadow, weight in zip(self.shadow, self.model.get_weights(), strict=True):
            shadow.assign(0.9 * shadow + 0.1 * weight)

    def on_test_begin(self, logs=None):
        self.backup = self.model.get_weights()
        self.model.set_weights([s.numpy() for s in self.shadow])

    def on_test_end(self, logs=None):
        self.model.set_weights(self.backup)


@study_callback(
    "objective-of-a-callback",
    "a ranking of the validation samples, which the callback puts into the logs as the objective",
    identical(),
    data=load_validated,
    objective="val_roc_auc",
)
class RocAuc(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        x, y = load_validated(None).validation
        ranks = np.argsort(np.argsort(self.model(x).numpy()[:, 0]))
        above = np.ravel(y) > np.median(y)
        logs["val_roc_auc"] = np.float32(ranks[above].mean() - ranks[~above].mean())


@study_callback(
    "snapshot-ensemble",
    "a list of cloned models that grows, whose mean goes back into the model",
    refused("members", "made during training", by=2),
)
class Snapshots(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.members = []

    def on_epoch_end(self, epoch, logs=None):
        if epoch % 2 == 0:
            member = keras.models.clone_model(self.model)
            member.set_weights(self.model.get_weights())
            self.members.append(member)
        mean = np.mean([m.get_weights()[0] for m in self.members], axis=0)
        self.model.layers[0].kernel.assign(0.5 * (self.model.layers[0].kernel.value + mean))


class Curriculum:
    """Says how much of the data a function of the epoch gives, and a callback moves it."""

    def __init__(self):
        self.share = 0.4
        self.patience = collections.deque(maxlen=2)


class Moves(keras.callbacks.Callback):
    """Gives more data when the loss no longer falls."""

    def __init__(self, curriculum):
        super().__init__()
        self.curriculum = curriculum

    def on_epoch_end(self, epoch, logs=None):
        self.curriculum.patience.append(logs["loss"])
        if len(self.curriculum.patience) == 2 and self.curriculum.share < 1:
            self.curriculum.share += 0.3


_pacing = {}


@study_data(
    "curriculum-by-callback",
    "a curriculum object in the data function's closure, moved by a callback",
    identical(),
    callbacks=lambda trial: [Moves(_pacing["curriculum"])],
)
def paced_data(trial):
    curriculum = _pacing["curriculum"] = Curriculum()
    x, y = samples()
    easy = np.argsort(np.abs(x).sum(axis=1))

    def paced(epoch):
        rng = np.random.default_rng(epoch)
        pool = easy[: int(len(x) * curriculum.share)]
        for _ in range(5):
            rows = rng.choice(pool, BATCH)
            yield x[rows], y[rows]

    return Data(train=paced)


@study_callback(
    "annealed-weight-noise",
    "noise on the weights from a Philox generator and from NumPy's global one",
    identical(),
)
class NoisyGradients(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rng = np.random.Generator(np.random.Philox(3))
        self.scale = 0.05

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        noise = self.rng.normal(0, self.scale, kernel.shape) + np.random.normal(0, 1e-3)
        kernel.assign(kernel.value + noise.astype("float32"))
        self.scale *= 0.95


class Bar:
    """A progress bar that prints what it is told."""

    def __init__(self, trial):
        self.file = (trial.directory / "bar.txt").open("a+")
        self.done = 0

    def update(self, message):
        self.done += 1
        self.file.write(f"{self.done}: {message}\n")
        self.file.flush()


class Tells(keras.callbacks.Callback):
    """Tells a bar of every batch."""

    def __init__(self, bar):
        super().__init__()
        self.bar = bar

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update(f"batch {batch}")


@study_callback(
    "output-only",
    "a progress bar with an open file, and a closure's dictionary, given to trial.output_only",
    identical(),
)
def output(trial):
    written = trial.output_only({"lines": 0, "seen": object()})

    def note(batch, logs):
        written["lines"] += 1
        written["seen"] = object()

    note_lines = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    return [Tells(trial.output_only(Bar(trial))), note_lines]


study(
    "bar-without-output-only",
    "the same bar, which nothing exempts: its file moves on",
    refused("bar", "output_only"),
    callbacks=lambda trial: [Tells(Bar(trial))],
)


@study_callback(
    "time-history", "a callback that keeps how long each batch took", identical(), clocks=True
)
class TimeHistory(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter() - self.began)


class ByBatches(keras.callbacks.Callback):
    """Tries rates before the training, and trains, tests and predicts on batches of its own during it."""

    def on_train_begin(self, logs=None):
        model = self.model
        x, y = samples()
        weights = model.get_weights()
        losses = []
        for rate in (0.01, 0.1, 0.3):
            model.optimizer.learning_rate = rate
            losses.append(
                float(model.train_on_batch(x[:BATCH], y[:BATCH], return_dict=True)["loss"])
            )
        model.set_weights(weights)
        model.optimizer.learning_rate = 0.05 + 0.01 * losses[-1]

    def on_epoch_end(self, epoch, logs=None):
        model = self.model
        x, y = samples()
        if epoch == 1:
            model.train_on_batch(x[BATCH : 2 * BATCH], y[BATCH : 2 * BATCH])
        tested = model.test_on_batch(x, y, return_dict=True)["loss"]
        evaluated = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
        used = (
            float(tested)
            + evaluated
            + model.predict_on_batch(x)[0, 0]
            + model.predict(x, verbose=0)[1, 1]
        )
        model.optimizer.learning_rate = 0.1 / (1 + used)


study(
    "train-on-batch",
    "train_on_batch in on_train_begin and later, with test_on_batch, evaluate and predictions",
    identical(),
    callbacks=lambda trial: [ByBatches()],
    data=load_validated,
)
study(
    "train-on-batch-eagerly",
    "the same with a model that runs eagerly",
    identical(),
    model=build_eager,
    callbacks=lambda trial: [ByBatches()],
)


@study_callback(
    "train-function-made-again",
    "a callback unfreezes a layer and makes Keras's train function again, which fit would go on with",
    refused("make_train_function", "was replaced during training", by=2),
)
class MakesAgain(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.layers[0].trainable = False
            self.model.make_train_function(force=True)
