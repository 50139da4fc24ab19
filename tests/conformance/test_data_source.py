"""What every data source promises to the training loop: from any step on, the same batches.

A source is a fixture parameter: a new kind is added to ``SOURCES``. Each is read through a `Reader`
as a training reads it, once whole, and once from the state that was captured at each step, in a fresh
object. For a pipeline, which is costly to make anew so often, those are by default the `telling_steps`
alone. The broken sources at the end are the suite's negative controls.
"""

import json
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from forked_programs import PROGRAM

# TensorFlow has no public function that ends determinism.
from tensorflow.python.framework import config
from tensorflow.python.ops import gen_dataset_ops

from sweeper.inspection.sorts import tells_its_state
from sweeper.train.data import DataSource, PartName, SourceOptions
from sweeper.train.sources import tfdata
from sweeper.train.sources.arrays import ArraySource
from sweeper.train.sources.epochs import EpochFunctionSource, GrainSource
from sweeper.train.sources.pydataset import PyDatasetSource
from sweeper.train.sources.runner import Reader
from sweeper.train.sources.tfdata import TfDataSource, draws_seeds_in_any_order, nodes
from sweeper.train.userstate import Roots, UserState

EPOCHS = 3
CHAINS = 4
LEGS = 3
"""How often a source is read with stops, and how many stops each time; a pipeline by default once."""
SEED = np.random.SeedSequence(5)


def silent(message):
    del message


# Arrays


def arrays(seed=SEED):
    x = {"a": np.arange(20.0), "b": np.arange(40).reshape(20, 2)}
    return ArraySource(
        (x, np.arange(20)), SourceOptions(PartName("train"), silent, seed), batch_size=6
    )


def ragged(seed=SEED):
    rows = tf.RaggedTensor.from_row_lengths(np.arange(40.0), [row % 5 for row in range(20)])
    return ArraySource(
        (rows, np.arange(20)), SourceOptions(PartName("train"), silent, seed), batch_size=6
    )


# PyDatasets


class Counting(keras.utils.PyDataset):
    """Batch i holds i; nothing in it ever changes."""

    def __init__(self, length=5, **options):
        super().__init__(**options)
        self.length = length

    @property
    def num_batches(self):
        return self.length

    def __getitem__(self, index):
        return np.full((2, 3), index), np.full(2, -index)


class Reordering(Counting):
    """Changes its own order when an epoch ends, and draws in its batches, from four generators."""

    def __init__(self, **options):
        super().__init__(**options)
        self.order = np.arange(5)
        self.files = np.array(["a", "b", "c", "d", "e"])
        self.generator = np.random.default_rng(0)
        self.own = random.Random(0)
        self.begun = []
        self.ended = 0

    def __getitem__(self, index):
        file = ord(self.files[self.order[index]])
        drawn = self.generator.random() + self.own.random() + len(self.begun) + self.ended
        return np.full((2, 3), float(self.order[index])), np.full(2, file + drawn)

    def on_epoch_begin(self):
        self.begun.append(self.ended)

    def on_epoch_end(self):
        self.ended += 1
        self.generator.shuffle(self.order)
        self.generator.shuffle(self.files)


class WithMethods(Reordering):
    def get_state(self):
        return {
            "order": self.order,
            "files": self.files.tolist(),
            "generator": self.generator.bit_generator.state,
            "own": self.own.getstate(),
            "counts": (self.begun, self.ended),
        }

    def set_state(self, state):
        self.order = state["order"]
        self.files = np.array(state["files"])
        self.generator.bit_generator.state = state["generator"]
        self.own.setstate(state["own"])
        self.begun, self.ended = state["counts"]


def pydataset(dataset, seed=None):
    return PyDatasetSource(dataset, SourceOptions(PartName("train"), silent, seed))


# tf.data


def numbers():
    return tf.data.Dataset.range(20)


def listed(count):
    return tf.data.Dataset.range(10 * count, 10 * count + 4)


def from_generator():
    def generate():
        yield from range(20)

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.int64))


def looked_up():
    keys = tf.range(20, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 3), 0)
    return numbers().shuffle(7).map(table.lookup).batch(6)


def taken_and_skipped():
    shuffled = numbers().shuffle(20)
    return shuffled.take(9).concatenate(shuffled.skip(9)).batch(4)


TF_DATA = {
    "in order": lambda: numbers().batch(6),
    "shuffled": lambda: (
        numbers().shuffle(8).map(lambda n: n * 2, num_parallel_calls=2).batch(6).prefetch(2)
    ),
    "shuffled alike": lambda: numbers().shuffle(8, reshuffle_each_iteration=False).batch(6),
    "shuffled twice": lambda: numbers().shuffle(8).batch(3).shuffle(3),
    "cached": lambda: numbers().cache().shuffle(8).batch(6),
    "cached shuffle": lambda: numbers().shuffle(8).cache().batch(6),
    "cached shuffle, whole batches": lambda: numbers().shuffle(8).cache().batch(5),
    "files, cached": lambda: (
        tf.data.Dataset.range(5)
        .interleave(listed, num_parallel_calls=2)
        .cache()
        .shuffle(8)
        .batch(6)
    ),
    "shuffled files": lambda: (
        tf.data.Dataset.range(5).shuffle(5).interleave(listed, cycle_length=2).shuffle(3).batch(6)
    ),
    "shuffled inside": lambda: (
        tf.data.Dataset.range(5).interleave(lambda n: listed(n).shuffle(4)).batch(6)
    ),
    "unknown length": lambda: numbers().shuffle(9).filter(lambda n: n % 3 > 0).batch(4),
    "numbered at random": lambda: tf.data.Dataset.zip(
        numbers(), tf.data.Dataset.random(rerandomize_each_iteration=True)
    ).batch(6),
    "zipped": lambda: tf.data.Dataset.zip(numbers(), numbers().shuffle(5)).batch(6),
    "looked up": looked_up,
    "generator": lambda: from_generator().shuffle(7).batch(6),
    "repeated twice": lambda: numbers().shuffle(20).repeat(2).batch(9),
    "concatenated": lambda: numbers().concatenate(numbers().shuffle(9)).batch(9),
    "taken and skipped": taken_and_skipped,
}


def short_last():
    """Not read ahead, so that a position is where it seems: a batch in which the shuffle runs dry."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return numbers().shuffle(8).batch(6).repeat().with_options(options)


def resampled():
    """Read one shuffle in several parts, one of which prefetches, so two threads draw its seeds."""
    numbers = tf.data.Dataset.range(32).shuffle(16).repeat()
    resampled = numbers.rejection_resample(lambda n: tf.cast(n % 4 == 0, tf.int32), [0.7, 0.3])
    return resampled.map(lambda _, n: n).batch(8)


TF_DATA_GOING_ON = {
    "resampled": resampled,
    "endless": lambda: numbers().shuffle(20).repeat().batch(5),
    "endless, batched first": lambda: numbers().shuffle(20).batch(5).repeat().shuffle(2),
    "endless, a short batch last": short_last,
    "endless generator": lambda: from_generator().shuffle(20).repeat().batch(5),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets(
        [numbers().repeat(), numbers().shuffle(4).repeat()], [0.5, 0.5]
    ).batch(5),
    "passes": lambda: numbers().shuffle(20).batch(3),
    "files, cached, endless": lambda: (
        tf.data.Dataset.range(5)
        .interleave(listed, cycle_length=2, num_parallel_calls=2)
        .cache()
        .shuffle(8)
        .repeat()
        .batch(6)
    ),
    "replayed passes": lambda: numbers().shuffle(20).cache().batch(3),
}


def tf_data(make):
    return TfDataSource(make(), SourceOptions(PartName("train"), silent))


# Functions of the epoch


def generated(epoch):
    draw = np.random.default_rng(epoch)
    for _ in range(3 + epoch):
        yield draw.random((2, 3)), draw.integers(0, 9, 2)


def function_of_epoch():
    return EpochFunctionSource(generated, SourceOptions(PartName("train"), silent))


# grain


def grain_map(endless=False):
    import grain

    dataset = grain.MapDataset.source(np.arange(20)).seed(3).shuffle()
    dataset = dataset.random_map(lambda n, rng: (np.float32([n]), rng.random(1))).batch(6)
    return grain_source(dataset.repeat() if endless else dataset)


def grain_iter():
    import grain

    dataset = grain.MapDataset.source(np.arange(20)).shuffle(seed=3).to_iter_dataset()
    return grain_source(dataset.filter(lambda n: n % 3 > 0).map(lambda n: np.array([n])).batch(4))


class Records:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"x": np.array([index])}


def grain_loader():
    import grain

    sampler = grain.samplers.IndexSampler(
        20, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1
    )
    batch = grain.transforms.Batch(batch_size=6)
    return grain_source(
        grain.DataLoader(data_source=Records(), sampler=sampler, operations=[batch])
    )


def grain_source(dataset):
    return GrainSource(dataset, SourceOptions(PartName("train"), silent))


@dataclass(frozen=True)
class Case:
    make: Callable[[], DataSource]
    steps_per_epoch: int | None = None


SOURCES = {
    "arrays": Case(arrays),
    "arrays, ragged": Case(ragged),
    "arrays in order": Case(lambda: arrays(None)),
    "arrays, 3 steps": Case(arrays, 3),
    "arrays, 7 steps": Case(arrays, 7),
    "PyDataset": Case(lambda: pydataset(Counting(), SEED)),
    "PyDataset, 3 steps": Case(lambda: pydataset(Counting(), SEED), 3),
    "PyDataset without end": Case(lambda: pydataset(Counting(None)), 4),
    "PyDataset with workers": Case(lambda: pydataset(Counting(9, workers=3), SEED)),
    "PyDataset that reorders": Case(lambda: pydataset(Reordering(), SEED)),
    "PyDataset with get_state": Case(lambda: pydataset(WithMethods(), SEED)),
    **{f"tf.data {n}": Case(lambda make=make: tf_data(make)) for n, make in TF_DATA.items()},
    **{
        f"tf.data {n}, 4 steps": Case(lambda make=make: tf_data(make), 4)
        for n, make in TF_DATA_GOING_ON.items()
    },
    "function of the epoch": Case(function_of_epoch),
    "function of the epoch, 4 steps": Case(function_of_epoch, 4),
    "grain MapDataset": Case(grain_map),
    "grain MapDataset without end": Case(lambda: grain_map(endless=True), 3),
    "grain IterDataset": Case(grain_iter),
    "grain IterDataset, 3 steps": Case(grain_iter, 3),
    "grain DataLoader": Case(grain_loader),
}


PIPELINES = [name for name in SOURCES if name.startswith(("tf.data", "grain"))]
"""The sources that are costly to make and to read."""

EVERY_STEP_BY_DEFAULT = "tf.data shuffled files"
"""The one pipeline of those: its shuffles, outside and inside, hold something else at every step."""


class WithItsDataset:
    """A source and what its dataset keeps, which a training captures for it."""

    def __init__(self, source):
        self._source = source
        exempt = (source._dataset,) if tells_its_state(source._dataset) else ()
        roots = Roots(keras.Sequential(), (), {"train": source._dataset}, exempt=exempt)
        self._kept = UserState(roots, frozenset, silent)
        self._kept.begin()

    def __getattr__(self, name):
        return getattr(self._source, name)

    def capture(self, name, tensors):
        state = self._kept.capture_data("train", tensors)
        return {"own": self._source.capture(name, tensors), "kept": state}

    def restore(self, name, saved, tensors):
        self._kept.restore_data("train", saved["kept"], tensors)
        self._source.restore(name, saved["own"], tensors)


@dataclass
class Run:
    """The batches of a training, its state at every step, and the batches before each state."""

    batches: list[str] = field(default_factory=list)
    states: list[tuple[int, int, str, dict[str, Any]]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


def read(case, state=None, *, capturing=True, epochs=EPOCHS):
    """Read ``epochs`` epochs in a fresh object; from ``state`` on, where given."""
    keras.utils.set_random_seed(11)
    source = case.make()
    if isinstance(source, PyDatasetSource):
        source = WithItsDataset(source)
    reader = Reader(source, case.steps_per_epoch, continues=True)
    run = Run()

    def note():
        if capturing:
            tensors = {}
            saved = json.dumps(reader.capture("data", tensors))
            run.states.append((epoch, step, saved, tensors))
            run.before.append(len(run.batches))

    epoch = step = 0
    if state is not None:
        epoch, step, saved, tensors = state
        reader.restore("data", json.loads(saved), tensors)
    while epoch < epochs:
        if step == 0:
            note()
            reader.begin_epoch(epoch)
        while reader.steps is None or step < reader.steps:
            if step:
                note()
            batch = reader.next(epoch, step)
            if batch is None:
                break
            run.batches.append(described(batch))
            step += 1
        if step:
            note()
        reader.end_epoch(epoch)
        note()
        run.batches.append("end of epoch")
        epoch += 1
        step = 0
    return run


def described(batch):
    return str(
        [np.asarray(part).tolist() for part in tf.nest.flatten(batch, expand_composites=True)]
    )


def every_step(run):
    return list(range(len(run.states)))


def telling_steps(run):
    """The very first; and of the second epoch, which has one before it and one after it, one in its
    middle, its last, and its end.

    With a limit of steps, its pass is the first one's, or begins inside it.
    """
    second = [index for index, state in enumerate(run.states) if state[0] == 1]
    return [0, second[(len(second) - 1) // 2], second[-2], second[-1]]


def check_it_goes_on(case, steps=every_step):
    whole = read(case)
    assert len(set(whole.batches)) > 3
    assert len(whole.states) >= len(whole.batches)
    for index in steps(whole):
        state = whole.states[index]
        position = whole.before[index]
        # The epoch after tells whether the source is right again beyond the pass it went on in.
        epochs = min(EPOCHS, state[0] + 2)
        rest = read(case, state, capturing=False, epochs=epochs).batches
        assert rest == whole.batches[position : position + len(rest)], state[:3]
        assert rest.count("end of epoch") == epochs - state[0]


def check_it_goes_on_however_often_it_is_stopped(case, chains=CHAINS):
    """Go on from a state that was captured in a run that had itself gone on, three times over."""
    whole = read(case)
    draw = random.Random(0)
    for _ in range(chains):
        run = whole
        position = 0
        where = []
        for _ in range(LEGS):
            # A leg that begins at the very end of the training has nothing to say.
            index = draw.randrange(0, max(1, len(run.states) - 2))
            state = run.states[index]
            position += run.before[index]
            where.append(state[:2])
            run = read(case, state)
            assert run.batches == whole.batches[position:], where


@pytest.fixture(autouse=True)
def _fresh_session():
    tf.config.experimental.enable_op_determinism()  # as in every training
    yield
    keras.backend.clear_session(free_memory=False)


def costly(*names):
    """Every source; ``names`` are read by request."""
    return [pytest.param(n, marks=pytest.mark.whole) if n in names else n for n in SOURCES]


TELLING = [
    "tf.data in order",
    "tf.data shuffled",
    "tf.data cached shuffle",
    "tf.data shuffled inside",
    "tf.data unknown length",
    "tf.data generator",
    "tf.data taken and skipped",
    "tf.data endless, 4 steps",
    "tf.data sampled, 4 steps",
    "tf.data passes, 4 steps",
    "grain MapDataset",
    "grain IterDataset, 3 steps",
    "grain DataLoader",
]
"""Pipelines of which each goes on by means of its own; the others, from every step by request."""
STOPPED_OFTEN = (
    "tf.data generator",
    "tf.data cached shuffle",
    "tf.data endless, 4 steps",
    "tf.data passes, 4 steps",
    "grain IterDataset, 3 steps",
)
"""One of each kind of position: counted, of a cache, saved, by its passes, and grain's own."""


@pytest.mark.parametrize("name", costly(*[n for n in PIPELINES if n != EVERY_STEP_BY_DEFAULT]))
def test_a_source_goes_on_from_every_step_as_if_it_had_not_stopped(name):
    check_it_goes_on(SOURCES[name])


@pytest.mark.parametrize("name", TELLING)
def test_a_pipeline_goes_on_from_its_telling_steps_as_if_it_had_not_stopped(name):
    check_it_goes_on(SOURCES[name], telling_steps)


@pytest.mark.parametrize("name", costly(*PIPELINES))
def test_a_source_that_went_on_goes_on_again(name):
    check_it_goes_on_however_often_it_is_stopped(SOURCES[name])


@pytest.mark.parametrize("name", STOPPED_OFTEN)
def test_a_pipeline_that_went_on_goes_on_again(name):
    check_it_goes_on_however_often_it_is_stopped(SOURCES[name], chains=1)


def test_an_endless_shuffle_is_reported_with_how_to_do_without_its_repeat():
    """And what it is told holds: the passes of the dataset itself are the same batches."""
    notices = []
    keras.utils.set_random_seed(1)  # as before a trial's data factory
    TfDataSource(short_last(), SourceOptions(PartName("train"), notices.append))
    assert len(notices) == 1
    assert "To avoid this, leave out the repeat()" in notices[0]
    notices.clear()
    finite = TF_DATA["shuffled"]()
    TfDataSource(finite, SourceOptions(PartName("train"), notices.append))
    assert notices == []
    without = Case(lambda: tf_data(lambda: numbers().shuffle(8).batch(6)), 4)
    assert read(Case(lambda: tf_data(short_last), 4)).batches == read(without).batches


@pytest.mark.parametrize("threads", [False, True], ids=["without threads", "with them"])
def test_one_shuffle_that_several_parts_read_has_one_order(monkeypatch, threads):
    if threads:
        monkeypatch.setattr(tfdata, "draws_seeds_in_any_order", lambda *_: False)
    notices = []

    def read_once():
        keras.utils.set_random_seed(1)
        source = TfDataSource(resampled(), SourceOptions(PartName("train"), notices.append))
        return [
            batch.numpy().tolist() for _, batch in zip(range(60), source.open(0, 0), strict=False)
        ]

    first = read_once()
    # The control needs two threads that are in each other's way, so it has several tries.
    assert all(read_once() == first for _ in range(200 if threads else 8)) != threads
    assert any("rejection_resample" in notice for notice in notices) != threads


def shuffled(count=16):
    return tf.data.Dataset.range(count).shuffle(8)


ONE_SHUFFLE = {
    "two views": lambda x: tf.data.Dataset.zip((x.map(abs, num_parallel_calls=2), x)),
    "one part after the other": lambda x: x.prefetch(2).concatenate(x),
    "one thread": lambda x: tf.data.Dataset.zip((x.repeat(2), x.repeat(2))).prefetch(2),
    "read ahead": lambda x: x.repeat().prefetch(2),
}


@pytest.mark.parametrize("form", ONE_SHUFFLE)
def test_threads_stay_where_they_open_no_shuffle_beside_another(form):
    dataset = ONE_SHUFFLE[form](shuffled())
    assert not draws_seeds_in_any_order(dataset, filter(tfdata.draws_new_seeds, nodes(dataset)))


TRANSFORMED = {
    "batch": lambda x: x.batch(2, num_parallel_calls=2).unbatch(),
    "cache": lambda x: x.cache(),
    "choose_from_datasets": lambda x: tf.data.Dataset.choose_from_datasets(
        [x], x.map(lambda n: n * 0)
    ),
    "concatenate": lambda x: x.concatenate(x),
    "copy_to_device": lambda x: x.apply(tf.data.experimental.copy_to_device("/cpu:0")),
    "enumerate": lambda x: x.enumerate().filter(lambda _, n: n > 2),
    "flat_map": lambda x: x.flat_map(tf.data.Dataset.from_tensors),
    "group_by_window": lambda x: x.group_by_window(lambda n: n % 2, lambda _, d: d.batch(2), 2),
    "interleave": lambda x: x.interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2),
    "map": lambda x: x.map(abs).map(abs, num_parallel_calls=2).ignore_errors().unique(),
    "padded_batch": lambda x: x.padded_batch(2).rebatch(3),
    "ragged_batch": lambda x: x.ragged_batch(2),
    "repeat": lambda x: x.repeat(2),
    "scan": lambda x: x.scan(np.int64(0), lambda state, n: (state, n)).take_while(lambda n: n > -1),
    "shuffle": lambda x: x.shuffle(4, reshuffle_each_iteration=False),
    "take": lambda x: x.take(9).skip(1).shard(2, 0).prefetch(2),
    "window": lambda x: x.window(2),
}


@pytest.mark.parametrize("form", TRANSFORMED)
def test_datasets_that_open_their_inputs_while_they_are_read_are_known(form):
    shuffle = shuffled()
    dataset = TRANSFORMED[form](shuffle)
    before = tfdata._state_of(iter(shuffle))

    def order_after(reading):
        """Return the next order of the shuffle, which tells how many iterators ``reading`` made of it."""
        iterator = iter(shuffle)
        gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, before)
        reading()
        return [int(number) for number in shuffle]

    opened = order_after(lambda: iter(dataset))
    opens_later = any(
        type(node).__name__ in tfdata._OPEN_LATER for node in nodes(dataset) if node is not shuffle
    )
    assert (order_after(lambda: list(dataset)) != opened) == opens_later


@pytest.mark.parametrize("opened", [True, False], ids=["source", "the dataset itself"])
def test_a_dataset_that_was_iterated_before_its_kernels_were_deterministic_keeps_its_order(opened):
    """As where a script looks at a batch before `sweeper.fit`. TensorFlow keeps the plan of the first iteration."""
    last = threading.Event()

    def slowest_first(number):
        if number == 0:
            last.wait(timeout=5)
        if number == 5:
            last.set()
        return number

    dataset = (
        tf.data.Dataset.range(6)
        .map(
            lambda number: tf.numpy_function(slowest_first, [number], tf.int64, stateful=True),
            num_parallel_calls=6,
            deterministic=False,
        )
        .map(lambda number: tf.reshape(number, [1]))
    )
    config.disable_op_determinism()
    try:
        list(dataset)
    finally:
        tf.config.experimental.enable_op_determinism()

    def in_order():
        last.clear()
        source = TfDataSource(dataset, SourceOptions("train", silent)) if opened else None
        batches = dataset if source is None else source.open(0, 0)
        return [int(batch[0]) for batch in batches] == list(range(6))

    # The control has several tries, because it needs a second thread, which a busy machine may not give in time.
    assert all(in_order() for _ in range(1 if opened else 6)) == opened


@pytest.mark.parametrize("name", ["arrays", "PyDataset", "tf.data shuffled", "grain MapDataset"])
def test_a_shuffled_source_has_another_order_in_every_epoch(name):
    epochs = "|".join(read(SOURCES[name]).batches).split("end of epoch")
    assert len(set(epochs[:EPOCHS])) == EPOCHS


@pytest.mark.parametrize(
    "name", ["PyDataset that reorders", "tf.data shuffled files", "tf.data zipped"]
)
def test_capturing_perturbs_nothing(name):
    case = SOURCES[name]
    assert read(case, capturing=False).batches == read(case).batches


FRESH = ["tf.data shuffled", "tf.data endless, 4 steps", "grain DataLoader"]


def test_a_position_holds_in_a_fresh_process(tmp_path):
    states = {}
    expected = {}
    for name in FRESH:
        whole = read(SOURCES[name])
        middle = len(whole.states) // 2
        states[name] = whole.states[middle]
        expected[name] = whole.batches[whole.before[middle] :]
    (tmp_path / "states").write_bytes(pickle.dumps(states))
    here = Path(__file__).parent
    path = [
        str(directory)
        for directory in (here, here.parent, here.parent / "harness", here.parents[1])
    ]
    program = tmp_path / "go_on.py"
    program.write_text(
        f"import sys\nsys.path[:0] = {path}\n"
        "import test_data_source\ntest_data_source.go_on(sys.argv[1])\n"
    )
    words = [sys.executable, *PROGRAM, str(program), str(tmp_path)]
    process = subprocess.run(words, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "batches").read_text()) == expected


def go_on(directory):
    """What the fresh process does: read on from the states in ``directory``."""
    from sweeper.support.tensorflow_start import configure_tensorflow

    configure_tensorflow(threads=1, deterministic=True)
    states = pickle.loads(Path(directory, "states").read_bytes())
    batches = {name: read(SOURCES[name], state).batches for name, state in states.items()}
    Path(directory, "batches").write_text(json.dumps(batches))


# Negative controls: each breaks one thing that the suite above relies on.


class IgnoresItsStep(ArraySource):
    def open(self, pass_, step):
        return super().open(pass_, 0)


class DropsNothing(TfDataSource):
    def drop(self, batches, step, shown):
        """A position that is lost, and not made up for."""


class SetsNoSeeds(TfDataSource):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._seeds.begin = lambda _: None


class CapturesWhatItRestored(PyDatasetSource):
    """Right after one stop, and wrong after the next."""

    restored: Any = None

    def restore(self, name, saved, tensors):
        super().restore(name, saved, tensors)
        self.restored = saved, dict(tensors)

    def capture(self, name, tensors):
        if self.restored is None:
            return super().capture(name, tensors)
        tensors.update(self.restored[1])
        return self.restored[0]


def broken(kind, dataset, steps=None):
    options = SourceOptions(PartName("train"), silent, SEED)
    size = {"batch_size": 6} if issubclass(kind, ArraySource) else {}
    return Case(lambda: kind(dataset(), options, **size), steps)


@pytest.mark.parametrize(
    "case",
    [
        broken(IgnoresItsStep, lambda: (np.arange(20.0),)),
        broken(DropsNothing, TF_DATA["shuffled"]),
        broken(SetsNoSeeds, TF_DATA["generator"]),
    ],
)
def test_control_a_source_that_breaks_the_promise_fails_the_suite(case):
    """At the telling steps already, and so at every step as well."""
    with pytest.raises(AssertionError):
        check_it_goes_on(case, telling_steps)


def test_control_a_source_that_goes_on_only_once_fails_the_suite():
    case = broken(CapturesWhatItRestored, Reordering)
    check_it_goes_on(case)
    with pytest.raises(AssertionError):
        check_it_goes_on_however_often_it_is_stopped(case, chains=1)
