"""What callbacks carry: Keras's own by a table, the user's by their values, the rest refused."""

import functools
import gc
import logging
import threading
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import trainings
from trainings import Watcher, digits, one_layer, plan, train, unvalidated

import sweeper
from sweeper.checkpoint.reading import load_newest
from sweeper.errors import RestoreError, UncapturableError


def light(make, epochs=2):
    """A plan of what the callbacks ask nothing of."""
    return plan(model=one_layer, data=unvalidated, callbacks=make, epochs=epochs)


def stopped_and_resumed(make, directory, stop, epochs=2):
    """Train to ``stop``, go on in fresh objects to the end, and return the last callbacks."""
    return trainings.resumed(lambda: light(make, epochs), directory, [stop])._plan.callbacks


class Holder(keras.callbacks.Callback):
    """Holds one thing."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing


class Exchanges(Holder):
    """Puts another thing where one was, in its first batch."""

    def __init__(self, make):
        super().__init__(None)
        self.make = make

    def on_train_batch_end(self, batch, logs=None):
        self.thing = self.make()


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (threading.Lock, "a _thread.lock"),
        (lambda: (n for n in range(3)), "is a generator, which cannot be saved"),
        (lambda: {"deep": [threading.Condition()]}, "a threading.Condition"),
        (
            lambda: np.array([None], object),
            "an array of Python objects, which cannot be saved; keep a list",
        ),
        (lambda: lambda: None, "which was made during training"),
        (lambda: tf.random.Generator.from_seed(1), "made during training; make it in the factory"),
        (lambda: Path(__file__).open(), "an open file"),  # noqa: SIM115
    ],
    ids=["lock", "iterator", "nested", "objects", "function", "generator", "file"],
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_changed_to_what_no_checkpoint_can_hold_is_refused_by_callback_and_attribute(
    thing, expected
):
    with pytest.raises(UncapturableError) as raised:
        train(light(lambda: [Exchanges(thing)]), Watcher(block=1, stop_at=2))
    message = str(raised.value)
    assert expected in message
    assert "callback Exchanges: attribute 'thing'" in message
    assert "get_state(self)" in message
    assert "set_state(self, state)" in message
    assert "trial.output_only" in message
    del raised
    gc.collect()  # the file is closed here, where nobody minds


class Uses(keras.callbacks.Callback):
    """Uses a thing of its own after each batch."""

    def __init__(self, thing, use):
        super().__init__()
        self.thing = thing
        self.use = use

    def on_train_batch_end(self, batch, logs=None):
        self.use(self.thing)


def moved(mode):
    """A file that is at its second line."""
    file = Path(__file__).open(mode)  # noqa: SIM115
    next(file)
    OPENED.append(file)
    return file


OPENED = []


@pytest.fixture
def closes():
    yield
    while OPENED:
        OPENED.pop().close()


REFUSED_IF_CHANGED = {
    "iterator": (lambda: iter([1, 2, 3]), next, "is an iterator"),
    "generator": (lambda: (n for n in [1, 2, 3]), next, "is a generator"),
    "dataset": (
        lambda: iter(tf.data.Dataset.range(100).shuffle(10, seed=1)),
        next,
        "is an iterator over a tf.data.Dataset",
    ),
    "objects": (
        lambda: np.array([None, "a"], object),
        lambda array: array.__setitem__(0, "b"),
        "is an array of Python objects",
    ),
    "frame": (
        lambda: pd.DataFrame({"a": [1.0], "b": ["x"]}),
        lambda frame: frame.iloc.__setitem__((0, 0), frame.iloc[0, 0] + 1),
        "is a frame or series of pandas",
    ),
    "seeds": (lambda: np.random.default_rng(1), lambda rng: rng.spawn(1), "is a seed sequence"),
    "file": (lambda: moved("rb"), lambda file: file.read(1), "is an open file"),
    # They make their variables when they are first used.
    "layer": (
        lambda: keras.layers.Dense(2),
        lambda layer: layer(np.ones((1, 3))),
        "a keras",
    ),
    "optimizer": (
        keras.optimizers.Adam,
        lambda optimizer: optimizer.build([keras.Variable(1.0)]),
        "a keras",
    ),
    "metric": (
        keras.metrics.F1Score,
        lambda metric: metric.update_state(np.eye(2), np.eye(2, dtype="float32")),
        "a keras",
    ),
}


@pytest.mark.usefixtures("closes")
@pytest.mark.parametrize("kind", REFUSED_IF_CHANGED)
def test_what_no_checkpoint_can_hold_is_refused_where_training_changes_it_and_nowhere_else(
    kind, tmp_path
):
    make, use, expected = REFUSED_IF_CHANGED[kind]
    stopped_and_resumed(lambda: [Uses(make(), lambda _: None)], tmp_path, 3)
    with pytest.raises(UncapturableError, match=rf"callback Uses.thing.*{expected}.*; \w+ "):
        train(light(lambda: [Uses(make(), use)]), Watcher(block=1, stop_at=2))


@pytest.mark.usefixtures("closes")
def test_a_text_file_in_an_iteration_does_not_tell_its_position_and_is_refused():
    with pytest.raises(UncapturableError, match="is an open file that was closed"):
        train(light(lambda: [Uses(moved("r"), next)]), Watcher(block=1, stop_at=2))


class Grows(Holder):
    """Appends each batch's number."""

    def on_train_batch_end(self, batch, logs=None):
        self.thing.append(batch)


class Fills(Holder):
    """Counts in one element."""

    def on_train_batch_end(self, batch, logs=None):
        self.thing[2] += 1


class Aliases(keras.callbacks.Callback):
    """Has two lists, which become one in the first batch."""

    def __init__(self):
        super().__init__()
        self.a = []
        self.b = []

    def on_train_batch_end(self, batch, logs=None):
        self.b = self.a
        self.a.append(batch)


class Switches(Holder):
    """Gives its dict another default after the third batch."""

    def __init__(self, new=list):
        super().__init__(defaultdict(int))
        self.new = new
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == 3:
            self.thing.default_factory = self.new if isinstance(self.new, type) else self.new()


def local_class():
    class Local:
        pass

    return Local


CONSTANTS = (
    logging.getLogger("x"),
    np.sin,
    Path,
    functools.partial(np.add, 1),
    keras.losses.MeanSquaredError(),
)
MADE = []
"""The lists that callbacks of `holders` share; the newest training's last."""


def holders():
    """Callbacks by what they hold."""
    loop = []
    loop.append(loop)
    whole = np.zeros(6)
    shared = []
    MADE.append(shared)
    return {
        "itself": Grows(loop),
        "view": Fills(whole[:4]),
        "other view": Holder(whole[2:]),
        "constants": Holder(list(CONSTANTS)),
        "shared": Grows(shared),
        "shared as well": Holder(shared),
        "shared inside": Holder({"inside": shared}),
        "aliases": Aliases(),
        "default": Switches(),
        "local": Exchanges(local_class()),
        "never changed": Holder(threading.Lock()),
        "never changed either": Holder([].append),
    }


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """`holders` at the end of a training that was stopped inside its second epoch."""
    directory = tmp_path_factory.mktemp("holders")
    names = []

    def make():
        callbacks = holders()
        names[:] = callbacks
        return list(callbacks.values())

    ended = stopped_and_resumed(make, directory, 10)
    return dict(zip(names, ended, strict=True))


def test_what_callbacks_share_is_shared_again(resumed):
    steps = [*range(7), *range(7)]
    itself = resumed["itself"].thing
    assert itself[0] is itself
    assert itself[1:] == steps
    assert resumed["view"].thing[2] == resumed["other view"].thing[0] == 14
    shared = resumed["shared"].thing
    assert shared is resumed["shared as well"].thing is resumed["shared inside"].thing["inside"]
    assert shared is MADE[-1], "whoever else holds the list has it restored as well"
    assert shared == steps
    assert resumed["aliases"].a is resumed["aliases"].b, "it came to be shared during training"
    assert resumed["aliases"].a == steps


def test_what_the_studys_code_makes_is_no_state_and_its_classes_come_back(resumed):
    assert resumed["constants"].thing[0] is CONSTANTS[0]
    assert type(resumed["local"].thing) is resumed["local"].make


def test_backup_and_restore_is_left_out_with_a_notice(tmp_path):
    directory = tmp_path / "backup"
    model = one_layer()
    notices = []
    sweeper.fit(
        model,
        digits(),
        epochs=1,
        checkpoints=tmp_path / "checkpoints",
        callbacks=[keras.callbacks.BackupAndRestore(directory), keras.callbacks.TerminateOnNaN()],
        notice=notices.append,
    )
    assert [notice.partition(":")[0] for notice in notices] == [
        "callback BackupAndRestore is left out"
    ]
    assert not directory.exists()


class Extends(keras.callbacks.BackupAndRestore):
    pass


class Pretends(keras.callbacks.OrbaxCheckpoint):
    def __init__(self):
        keras.callbacks.Callback.__init__(self)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Extends("x"), "callback Extends cannot be used: it extends BackupAndRestore"),
        (Pretends, "its background writes"),
    ],
)
def test_callbacks_that_restore_by_themselves_are_refused_before_the_first_step(make, reason):
    watcher = Watcher(stop_at=1, block=1)
    with pytest.raises(UncapturableError, match=reason):
        train(light(lambda: [make()]), watcher)
    assert watcher._step == 0


def test_a_default_that_training_changed_is_the_default_again(resumed):
    assert resumed["default"].thing.default_factory is list
    with pytest.raises(UncapturableError, match=r"Switches.thing: attribute 'default_factory'"):
        train(light(lambda: [Switches(lambda: lambda: 3)]), Watcher(block=1, stop_at=4))


def test_a_large_array_that_never_changes_is_not_saved_again(tmp_path):
    train(light(lambda: [Holder(np.ones(100_000))]), Watcher(tmp_path, block=1, stop_at=3))
    loaded = load_newest([tmp_path], pytest.fail)
    assert loaded is not None
    assert not [name for name in loaded.tensors if name.startswith("user_state/")]


def test_a_variable_of_another_shape_is_refused_by_name(tmp_path):
    class Counts(Holder):
        def on_train_batch_end(self, batch, logs=None):
            self.thing.assign_add(self.thing + 1)

    def make(size):
        return lambda: [Counts(keras.Variable(np.zeros(size)))]

    train(light(make(3)), Watcher(tmp_path, block=1, stop_at=3))
    loaded = load_newest([tmp_path], pytest.fail)
    with pytest.raises(RestoreError) as raised:
        train(light(make(4)), Watcher(), loaded)
    assert "was a variable, float64[3], and is float64[4] now" in str(raised.value)


def test_a_comparison_that_was_chosen_before_is_there_at_the_first_batch(tmp_path):
    """ModelCheckpoint compares at a batch; Keras chooses how only at an epoch's end."""

    def make():
        path = tmp_path / "best.weights.h5"
        return [
            keras.callbacks.ModelCheckpoint(
                path, "loss", save_best_only=True, save_weights_only=True, save_freq=6
            ),
            keras.callbacks.EarlyStopping("loss", min_delta=0.1, patience=9),
        ]

    checkpoint, stopping = stopped_and_resumed(make, tmp_path / "checkpoints", 9, epochs=3)
    assert checkpoint.monitor_op is keras.ops.less
    assert stopping.min_delta == -0.1, "the sign is changed once, as without a stop"


def test_settings_are_the_codes_and_what_training_changed_in_them_is_kept(tmp_path):
    def make(patience, changed):
        def callbacks():
            stopping = keras.callbacks.EarlyStopping("loss", patience=patience)

            def change(batch, logs):
                if changed and batch == 2:
                    stopping.patience = 77

            return [stopping, keras.callbacks.LambdaCallback(on_train_batch_end=change)]

        return callbacks

    for changed, expected in ((False, 5), (True, 77)):
        directory = tmp_path / str(changed)
        train(light(make(3, changed)), Watcher(directory, block=1, stop_at=4))
        planned = light(make(5, changed), epochs=1)
        train(planned, Watcher(), load_newest([directory], pytest.fail))
        assert planned.callbacks[0].patience == expected
