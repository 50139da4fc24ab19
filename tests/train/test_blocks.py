"""Where a block of steps begins and ends changes no result: blocks grow with the clock.

Every kind of data is trained on with blocks of one step and with the longest there are.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitted import fitted
from trainings import HOOKS, Recorder, Watcher, digits, plan, untuned

from sweeper import Data, EverySteps
from sweeper.checkpoint.reading import load_newest
from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.data import PartName, SourceOptions
from sweeper.train.loop import loop as loop_module
from sweeper.train.loop import runners as runners_module
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.sources import tfdata as tfdata_module
from sweeper.train.sources.runner import Reader

X, Y = digits(96)
SHORTEST = 1e-3
LONGEST = 10.0
"""Seconds: a block of one step, and one as long as an epoch after a few."""


def small(**options):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", **options)
    return model


def slices():
    return untuned(tf.data.Dataset.from_tensor_slices((X, Y)))


def numbers():
    return untuned(tf.data.Dataset.range(4))


def files():
    """Four files, read two at a time."""
    return numbers().interleave(
        lambda number: slices().shard(4, number), cycle_length=2, num_parallel_calls=2
    )


def pipeline():
    return files().cache().shuffle(40, seed=3).repeat().batch(4).prefetch(30)


def positive(_x, y):
    return y >= 0


class Batches(keras.utils.PyDataset):
    num_batches = 24

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


def of_epoch(epoch):
    draw = np.random.default_rng(epoch)
    for _ in range(24):
        rows = draw.integers(0, len(X), 4)
        yield X[rows], Y[rows]


def grain_data():
    import grain

    samples = grain.MapDataset.range(len(X)).seed(1).shuffle()
    return samples.map(lambda i: (X[i], Y[i])).batch(4)


SOURCES = {
    "arrays": lambda: (X, Y),
    "unknown length": lambda: slices().shuffle(40).filter(positive).batch(4),
    "shuffled, repeated": lambda: slices().shuffle(40).repeat(3).batch(4).prefetch(30),
    "shuffled, cached": lambda: slices().shuffle(40).cache().batch(4),
    "endless": lambda: slices().repeat().batch(4),
    "endless, cached": lambda: slices().shuffle(40).cache().repeat().batch(4),
    "pipeline": pipeline,
    "PyDataset": Batches,
    "function of the epoch": lambda: of_epoch,
    "grain": grain_data,
}
"""One for each way to read; `conformance/test_data_source.py` has all orders."""

WHOLE = [name for name in SOURCES if name not in ("endless", "endless, cached", "pipeline")]


def by_default(*names, among=SOURCES):
    """All names, of which the others are for the whole suite."""
    return [
        name if name in names else pytest.param(name, marks=pytest.mark.whole) for name in among
    ]


class Hasty(Watcher):
    """Takes a snapshot every 7 steps, whatever a block is."""

    def __init__(self, directory, **options):
        super().__init__(directory, snapshot_at=self._every_seventh, **options)

    @staticmethod
    def _every_seventh(position):
        return position.step > 0 and position.step % 7 == 0

    def steps_until_due(self, position):
        return min(super().steps_until_due(position), 7 - position.step % 7)


def trained(data, seconds, directory, *, stop_at=None, **options):
    """What a training with blocks of ``seconds`` comes to: history, digest and snapshots."""
    options = {"model": small, "epochs": 2, **options}
    watcher = Hasty(directory, stop_at=stop_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners_module, "_BLOCK_SECONDS", seconds)
        loaded = load_newest([directory], pytest.fail)
        loop = TrainingLoop(plan(data=data, **options), watcher, notify=lambda _: None)
        try:
            loop.run(loaded)
        except loop_module.Stopped:
            assert stop_at is not None
    return loop.history.history, watcher.digest, [path.name for path in watcher.kept]


def short_and_long(data, directory, **options):
    return [
        trained(data, seconds, directory / str(seconds), **options)
        for seconds in (SHORTEST, LONGEST)
    ]


def check(data, directory, **options):
    short, long = short_and_long(data, directory, **options)
    assert short == long


def both(name, train, validation):
    return Data(
        train=SOURCES[name](),
        validation=SOURCES[name](),
        batch_size=4,
        validation_batch_size=4,
        steps_per_epoch=train,
        validation_steps=validation,
    )


# Each way to read, here and below: arrays, TensorFlow's iterator with its buffers and with an end that is
# not known, Python's by number and in order.
@pytest.mark.parametrize("name", by_default("pipeline"))
def test_blocks_of_any_length_give_the_same_with_a_limit_of_steps(name, tmp_path):
    check(lambda: both(name, 17, 11), tmp_path)


@pytest.mark.parametrize("name", by_default("unknown length", among=WHOLE))
def test_blocks_of_any_length_give_the_same_without_a_limit(name, tmp_path):
    check(lambda: both(name, None, None), tmp_path)


@pytest.mark.parametrize(
    "name",
    by_default(
        "shuffled, cached",
        among=["pipeline", "shuffled, repeated", "shuffled, cached", "endless, cached"],
    ),
)
def test_a_limited_validation_is_the_same_after_a_resume(name, tmp_path):
    def part(seconds, directory, **options):
        return trained(
            lambda: both(name, 17, 11), seconds, tmp_path / directory, epochs=3, **options
        )

    whole = part(LONGEST, "whole")
    part(SHORTEST, "stopped", stop_at=20)
    part(LONGEST, "stopped", stop_at=40)
    assert part(SHORTEST, "stopped")[:2] == whole[:2]


class EndsItself(keras.Model):
    """Asks for an end in its own steps, eagerly or through ``tf.py_function``."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(4, activation="softmax")
        self.seen = 0

    def call(self, x):
        return self.layer(x)

    def count(self):
        self.seen += 1
        self.stop_evaluating = self.seen % 3 == 0
        self.stop_training = self.seen == 20
        return np.float32(0)

    def train_step(self, data):
        logs = super().train_step(data)
        tf.py_function(self.count, [], tf.float32)
        return logs

    def test_step(self, data):
        logs = super().test_step(data)
        tf.py_function(self.count, [], tf.float32)
        return logs


@pytest.mark.parametrize("eagerly", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_a_step_that_asks_for_an_end_is_obeyed_at_once(eagerly, tmp_path):
    def model():
        built = EndsItself()
        built.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=eagerly)
        return built

    check(lambda: both("shuffled, cached", 13, None), tmp_path, model=model)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["unknown length", "function of the epoch"])
def test_no_batch_begins_beyond_a_limit(name, tmp_path):
    recorder = Recorder([hook for hook in HOOKS if "batch" in hook])
    trained(lambda: both(name, 5, 3), LONGEST, tmp_path, callbacks=lambda: [recorder])
    assert len(recorder.calls) == 2 * 16


def test_calls_at_steps_do_not_part_steps_that_nobody_wants():
    parts = []
    calls = []

    def run(epoch, begin, end):
        parts.append((begin, end))
        return end - begin, {}

    every_fifth = EverySteps(5, lambda step, logs, model: calls.append(step))
    blocks = runners_module.Blocks(SimpleNamespace(stop_training=False), [every_fifth])
    for epoch in range(2):
        assert blocks.run(SimpleNamespace(run=run), 7 * epoch, epoch, 0, 7)[0] == 7
    assert parts == [(0, 5), (5, 7), (0, 3), (3, 7)]
    assert calls == [5, 10]


# What is refused, or said


def test_a_function_that_reads_a_shuffled_dataset_from_outside_is_refused():
    def read(**options):
        base = slices().shuffle(40, seed=1, **options)
        parts = numbers().interleave(lambda i: base.shard(4, i), cycle_length=2)
        return fitted(small, lambda: Data(train=parts.batch(4)), epochs=1)

    with pytest.raises(UncapturableError, match=r"InterleaveDataset.*ShuffleDatasetV3"):
        read()
    read(reshuffle_each_iteration=False)


def test_an_interleave_sized_by_the_processors_resumes_where_there_are_as_many(
    tmp_path, monkeypatch
):
    def data():
        parts = numbers().interleave(lambda i: slices().shard(4, i))
        return Data(train=parts.batch(4))

    notices = []
    fitted(small, data, epochs=1, checkpoints=tmp_path, notice=notices.append)
    assert "interleave(…) without cycle_length" in notices[0]
    monkeypatch.setattr(tfdata_module, "usable_cores", lambda: 997)
    with pytest.raises(RestoreError, match=r"would read 997 here.*cycle_length"):
        fitted(small, data, checkpoints=tmp_path, notice=notices.append)


# Negative controls: blocks that are not held within an epoch, and seeds that reading leaves behind.


class PastItsLimit(Reader):
    limit = None

    def within(self, step):
        return step


@pytest.mark.parametrize(
    "name", by_default("pipeline", among=["unknown length", "endless", "pipeline"])
)
def test_control_a_reader_that_is_read_past_its_limit_is_noticed(name, tmp_path, monkeypatch):
    def reader(source, *arguments, **options):
        kind = PastItsLimit if source.name.use == "validation" else Reader
        return kind(source, *arguments, **options)

    monkeypatch.setattr(runners_module, "Reader", reader)

    def data():
        return Data(train=(X, Y), validation=SOURCES[name](), validation_steps=11)

    short, long = short_and_long(data, tmp_path)
    assert short != long


def test_control_seeds_that_are_not_put_back_are_noticed(tmp_path, monkeypatch):
    """How far TensorFlow has read ahead cannot be had at will; two lengths of reading can."""

    def orders(rewound):
        last_batches = []
        for ahead in (1, 30):
            keras.utils.set_random_seed(1)
            dataset = slices().shuffle(40, seed=3).repeat().batch(4).prefetch(ahead)
            source = tfdata_module.TfDataSource(
                dataset, SourceOptions(PartName("validation"), pytest.fail), limit=20
            )
            if not rewound:
                source._seeds.begin = lambda _: None
            reader = Reader(source, 20, continues=False)
            for epoch in range(2):
                batches = [reader.next(epoch, step) for step in range(20)]
                reader.end_epoch(epoch)
            last_batches.append([batch[1].numpy().tolist() for batch in batches])
        return last_batches

    rewound = orders(rewound=True)
    continued = orders(rewound=False)
    assert rewound[0] == rewound[1]
    assert continued[0] != continued[1]
