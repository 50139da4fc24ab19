"""What a checkpoint has of a model, its optimizers and what is tracked; what a restore refuses; and what
comes back of a state that a callback says itself."""

import threading
from dataclasses import dataclass

import exactness_models as models
import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Watcher, equal, one_layer, plan, train, unvalidated, weights

import sweeper
from sweeper.checkpoint.reading import load_newest
from sweeper.errors import RestoreError, UncapturableError


def snapshot_of(model, **options):
    watcher = Watcher(block=1, stop_at=2)
    train(plan(model=model, data=models.data, **options), watcher)
    return watcher.last


def test_the_digest_is_of_the_model_its_optimizer_and_then_the_others():
    last = snapshot_of(models.gan)
    names = [name.partition("/")[0] for name in last.digest_names]
    assert list(dict.fromkeys(names)) == ["model", "optimizer", "optimizers"]
    others = last.state["optimizers"]
    assert all(path.startswith("model.d_optimizer: ") for path in others)
    assert len(others) == names.count("optimizers") > 2


@pytest.mark.parametrize("model", [models.mixed_precision, models.multi_optimizer, models.averaged])
def test_inner_optimizers_are_captured_and_digested_once(model):
    last = snapshot_of(model)
    assert {name.partition("/")[0] for name in last.digest_names} == {"model", "optimizer"}
    paths = last.state["optimizer"]
    assert len(paths) == len(set(paths)) > 0
    assert last.state["optimizers"] == last.state["reachable"] == []


class Hidden:
    def __init__(self):
        self.itself = self
        self.seeds = [keras.random.SeedGenerator(1)]


class Holds(keras.Model):
    """Holds what no list of Keras has."""

    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        self.hidden = {"inside": Hidden()}
        self.generator = tf.random.Generator.from_seed(2)
        self.counter = tf.Variable(0, trainable=False)
        self.mean = keras.metrics.Mean("other")

    @property
    def metrics(self):
        return []

    def call(self, x):
        return self.body(x)


def test_metrics_and_generators_that_no_list_of_keras_has_are_found():
    def holding():
        model = Holds()
        model.compile("sgd", "mse")
        return model

    paths = [path.partition(":")[0] for path in snapshot_of(holding).state["reachable"]]
    assert [path for path in paths if path != "model.loss_tracker"] == [
        "model.hidden['inside'].seeds[0]",
        "model.generator",
        "model.counter",
        "model.mean",
        "model.mean",
    ]


def test_every_tensor_that_is_missing_or_misshapen_or_of_nobody_is_named(tmp_path):
    make = lambda: plan(model=models.gan, data=models.data)  # noqa: E731 - used twice
    train(make(), Watcher(tmp_path, block=1, stop_at=2))
    loaded = load_newest([tmp_path], pytest.fail)
    del loaded.tensors["model/00000"]
    loaded.tensors["optimizers/00001"] = np.zeros((9, 9), "float32")
    loaded.tensors["strange/1"] = np.zeros(1)
    planned = make()
    drawn = weights(planned.model)
    with pytest.raises(RestoreError) as raised:
        train(planned, Watcher(), loaded)
    message = str(raised.value)
    assert "model variable 0" in message
    assert "its tensor 'model/00000' is missing" in message
    assert "optimizers variable 1 (model.d_optimizer: " in message
    assert "float32[9, 9] in it" in message
    assert "a tensor 'strange/1' of no component" in message
    assert equal(weights(planned.model)[: len(drawn)], drawn)


def tracked():
    return {
        "step": tf.Variable(0, dtype=tf.int64, trainable=False),
        "noise": tf.random.Generator.from_seed(3),
        "numpy": np.random.default_rng(4),
        "mean": keras.metrics.Mean(),
    }


def draw(objects):
    objects["step"].assign_add(1)
    objects["mean"].update_state(float(objects["step"].numpy()))
    return [
        float(objects["noise"].normal(())),
        objects["numpy"].random(),
        float(objects["step"].numpy()),
        float(objects["mean"].result()),
    ]


def test_what_is_tracked_comes_back_by_name(tmp_path):
    @dataclass
    class Draws(Watcher):
        """Draws after the first step, where no object of the training leads to what is tracked."""

        def steps_done(self, position):
            super().steps_done(position)
            if position.step == 1:
                draw(first)

    def light(objects, epochs=3):
        return plan(model=one_layer, data=unvalidated, tracked=lambda: objects, epochs=epochs)

    first = tracked()
    second = tracked()
    train(light(first), Draws(tmp_path, block=1, stop_at=3))
    expected = draw(first)
    train(light(second, 1), Watcher(), load_newest([tmp_path], pytest.fail))
    assert draw(second) == expected
    assert draw(tracked()) != expected
    renamed = {**tracked(), "other": tf.Variable(0)}
    del renamed["step"]
    with pytest.raises(RestoreError) as raised:
        train(light(renamed), Watcher(), load_newest([tmp_path], pytest.fail))
    saved_names, own_names = str(raised.value).split(", and this one has ")
    assert "tracked object 'step'" in saved_names
    assert "tracked object 'other'" in own_names


class Locks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.kept = threading.Lock()


def test_an_attribute_of_the_model_that_training_changes_to_what_cannot_be_held_is_refused():
    with pytest.raises(UncapturableError, match=r"model: attribute 'kept' changed during training"):
        snapshot_of(one_layer, callbacks=lambda: [Locks()])


def test_a_model_that_draws_no_numbers_has_no_attributes_to_capture():
    assert snapshot_of(one_layer).state["user_state"] == {"changed": {}, "left_out": []}


class Says(keras.callbacks.Callback):
    """Says its state, and has what comes back."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def trained_with(state, directory, epochs=1):
    """Train with a callback that says ``state``; return its state at the end."""
    says = Says(state)
    model = one_layer()
    model.compile("sgd", "mse", run_eagerly=True)
    sweeper.fit(model, unvalidated(), epochs=epochs, checkpoints=directory, callbacks=[says])
    return says.state


def come_back(state, directory):
    trained_with(state, directory)
    return trained_with(None, directory, epochs=2)


def test_an_array_of_any_kind_comes_back(tmp_path):
    record = [("step", "i4"), ("loss", "f4", (2, 3)), ("in", [("name", "U3"), ("at", "M8[s]")])]
    kinds = ("U5", "S3", "m8[ms]", "float8_e4m3fn", np.dtype(record))
    kinds += (np.dtype([("small", "u1"), ("large", "f8")], align=True),)
    kinds += (np.dtype([(("its title", "named"), "i2")]),)
    arrays = [np.zeros((2, 3), kind) for kind in kinds]
    for array in arrays:
        names = array.dtype.names
        array[0] = np.frombuffer(b"\1" * array.itemsize, array.dtype)[0] if names else 7
    for array, back in zip(arrays, come_back(arrays, tmp_path), strict=True):
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert repr(back.tolist()) == repr(array.tolist())


def test_what_two_parts_of_a_state_share_and_sets_without_an_order_come_back(tmp_path):
    shared = [1, 2]
    state = {"one": shared, "other": shared, "sets": [set(), frozenset(), frozenset({"a"})]}
    restored = come_back(state, tmp_path)
    assert restored == state
    assert restored["one"] is restored["other"]
    assert list(map(type, restored["sets"])) == [set, frozenset, frozenset]


def emptied():
    """A set that has the table of sixty members, and none of them."""
    members = set(range(60))
    for member in range(60):
        members.discard(member)
    return members


SET = r"is a set, .*dict.fromkeys"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {1}, SET),
        (lambda: {"a", "b"}, SET),
        (lambda: frozenset({1, 2}), SET),
        (emptied, SET),
        (lambda: np.zeros(2, [("step", "i4"), ("held", "O")]), "is an array of Python objects"),
        (lambda: len, "is a "),
        (lambda: lambda: 0, "is a "),
        (lambda: tf.Variable(1.0), "is a "),
        (lambda: keras.layers.Dense(1), "is a "),
        (threading.Lock, "is a "),
    ],
)
def test_a_state_that_nothing_could_bring_back_is_refused_when_it_is_captured(
    make, message, tmp_path
):
    with pytest.raises(
        UncapturableError, match=rf"get_state\(\) returned something.*\['it'\] {message}"
    ):
        trained_with({"it": make()}, tmp_path)


def test_a_set_that_grew_and_shrank_has_changed(tmp_path):
    class Grows(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.members = {1, 2}

        def on_train_batch_end(self, batch, logs=None):
            self.members.update(range(100))
            self.members.difference_update({0, *range(3, 100)})
            assert self.members == {1, 2}

    with pytest.raises(UncapturableError, match=rf"Grows\.members changed.*{SET}"):
        train(plan(data=unvalidated, callbacks=lambda: [Grows()]), Watcher(stop_at=2))
