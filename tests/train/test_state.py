"""What is found on a model, in which order, and what a restore says of what does not fit."""

from __future__ import annotations

import json
import operator
import os
import random
import string
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import exactness_models as models
import keras
import numpy as np
import pytest
import tensorflow as tf
from counted_sets import Counts, lower
from growing_sets import Sees, Works
from lent_sets import Lends
from trainings import Watcher, one_layer, plan, train, unvalidated

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.reading import load_newest
from sweeper.definition.trial import Trial
from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection.code import may_shrink_sets, only_grows
from sweeper.replay.comparison import READ_AHEAD
from sweeper.train.codec import NotPlainError, decode, encode, put_array, take_array
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.state.tracked import check_trackable
from sweeper.train.state.variables import Reach
from sweeper.train.userstate.values import DatasetIterator


def light(**options: Any) -> Any:
    return plan(model=one_layer, data=unvalidated, **options)


def snapshot_of(model: Callable[[], keras.Model], **options: Any) -> Any:
    watcher = Watcher(block=1, stop_at=2)
    train(plan(model=model, data=models.data, **options), watcher)
    assert watcher.last is not None
    return watcher.last


def test_the_digest_is_of_the_model_its_optimizer_and_then_the_others() -> None:
    last = snapshot_of(models.gan)
    names = [name.partition("/")[0] for name in last.digest_names]
    assert list(dict.fromkeys(names)) == ["model", "optimizer", "optimizers"]
    others = last.state["optimizers"]
    assert all(path.startswith("model.d_optimizer: ") for path in others)
    assert len(others) == names.count("optimizers") > 2


def test_the_digest_of_a_usual_model_is_of_its_variables_and_its_optimizers() -> None:
    last = snapshot_of(models.multi_optimizer)
    assert {name.partition("/")[0] for name in last.digest_names} == {"model", "optimizer"}


def test_inner_optimizers_are_captured_once() -> None:
    for model in (models.mixed_precision, models.multi_optimizer, models.averaged):
        planned = plan(model=model, data=models.data)
        TrainingLoop(planned, Watcher())
        reach = Reach(planned.model)
        ids = [id(v) for v in reach.own_optimizer()]
        assert len(ids) == len(set(ids))
        assert reach.other_optimizers() == []
        assert reach.loose() == []


def test_metrics_and_generators_that_no_list_of_keras_has_are_found() -> None:
    class Hidden:
        def __init__(self) -> None:
            self.itself = self
            self.seeds = [keras.random.SeedGenerator(1)]

    class Holds(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            self.hidden = {"inside": Hidden()}
            self.generator = tf.random.Generator.from_seed(2)
            self.counter = tf.Variable(0, trainable=False)
            self.mean = keras.metrics.Mean("other")

        @property
        def metrics(self) -> list[Any]:
            return []

    model = Holds()
    model.compile("sgd", "mse")
    paths = [found.path.partition(":")[0] for found in Reach(model).loose()]
    assert [path for path in paths if path != "model._loss_tracker"] == [
        "model.hidden['inside'].seeds[0]",
        "model.generator",
        "model.counter",
        "model.mean",
        "model.mean",
    ]


def altered(loaded: LoadedCheckpoint | None, **tensors: Any) -> LoadedCheckpoint:
    """The checkpoint with tensors replaced, added, or (None) left out."""
    assert loaded is not None
    kept = {n.replace("/", "__"): t for n, t in loaded.tensors.items()}
    changed = {n.replace("__", "/"): t for n, t in {**kept, **tensors}.items() if t is not None}
    return replace(loaded, tensors=changed)


def test_every_tensor_that_is_missing_or_misshapen_or_of_nobody_is_named(tmp_path: Path) -> None:
    make = lambda: plan(model=models.gan, data=models.data)  # noqa: E731 - used twice
    train(make(), Watcher(tmp_path, block=1, stop_at=2))
    loaded = altered(
        load_newest([tmp_path], pytest.fail),
        model__00000=None,
        optimizers__00001=np.zeros((9, 9), "float32"),
        python_random__words=np.zeros(3, "uint32"),
        numpy_random__words=None,
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
    assert "'python_random/words' is uint32[3], expected uint32[625]" in message
    assert "'numpy_random/words' is missing" in message
    assert "a tensor 'strange/1' of no component" in message
    for variable, value in zip(planned.model.variables, before, strict=False):
        assert np.array_equal(variable.numpy(), value)


@pytest.mark.parametrize("value", [5, [1], {"a": 1}, "x", None, np.zeros(3), object()])
def test_what_cannot_be_tracked_is_refused_with_its_name(value: object) -> None:
    with pytest.raises(UncapturableError, match=r"track\('my_step', …\) was given a .*tf.Variable"):
        check_trackable("my_step", value)


def test_what_is_tracked_comes_back_by_name(tmp_path: Path) -> None:
    def tracked() -> dict[str, Any]:
        return {
            "step": tf.Variable(0, dtype=tf.int64, trainable=False),
            "noise": tf.random.Generator.from_seed(3),
            "numpy": np.random.default_rng(4),
            "mean": keras.metrics.Mean(),
        }

    def draw(objects: dict[str, Any]) -> list[float]:
        objects["step"].assign_add(1)
        objects["mean"].update_state(float(objects["step"].numpy()))
        return [
            float(objects["noise"].normal(())),
            objects["numpy"].random(),
            float(objects["step"].numpy()),
            float(objects["mean"].result()),
        ]

    first = tracked()
    draw(first)
    train(light(tracked=lambda: first), Watcher(tmp_path, block=1, stop_at=3))
    expected = draw(first)
    second = tracked()
    train(light(tracked=lambda: second, epochs=1), Watcher(), load_newest([tmp_path], pytest.fail))
    assert draw(second) == expected
    assert draw(tracked()) != expected
    renamed = {**tracked(), "other": tf.Variable(0)}
    del renamed["step"]
    with pytest.raises(RestoreError) as raised:
        train(light(tracked=lambda: renamed), Watcher(), load_newest([tmp_path], pytest.fail))
    assert "the tracked object 'other' is not in it" in str(raised.value)
    assert "it has an unexpected tracked object 'step'" in str(raised.value)


def test_a_trial_tracks_an_object_under_a_name_of_its_own(tmp_path: Path) -> None:
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

    def __init__(self, keep: Callable[[], Any]) -> None:
        super().__init__()
        self.body = keras.layers.Dense(4)
        self.keep = keep
        self.kept: Any = None

    def call(self, x: Any) -> Any:
        return self.body(x)

    def train_step(self, batch: Any) -> Any:
        self.kept = self.keep()
        return super().train_step(batch)


def remembering(keep: Callable[[], Any]) -> Callable[[], keras.Model]:
    def model() -> keras.Model:
        made = Remembers(keep)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("sgd", loss, run_eagerly=True)
        return made

    return model


def test_an_attribute_that_training_changes_to_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(UncapturableError, match=r"model: attribute 'kept' changed during training"):
        snapshot_of(remembering(threading.Lock))


def test_only_attributes_that_changed_are_captured() -> None:
    last = snapshot_of(remembering(lambda: (1, 2)))
    assert list(last.state["user_state"]["changed"]["model"]["set"]) == ["kept"]


def test_a_model_that_draws_no_numbers_has_no_attributes_to_capture() -> None:
    watcher = Watcher(block=1, stop_at=2)
    train(light(), watcher)
    assert watcher.last is not None
    assert watcher.last.state["user_state"] == {"changed": {}, "left_out": []}


@pytest.mark.parametrize(
    "kind",
    [
        "U5",
        "S3",
        "m8[ms]",
        np.dtype(
            [("step", "i4"), ("loss", "f4", (2, 3)), ("in", [("name", "U3"), ("at", "M8[s]")])]
        ),
        np.dtype([("small", "u1"), ("large", "f8")], align=True),
        np.dtype([(("its title", "named"), "i2")]),
    ],
    ids=str,
)
def test_an_array_of_records_text_or_dates_comes_back_from_json_and_bytes(kind: Any) -> None:
    array = np.zeros((2, 3), kind)
    array[0] = np.frombuffer(b"\1" * array.itemsize, array.dtype)[0] if array.dtype.names else 7
    tensors: dict[str, Any] = {}
    saved = json.loads(json.dumps(put_array(array, tensors, "key")))
    back = take_array(saved, tensors)
    assert back.dtype.descr == array.dtype.descr
    assert back.shape == array.shape
    assert repr(back.tolist()) == repr(array.tolist())
    again: dict[str, Any] = {}
    put_array(back, again, "key")
    assert again["key"].tobytes() == tensors["key"].tobytes()


def test_what_two_parts_of_a_state_share_is_shared_again() -> None:
    shared, tensors = [1, 2], {}
    node = encode({"one": shared, "other": shared}, "data/train/state", tensors)
    again = decode(node, tensors)
    assert again == {"one": [1, 2], "other": [1, 2]}
    assert again["one"] is again["other"]


def grown(members: Any) -> set[Any]:
    found: set[Any] = set()
    for member in members:
        found.add(member)
    return found


ORDINARY = (
    lambda: grown(range(0, 90, 3)),
    lambda: grown([(1, 2), 5, 0.5]),
    lambda: set(grown(range(7))) | {40, 41},
)


@pytest.mark.parametrize("make", ORDINARY)
def test_a_set_comes_back_with_its_order_and_goes_on_alike(make: Callable[[], set[Any]]) -> None:
    written, tensors = make(), {}
    again = decode(json.loads(json.dumps(encode(written, "seen", tensors))), tensors)
    for member in (None, *range(100, 160)):
        if member is not None:
            written.add(member)
            again.add(member)
        assert list(again) == list(written)


def words(count: int, draws: random.Random) -> list[str]:
    return ["".join(draws.choices(string.ascii_lowercase, k=5)) for _ in range(count)]


def test_sets_of_words_that_grow_come_back_and_go_on_alike_or_are_refused() -> None:
    """Words collide, and the one that comes first gets the place: the order of insertion is found.

    Python hashes words otherwise in each process, so the counts are of all sizes together.
    """
    draws, captured, simple = random.Random(0), 0, 0
    for count in (2, 3, 4, 7, 12, 30, 76, 120) * 20:
        written, tensors = grown(words(count, draws)), {}
        simple += list(grown(written)) == list(written)
        try:
            node = encode(written, "seen", tensors)
        except NotPlainError:
            continue
        captured += 1
        again = decode(json.loads(json.dumps(node)), tensors)
        for word in words(count, draws):
            written.add(word)
            again.add(word)
            assert list(again) == list(written)
    assert captured >= 144
    assert simple < captured, "the order in which they stand would do"


def test_control_two_sets_of_one_order_may_go_on_otherwise() -> None:
    draws, parted = random.Random(0), 0
    for _ in range(2000):
        written = grown(words(3, draws))
        again = grown(written)
        if list(again) == list(written):
            later = words(1, draws)
            written.update(later)
            again.update(later)
            parted += list(again) != list(written)
    assert parted, "to compare orders would suffice"


def test_a_set_whose_order_no_insertion_gives_is_refused_with_advice() -> None:
    filled = grown([0, 1, 8])
    filled.discard(0)
    with pytest.raises(NotPlainError, match=r"state\['it'\] is a set whose order .*dict.fromkeys"):
        encode({"it": filled}, "state", {})


def test_a_frozenset_comes_back_with_its_order() -> None:
    colliding = frozenset(grown([7, 15]))
    assert list(frozenset(list(colliding))) != list(colliding), "this one is no longer such a set"
    for made in (
        colliding,
        frozenset(grown(range(0, 600, 7))),
        frozenset(dict.fromkeys([7, 15, 31])),
    ):
        again = decode(json.loads(json.dumps(encode(made, "seen", {}))), {})
        assert list(again) == list(made)


def test_a_set_is_refused_where_code_may_take_members_from_one() -> None:
    """What is left in its table decides where later members come to stand, and no interface tells."""
    watcher = Watcher(block=1, stop_at=2)
    train(light(callbacks=lambda: [Sees()]), watcher)
    assert watcher.last is not None
    assert watcher.last.state["user_state"]["changed"]["callback Sees.seen"] == {"values": [0, 1]}
    with pytest.raises(
        UncapturableError, match=r"callback Works.seen .* a set, and .*Works.on_epoch_end may take"
    ):
        train(light(callbacks=lambda: [Works()]), Watcher(block=1, stop_at=2))


def test_a_set_that_only_grows_is_captured_beside_code_that_takes_from_lists_and_numbers() -> None:
    watcher = Watcher(block=1, stop_at=2)
    train(light(callbacks=lambda: [Counts()]), watcher)
    assert watcher.last is not None
    changed = watcher.last.state["user_state"]["changed"]
    assert changed["callback Counts.met"] == {"values": [0, 1]}
    assert may_shrink_sets(Counts.on_epoch_end)
    assert may_shrink_sets(lower)


def test_a_set_that_is_passed_on_to_code_that_takes_members_is_refused() -> None:
    with pytest.raises(
        UncapturableError, match=r"callback Lends.met_here .* lent_sets.forget may take"
    ):
        train(light(callbacks=lambda: [Lends()]), Watcher(block=1, stop_at=2))


def _keeps(self: Any) -> None:
    known = self.held
    known.discard(1)


def _is_given(self: Any, given: set[int]) -> None:
    self.held = given


def _shares(self: Any) -> None:
    self.other = self.held = set()


def _chooses(self: Any, given: set[int]) -> None:
    self.held = given or set()


def _returns(self: Any) -> Any:
    return self.held


def _passes(self: Any) -> None:
    print(self.held)


def _reflects(self: Any, name: str) -> None:
    getattr(self, name).discard(1)


def _subtracts(self: Any, given: set[int]) -> None:
    self.held -= given


def _begins(self: Any) -> None:
    self.held = {1, 2}
    self.held = set()


def _looks(self: Any) -> int:
    if not self.held or 3 in self.held:
        self.held.add(len(self.held))
    return sum(each for each in self.held) + max(self.held)


def _subtracts_elsewhere(self: Any, given: set[int]) -> None:
    self.free -= given


@pytest.mark.parametrize("function", [_begins, _looks, _subtracts_elsewhere])
def test_uses_that_take_nothing_from_a_set_are_known(function: Any) -> None:
    assert only_grows(frozenset({"held"}), [function], [])


@pytest.mark.parametrize(
    "function",
    [_keeps, _is_given, _shares, _chooses, _returns, _passes, _reflects, _subtracts],
)
def test_control_uses_by_which_others_could_take_from_a_set_are_not(function: Any) -> None:
    assert not only_grows(frozenset({"held"}), [function], [])


def test_control_nothing_is_known_of_a_set_that_no_attribute_holds() -> None:
    assert not only_grows(frozenset(), [_looks], [])


TAKING: tuple[tuple[bool, Callable[..., Any]], ...] = (
    (True, lambda members: members.pop()),
    (True, lambda members: members.discard(1)),
    (True, lambda members: [lambda: members.remove(1)]),
    (True, lambda members: members.difference_update({1})),
    (True, lambda members: operator.setitem({}, "later", members.pop)),
    (False, lambda members: members.add(1)),
    (False, lambda members: members.clear()),
    (False, lambda frame: frame.pop("label")),
    (False, lambda path: os.remove(path / "x")),  # noqa: PTH107 - its name is what is looked at
)


@pytest.mark.parametrize(("may", "function"), TAKING)
def test_what_may_take_members_from_a_set_is_known_by_its_names(
    may: bool, function: types.FunctionType
) -> None:
    assert may_shrink_sets(function) is may


def test_an_operator_that_takes_members_is_known_unless_it_counts() -> None:
    def takes(members: set[int]) -> None:
        members -= {1}

    def counts(wait: int) -> None:
        wait -= 1

    assert may_shrink_sets(takes)  # type: ignore[arg-type]
    assert not may_shrink_sets(counts)  # type: ignore[arg-type]


def test_a_set_that_lost_a_member_goes_on_otherwise_than_one_that_never_had_it() -> None:
    held = grown([6, 5])
    held.discard(5)
    held.add(17)
    again = grown(held)
    assert list(again) == list(held)
    for member in (0, 8):
        held.add(member)
        again.add(member)
    assert list(again) != list(held), "sets could be captured whatever left them"


def test_objects_that_came_during_training_and_are_of_the_earlier_layout_are_refused(
    tmp_path: Path,
) -> None:
    train(light(), Watcher(tmp_path, block=1, stop_at=2))
    loaded = load_newest([tmp_path], pytest.fail)
    assert loaded is not None
    earlier = {"changed": {}, "left_out": [], "new": [{"kind": "list", "values": [1]}]}
    loaded = replace(loaded, state={**loaded.state, "user_state": earlier})
    with pytest.raises(
        RestoreError, match=r"in an old format: sweeper 0\.1\.0 wrote .* start it again"
    ):
        train(light(), Watcher(), loaded)


@pytest.mark.parametrize(
    "make",
    [
        lambda: len,
        lambda: lambda: 0,
        lambda: dict,
        lambda: tf.Variable(1.0),
        lambda: keras.layers.Dense(1),
    ],
    ids=["built-in", "lambda", "type", "variable", "layer"],
)
def test_a_state_that_nothing_could_bring_back_is_refused_when_it_is_captured(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(NotPlainError, match=r"callbacks/0/state\['it'\] is a "):
        encode({"it": make()}, "callbacks/0/state", {})


def test_an_iterator_of_the_users_is_kept_under_the_name_that_read_ahead_is_known_by() -> None:
    """How far tf.data has read ahead is a matter of timing: on a busy machine it differs."""
    iterator = iter(tf.data.Dataset.range(100).shuffle(10, seed=1))
    holder, tensors = DatasetIterator(iterator, "Draws.numbers"), {}
    drawn = [int(next(iterator)) for _ in range(3)]
    saved = holder.capture(tensors, "user_state/callback Draws.numbers")
    assert all(name.endswith(READ_AHEAD) for name in tensors)
    after = [int(next(iterator)) for _ in range(5)]
    holder.restore(saved, tensors)
    assert [int(next(iterator)) for _ in range(5)] == after, drawn
