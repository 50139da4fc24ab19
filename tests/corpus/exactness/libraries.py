"""State in objects of installed libraries and of Keras: iterators, loaders, augmentations, estimators."""

import io
import sys
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, lowering, samples
from registry import identical, refused, study, study_data
from sklearn.linear_model import SGDRegressor

from sweeper import Data

sys.path.append(str(Path(__file__).parent / "site-packages"))

import installed_loaders
import torch

STEPS = SAMPLES // BATCH
Flows = keras.src.legacy.preprocessing.image


def images(count=SAMPLES):
    x, y = samples(count=count)
    return x.reshape((count, 1, 2, 3)), y


def flattened():
    return [keras.Input((1, 2, 3)), keras.layers.Flatten()]


def build_for_images(trial):
    dense = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Sequential([*flattened(), keras.layers.Dropout(0.2), dense])
    model.compile(keras.optimizers.SGD(0.1, 0.9), "sparse_categorical_crossentropy")
    return model


@study_data(
    "keras-image-flows",
    "two image iterators of Keras that shuffle after each epoch and augment, one of them with a seed",
    identical(),
    model=build_for_images,
    objective="val_loss",
)
def flows(trial):
    augmented = Flows.ImageDataGenerator(
        horizontal_flip=True, channel_shift_range=0.3, featurewise_center=True
    )
    x, y = images()
    augmented.fit(x)
    seeded = Flows.ImageDataGenerator(vertical_flip=True, brightness_range=None, rescale=0.5)
    return Data(
        train=augmented.flow(x, y, batch_size=BATCH),
        validation=seeded.flow(*images(16), batch_size=BATCH, seed=3),
    )


@study_data(
    "keras-image-flow-as-iterator",
    "an image iterator of Keras as the batches of a function of the epoch, which advances its generator",
    refused("index_generator", "is a generator"),
    model=build_for_images,
)
def flow_as_iterator(trial):
    flow = Flows.ImageDataGenerator().flow(*images(), batch_size=BATCH)
    return Data(train=lambda epoch: (next(flow) for _ in range(STEPS)))


class Augmented(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.noise = installed_loaders.Noise(7)

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        x, y = samples()
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.noise(x[rows]), y[rows]


@study_data(
    "library-augmentation",
    "an augmentation of a library, with a generator of its own and a count",
    identical(),
)
def augmentation(trial):
    return Data(train=Augmented())


def of_loader(loader):
    signature = (tf.TensorSpec((None, FEATURES), tf.float32), tf.TensorSpec((None,), tf.int64))
    return tf.data.Dataset.from_generator(lambda: loader, output_signature=signature)


@study_data(
    "library-loader-in-from-generator",
    "a loader of a library that goes on for ever, read for ever by one pass of from_generator",
    identical(),
)
def library_loader(trial):
    return Data(train=of_loader(installed_loaders.Loader(*samples(), BATCH)), steps_per_epoch=STEPS)


@study_data(
    "library-loader-for-validation",
    "a loader of a library that goes on for ever, which each validation goes on reading",
    refused("_running", "is a generator", by=2),
    objective="val_loss",
)
def library_loader_for_validation(trial):
    loader = of_loader(installed_loaders.Loader(*samples(4), BATCH))
    return Data(train=samples(), batch_size=BATCH, validation=loader, validation_steps=2)


@study_data(
    "library-loader-in-a-function",
    "a loader of a library that a function of the epoch goes on reading",
    refused("_running", "is a generator"),
)
def library_loader_in_a_function(trial):
    loader = installed_loaders.Loader(*samples(), BATCH)
    return Data(train=lambda epoch: (next(loader) for _ in range(STEPS)))


class Rows:
    """Data of the user's, which changes with what is read, in a loader of a library."""

    def __init__(self):
        self.x, self.y = samples()
        self.reads = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index] + np.float32(0.001) * (self.reads % 7), self.y[index]


@study_data(
    "torch-loader",
    "a loader of a library named torch, with data of the user's that change as they are read",
    identical(),
)
def torch_loader(trial):
    loader = torch.DataLoader(Rows(), BATCH)
    return Data(train=lambda epoch: ((np.stack(x), np.stack(y)) for x, y in loader))


def drawn(iterator, loss):
    return next(iterator)


study(
    "library-iterator",
    "an iterator of a library whose position is a number",
    identical(),
    callbacks=lowering(
        lambda: installed_loaders.Position([0.1, 0.5, 0.2, 0.9, 0.4, 0.3, 0.7]), drawn
    ),
)

study(
    "zipped-library-iterators",
    "a zip over a map over iterators of a library",
    identical(),
    callbacks=lowering(
        lambda: zip(
            map(abs, installed_loaders.Position([0.1, 0.5, 0.2])),
            installed_loaders.Position([0.9, 0.4]),
            strict=False,
        ),
        lambda pairs, loss: sum(next(pairs)),
    ),
)


RATES = "\n".join(f"0.{number * number % 97}" for number in range(80))


def read_chunk(reader, loss):
    return float(next(reader)["rate"].sum())


study(
    "pandas-reader",
    "a reader of pandas that returns a file in chunks",
    refused("Lowers.thing", "an iterator of a library", "make a new one where it is used"),
    callbacks=lowering(lambda: pd.read_csv(io.StringIO("rate\n" + RATES), chunksize=2), read_chunk),
)


def regressed_on(estimator, loss):
    return estimator.partial_fit([[loss]], [loss * 2.0]).coef_[0]


study(
    "estimator-of-scikit-learn",
    "an estimator of scikit-learn that each batch fits on, and that makes an object written in C",
    identical(),
    callbacks=lowering(lambda: SGDRegressor(random_state=3), regressed_on),
)


def rounded(context, loss):
    context.calls += 1
    context.prec += 1
    return float(context.create_decimal_from_float(loss * context.calls))


study(
    "attributes-and-state-in-c",
    "an object of a library's subclass of a class written in C, which changes both parts of its state",
    refused("Lowers.thing", "no API can read"),
    callbacks=lowering(installed_loaders.Rounding, rounded),
)
