"""State in data: functions of the epoch, from_generator, and a PyDataset's transform."""

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, FEATURES, SAMPLES, batches, samples
from registry import either, study_data
from sklearn.preprocessing import StandardScaler

from sweeper import Data

STEPS = SAMPLES // BATCH


@study_data(
    "epoch-function-global-numpy",
    "a function of the epoch that permutes by NumPy's global generator",
    either("epoch_of"),
)
def epoch_with_global_numpy(trial):
    x, y = samples()

    def epoch_of(epoch):
        order = np.random.permutation(len(x))
        return batches(x[order], y[order])

    return Data(train=epoch_of)


@study_data(
    "epoch-function-closure-generator",
    "a function of the epoch that draws from a generator of its closure, from epoch to epoch",
    either("epoch_of"),
)
def epoch_with_closure(trial):
    x, y = samples()
    rng = np.random.default_rng(1)

    def epoch_of(epoch):
        order = rng.permutation(len(x))
        return batches(x[order], y[order])

    return Data(train=epoch_of)


@study_data(
    "from-generator-global-numpy",
    "Dataset.from_generator whose generator permutes by NumPy's global generator",
    either("generator"),
)
def from_generator_global(trial):
    x, y = samples()

    def draw():
        for index in np.random.permutation(len(x)):
            yield x[index], y[index]

    signature = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(draw, output_signature=signature)
    return Data(train=dataset.batch(BATCH), steps_per_epoch=STEPS)


class Transformed(keras.utils.PyDataset):
    """A PyDataset that takes a transform, as in many repositories."""

    def __init__(self, x, y, transform, **options):
        super().__init__(**options)
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x) // BATCH

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        return self.transform(self.x[part]), self.y[part]


@study_data(
    "pydataset-transform-closure",
    "a cutout transform with a generator and a list in its closure",
    either("cutout"),
)
def closure_transform(trial):
    rng = np.random.default_rng(2)
    drawn = []

    def cutout(x):
        drawn.append(int(rng.integers(FEATURES)))
        x = x.copy()
        x[:, drawn[-1]] = 0
        return x * (1 + 0.001 * len(drawn))

    return Data(train=Transformed(*samples(), cutout))


@study_data(
    "scaler-fitted-on", "a StandardScaler that is fitted further with every batch", either("scaled")
)
def scaled_data(trial):
    scaler = StandardScaler()

    def scaled(epoch):
        for x, y in batches(*samples()):
            scaler.partial_fit(x)
            yield scaler.transform(x).astype("float32"), y

    return Data(train=scaled)
