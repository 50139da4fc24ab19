"""Models, data and callbacks over what has no plain form and never changes."""

import contextlib
import logging
import re
import threading
import types
import weakref

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, Wrapping, crossentropy, pairs, samples
from registry import identical, refused, study, study_callback, study_data, study_model
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from sweeper import Data


@study_model(
    "model-attributes-unchanging",
    "a model with a logger, a pattern and a namespace, traced",
    identical(),
)
class Configured(Wrapping):
    def __init__(self):
        super().__init__()
        self.log = logging.getLogger("model")
        self.pattern = re.compile("kernel")
        self.config = types.SimpleNamespace(names=np.array(["a", "b"]), scale=0.5)
        self.opened = contextlib.nullcontext()

    def call(self, x, training=False):
        with self.opened:
            return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.config.scale * self.compute_loss(x, y, self(x, training=True))
        chosen = [v for v in self.trainable_variables if self.pattern.search(v.path)]
        others = [v for v in self.trainable_variables if not self.pattern.search(v.path)]
        self.log.debug("%s", len(self.config.names))
        variables = [*chosen, *others]
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@study_data(
    "data-over-pipeline",
    "a function of the epoch over a fitted pipeline of scikit-learn",
    identical(),
)
def scaled_data(trial):
    x, y = samples()
    pipeline = make_pipeline(StandardScaler(), MinMaxScaler()).fit(x)

    def epoch_of(epoch):
        rng = np.random.default_rng([1, epoch])
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            yield pipeline.transform(x[chosen]).astype("float32"), y[chosen]

    return Data(train=epoch_of)


class Lazy(keras.utils.PyDataset):
    """Reads its samples from a memory-mapped file, by a table of names."""

    def __init__(self, path):
        super().__init__()
        x, y = samples()
        np.save(path, x)
        self.x = np.load(path, mmap_mode="r")
        self.labels = np.array([f"class-{v}" for v in y])
        self.lock = threading.Lock()
        self.parse = re.compile(r"\d+")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        with self.lock:
            y = [int(self.parse.search(name).group()) for name in self.labels[part]]
        return np.array(self.x[part]), np.array(y)


study(
    "pydataset-over-memmap",
    "a PyDataset over a memory-mapped file, with a lock, a pattern and an array of names",
    identical(),
    data=lambda trial: Data(train=Lazy(trial.directory / "x.npy")),
)


@study_data(
    "data-over-open-file-by-position",
    "a function of the epoch that seeks in an open file before it reads",
    refused("handle", "an open file", "where it is used"),
)
def by_handles(trial):
    x, y = samples()
    path = trial.directory / "x.bin"
    path.write_bytes(x.tobytes())
    handle = path.open("rb")

    def epoch_of(epoch):
        for start in range(0, len(x), BATCH):
            handle.seek(start * FEATURES * 4)
            part = np.frombuffer(handle.read(BATCH * FEATURES * 4), "float32")
            yield part.reshape(BATCH, FEATURES), y[start : start + BATCH]
        handle.seek(0)

    return Data(train=epoch_of)


class Many(keras.callbacks.Callback):
    """Reads from whatever the factory closed over."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        self.model.optimizer.learning_rate = 0.1 * self.scale() / (1 + 0.05 * self.steps)


class Kept:
    """What a weak dictionary leads to."""

    scale = 0.5


@study_callback(
    "closure-over-weak-dictionary",
    "a WeakValueDictionary in a closure, and its value in a default argument",
    identical(),
)
def with_weak(trial):
    kept = Kept()
    by_kept = weakref.WeakValueDictionary(kept=kept)

    def scale(keep=kept):
        return by_kept["kept"].scale

    return [Many(scale)]


@study_callback(
    "closure-over-dataset",
    "a callback over a held-out tf.data.Dataset, read whole at every epoch's end",
    identical(),
)
def with_dataset(trial):
    held_out = pairs().batch(20)

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            losses = [
                float(tf.reduce_mean(crossentropy(ys, self.model(xs)))) for xs, ys in held_out
            ]
            self.model.optimizer.learning_rate = 0.1 * min(1.0, sum(losses))

    return [Evaluates()]


@study_callback(
    "closure-over-compiled-reference",
    "a compiled reference model whose predict a callback calls, beside the model's own",
    identical(),
)
def with_predictions(trial):
    reference = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    reference.compile("adam", "mse")
    x = samples()[0]

    class Compares(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            gap = np.abs(reference.predict(x, verbose=0) - self.model.predict(x, verbose=0)).mean()
            self.model.optimizer.learning_rate = 0.05 + 0.02 * float(np.tanh(gap))

    return [Compares()]
