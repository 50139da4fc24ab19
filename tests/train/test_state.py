"""What is found on a model, in which order, and what a restore says of what does not fit."""

import json
import re
import threading
from dataclasses import dataclass, replace

import exactness_models as models
import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Watcher, one_layer, plan, train, unvalidated

from sweeper.checkpoint.reading import load_newest
from sweeper.definition.trial import Trial
from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.codec import NotPlainError, decode, encode, put_array, take_array
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.state.callbacks import check_trackable
from sweeper.train.state.variables import Reach
from sweeper.train.userstate.refused import SET, Kind, Uncaptured, kind_of


def light(**options):
    return plan(model=one_layer, data=unvalidated, **options)


def snapshot_of(model, **options):
    watcher = Watcher(block=1, stop_at=2)
    train(plan(model=model, data=models.data, **options), watcher)
    assert watcher.last is not None
    return watcher.last


def test_the_digest_is_of_the_model_its_optimizer_and_then_the_others():
    last = snapshot_of(models.gan)
    names = [name.partition("/")[0] for name in last.digest_names]
    assert list(dict.fromkeys(names)) == ["model", "optimizer", "optimizers"]
    others = last.state["optimizers"]
    assert all(path.startswith("model.d_optimizer: ") for path in others)
    assert len(others) == names.count("optimizers") > 2


def test_the_digest_of_a_usual_model_is_of_its_variables_and_its_optimizers():
    last = snapshot_of(models.multi_optimizer)
    assert {name.partition("/")[0] for name in last.digest_names} == {"model", "optimizer"}


def test_inner_optimizers_are_captured_once():
    for model in (models.mixed_precision, models.multi_optimizer, models.averaged):
        planned = plan(model=model, data=models.data)
        TrainingLoop(planned, Watcher())
        reach = Reach(planned.model).now
        ids = [id(v) for v in reach.own_optimizer]
        assert len(ids) == len(set(ids))
        assert reach.other_optimizers == []
        assert reach.loose == []


def test_metrics_and_generators_that_no_list_of_keras_has_are_found():
    class Hidden:
        def __init__(self):
            self.itself = self
            self.seeds = [keras.random.SeedGenerator(1)]

    class Holds(keras.Model):
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

    model = Holds()
    model.compile("sgd", "mse")
    paths = [found.path.partition(":")[0] for found in Reach(model).now.loose]
    assert [path for path in paths if path != "model.loss_tracker"] == [
        "model.hidden['inside'].seeds[0]",
        "model.generator",
        "model.counter",
        "model.mean",
        "model.mean",
    ]


def altered(loaded, **tensors):
    """The checkpoint with tensors replaced, added, or (None) left out."""
    assert loaded is not None
    kept = {n.replace("/", "__"): t for n, t in loaded.tensors.items()}
    changed = {n.replace("__", "/"): t for n, t in {**kept, **tensors}.items() if t is not None}
    return replace(loaded, tensors=changed)


def test_every_tensor_that_is_missing_or_misshapen_or_of_nobody_is_named(tmp_path):
    make = lambda: plan(model=models.gan, data=models.data)  # noqa: E731 - used twice
    train(make(), Watcher(tmp_path, block=1, stop_at=2))
    loaded = altered(
        load_newest([tmp_path], pytest.fail),
        model__00000=None,
        optimizers__00001=np.zeros((9, 9), "float32"),
        strange__1=np.zeros(1),
    )
    planned = make()
    before = [v.numpy().copy() for v in planned.model.variables]
    with pytest.raises(RestoreError) as raised:
        train(planned, Watcher(), loaded)
    message = str(raised.value)
    assert "model variable 0" in message
    assert "its tensor 'model/00000' is missing" in message
    assert "optimizers variable 1 (model.d_optimizer: " in message
    assert "float32[9, 9] in it" in message
    assert "a tensor 'strange/1' of no component" in message
    for variable, value in zip(planned.model.variables, before, strict=False):
        assert np.array_equal(variable.numpy(), value)


@pytest.mark.parametrize("value", [5, [1], {"a": 1}, "x", None, np.zeros(3), object()])
def test_what_cannot_be_tracked_is_refused_with_its_name(value):
    with pytest.raises(UncapturableError, match=r"track\('my_step', …\) was given a .*tf.Variable"):
        check_trackable("my_step", value)


def test_what_is_tracked_comes_back_by_name(tmp_path):
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

    @dataclass
    class Draws(Watcher):
        """Draws after the first step, where no object of the training leads to what is tracked."""

        def steps_done(self, position):
            super().steps_done(position)
            if position.step == 1:
                draw(first)

    first = tracked()
    train(light(tracked=lambda: first), Draws(tmp_path, block=1, stop_at=3))
    expected = draw(first)
    second = tracked()
    train(light(tracked=lambda: second, epochs=1), Watcher(), load_newest([tmp_path], pytest.fail))
    assert draw(second) == expected
    assert draw(tracked()) != expected
    renamed = {**tracked(), "other": tf.Variable(0)}
    del renamed["step"]
    with pytest.raises(RestoreError) as raised:
        train(light(tracked=lambda: renamed), Watcher(), load_newest([tmp_path], pytest.fail))
    was, now = re.search(
        "the checkpoint has (.*), and the study makes (.*)", str(raised.value)
    ).groups()
    assert "tracked object 'step'" in was
    assert "tracked object 'other'" in now


def test_a_trial_tracks_an_object_under_a_name_of_its_own(tmp_path):
    trial = Trial(number=0, seed=1, directory=tmp_path, ask=lambda _name, _range: 0.0)
    step = trial.track("step", tf.Variable(0, trainable=False))
    assert trial.track("step", step) is step
    assert dict(trial.tracked) == {"step": step}
    with pytest.raises(UncapturableError, match=r"track\('step', …\) was called for two objects"):
        trial.track("step", tf.Variable(1))
    with pytest.raises(UncapturableError, match=r"track\('count', …\) was given a builtins.int"):
        trial.track("count", 3)


class Remembers(keras.Model):
    """Keeps, while it trains, something on itself."""

    def __init__(self, keep):
        super().__init__()
        self.body = keras.layers.Dense(4)
        self.keep = keep
        self.kept = None

    def call(self, x):
        return self.body(x)

    def train_step(self, batch):
        self.kept = self.keep()
        return super().train_step(batch)


def remembering(keep):
    def model():
        made = Remembers(keep)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("sgd", loss, run_eagerly=True)
        return made

    return model


def test_an_attribute_that_training_changes_to_what_cannot_be_held_is_refused():
    with pytest.raises(UncapturableError, match=r"model: attribute 'kept' changed during training"):
        snapshot_of(remembering(threading.Lock))


def test_only_attributes_that_changed_are_captured():
    last = snapshot_of(remembering(lambda: (1, 2)))
    assert list(last.state["user_state"]["changed"]["model"]["set"]) == ["kept"]


def test_a_model_that_draws_no_numbers_has_no_attributes_to_capture():
    assert snapshot_of(one_layer).state["user_state"] == {"changed": {}, "left_out": []}


@pytest.mark.parametrize(
    "kind",
    [
        "U5",
        "S3",
        "m8[ms]",
        "float8_e4m3fn",
        np.dtype(
            [("step", "i4"), ("loss", "f4", (2, 3)), ("in", [("name", "U3"), ("at", "M8[s]")])]
        ),
        np.dtype([("small", "u1"), ("large", "f8")], align=True),
        np.dtype([(("its title", "named"), "i2")]),
    ],
    ids=str,
)
def test_an_array_of_any_kind_comes_back_from_json_and_bytes(kind):
    array = np.zeros((2, 3), kind)
    array[0] = np.frombuffer(b"\1" * array.itemsize, array.dtype)[0] if array.dtype.names else 7
    tensors = {}
    saved = json.loads(json.dumps(put_array(array, tensors, "key")))
    back = take_array(saved, tensors)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert repr(back.tolist()) == repr(array.tolist())
    again = {}
    put_array(back, again, "key")
    assert again["key"].tobytes() == tensors["key"].tobytes()


def test_an_array_of_records_that_contain_python_objects_is_refused():
    with pytest.raises(NotPlainError, match="an array of Python objects"):
        put_array(np.zeros(2, [("step", "i4"), ("held", "O")]), {}, "key")


def test_what_two_parts_of_a_state_share_is_shared_again():
    shared, tensors = [1, 2], {}
    node = encode({"one": shared, "other": shared}, "data/train/state", tensors)
    again = decode(node, tensors)
    assert again == {"one": [1, 2], "other": [1, 2]}
    assert again["one"] is again["other"]


def emptied():
    """A set that has the table of sixty members, and none of them."""
    members = set(range(60))
    for member in range(60):
        members.discard(member)
    return members


@pytest.mark.parametrize("members", [{1}, {"a", "b"}, frozenset({1, 2}), emptied()])
def test_a_set_in_a_state_is_refused_with_advice(members):
    with pytest.raises(NotPlainError, match=r"state\['it'\] is a set, .*dict.fromkeys"):
        encode({"it": members}, "state", {})


@pytest.mark.parametrize("members", [set(), frozenset(), frozenset({"a"})])
def test_a_set_without_an_order_comes_back(members):
    again = decode(json.loads(json.dumps(encode(members, "seen", {}))), {})
    assert type(again) is type(members)
    assert again == members


def test_a_set_that_grew_and_shrank_has_changed():
    members = {1, 2}
    holder = Uncaptured(members, "it", SET)
    holder.begin()
    members.update(range(100))
    members.difference_update(range(3, 100))
    members.discard(0)
    assert members == {1, 2}
    assert holder.changed()


@pytest.mark.parametrize(
    "make",
    [
        lambda: len,
        lambda: lambda: 0,
        lambda: tf.Variable(1.0),
        lambda: keras.layers.Dense(1),
    ],
    ids=["built-in", "lambda", "variable", "layer"],
)
def test_a_state_that_nothing_could_bring_back_is_refused_when_it_is_captured(make):
    with pytest.raises(NotPlainError, match=r"callbacks/0/state\['it'\] is a "):
        encode({"it": make()}, "callbacks/0/state", {})


def test_an_iterator_that_nothing_advances_is_accepted():
    iterator = iter(tf.data.Dataset.range(100).shuffle(10, seed=1))
    kind = kind_of(iterator)
    assert kind is not None
    holder = Uncaptured(iterator, "Draws.numbers", kind)
    holder.begin()
    assert not holder.changed()
    next(iterator)
    assert holder.changed()
    with pytest.raises(NotPlainError, match=r"an iterator over a tf.data.Dataset; make a new"):
        holder.capture({}, "user_state/callback Draws.numbers")


@pytest.mark.parametrize("stable", [True, False])
def test_a_token_that_differs_each_time_is_a_change_unless_it_is_known_to(stable):
    """A dataset's iterator that reads ahead has another position each time: it may have advanced."""
    tokens = iter(range(100))
    holder = Uncaptured(object(), "it", Kind((), "it", "", lambda _: next(tokens), stable=stable))
    holder.begin()
    assert holder.changed() is stable
