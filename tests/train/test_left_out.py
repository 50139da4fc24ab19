"""What training changes in a callback with a get_state of its own, and get_state leaves out, has a fingerprint."""

import sys

import keras
import numpy as np
import pytest

from sweeper.train.userstate import Roots, UserState
from sweeper.train.userstate.refused import Kind, Uncaptured

SEEN = 0


class Inner:
    def __init__(self):
        self.count = 0


class Keeps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.kept = 0
        self.same = [1, 2]
        self.left = 0
        self.inner = Inner()
        self.table = {"took": 0.0, "epochs": 0}
        self.array = np.zeros(3)
        self.unchanged = np.ones(4)
        self.long = [*range(200)]
        self.numbered = {0: "zero"}
        self.members = {"a"}
        self.nested = {"deep": [{"x": 0, "y": 1}]}
        self.file = None
        self.path = ""

    def on_epoch_end(self, epoch, logs=None):
        global SEEN
        SEEN += 1

    def get_state(self):
        return {"kept": self.kept}

    def set_state(self, state):
        self.kept = state["kept"]


def begun(callback, **more):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    state = UserState(Roots(model, [callback], exempt=[callback], **more))
    state.begin()
    return state


def fingerprints(state):
    saved = state.capture({})
    assert not any("Keeps" in path for path in saved["changed"]), "nothing of it is kept as state"
    return dict(saved["left_out"])


def test_what_has_changed_is_named_wherever_the_callback_leads_and_nothing_else(
    tmp_path, monkeypatch
):
    callback = Keeps()
    state = begun(callback)
    assert fingerprints(state) == {}
    callback.left = np.float32(2)
    callback.inner.count = 3
    callback.array[1] = 4
    monkeypatch.setattr(sys.modules[__name__], "SEEN", 7)
    with (tmp_path / "log.txt").open("w") as callback.file:
        changes = fingerprints(state)
    assert changes["callback Keeps: attribute 'left'"] == "2.0"
    assert changes["callback Keeps.inner: attribute 'count'"] == "3"
    assert changes["callback Keeps.array"].startswith("digest ")
    assert changes[f"module {__name__}: variable 'SEEN'"] == "7"
    assert len(changes) - ("callback Keeps: attribute 'file'" in changes) == 4


def test_each_key_of_a_dictionary_has_its_own_and_what_is_gone_has_one():
    """A time that is measured into a dictionary excuses its own key, and no count beside it."""
    callback = Keeps()
    state = begun(callback)
    callback.table["epochs"] = 2
    name = "callback Keeps.table"
    assert fingerprints(state) == {f"{name}['epochs']": "2"}
    callback.table["more"] = 1
    changes = fingerprints(state)
    assert set(changes) == {f"{name}['epochs']", f"{name}['more']", f"{name}.keys()"}
    del callback.table["took"], callback.left
    changes = fingerprints(state)
    assert changes[f"{name}['took']"] == changes["callback Keeps: attribute 'left'"] == "missing"


class Pair(tuple[int, int]):
    """A class of the user's whose values are not in its attributes."""

    __slots__ = ()


def test_a_fingerprint_follows_the_value_and_not_the_kind_of_sequence_or_number():
    callback = Keeps()
    state = begun(callback)
    changes = []
    values = ([1, 2], (1, 2), [1, 3], {"a": np.arange(300)}, {"a": np.arange(1, 301)})
    for value in (*values, Pair((1, 2)), Pair((1, 3))):
        callback.left = value
        changes.append(fingerprints(state))
    assert changes[0] == changes[1]
    assert changes[0].pop("callback Keeps: attribute 'left'") == "list"
    assert changes[0] == {"callback Keeps.left[0]": "1", "callback Keeps.left[1]": "2"}
    assert changes[2]["callback Keeps.left[1]"] == "3"
    assert changes[3].keys() == changes[4].keys()
    assert changes[3] != changes[4]
    assert changes[5] != changes[6], "what a class holds beside its attributes counts"


def _in_place(callback):
    callback.same.append(3)
    callback.long.append(1)
    callback.long[0] = 7
    callback.table["epochs"] = 2
    callback.numbered[1] = "one"
    callback.members.add("b")
    callback.inner.count = 4
    callback.array[1] = 5.0
    callback.nested["deep"][0]["x"] = 8


def _anew(callback):
    """Put the same values as `_in_place`, in new objects, as a set_state does."""
    callback.same = [1, 2, 3]
    callback.long = [7, *range(1, 200), 1]
    callback.table = {"took": 0.0, "epochs": 2}
    callback.numbered = {0: "zero", 1: "one"}
    callback.members = {"a", "b"}
    callback.inner = Inner()
    callback.inner.count = 4
    callback.array = np.array([0.0, 5.0, 0.0])
    callback.unchanged = np.ones(4)
    callback.nested = {"deep": [{"x": 8, "y": 1}]}


def test_objects_made_anew_by_set_state_have_the_fingerprints_of_those_changed_in_place():
    changes = []
    for change in (_in_place, _anew):
        callback = Keeps()
        state = begun(callback)
        change(callback)
        changes.append(fingerprints(state))
    assert changes[0] == changes[1]
    name = "callback Keeps"
    assert changes[0].keys() == {
        f"{name}.same[2]",
        f"{name}.long",
        f"{name}.table['epochs']",
        f"{name}.numbered",
        f"{name}.members",
        f"{name}.inner: attribute 'count'",
        f"{name}.array",
        f"{name}.nested['deep'][0]['x']",
    }


@pytest.mark.parametrize("change", [_in_place, _anew])
def test_a_value_that_set_state_puts_back_otherwise_has_another_fingerprint(change):
    """The control: each of these values counts, whichever way it was changed."""
    callback = Keeps()
    state = begun(callback)
    change(callback)
    first_changes = fingerprints(state)
    callback.same[2] = 4
    callback.long[5] = 0
    callback.table["epochs"] = 3
    callback.numbered[0] = "none"
    callback.inner.count = 5
    callback.array[2] = 1.0
    callback.members.discard("a")
    callback.nested["deep"][0]["x"] = 9
    after = fingerprints(state)
    assert after.keys() == first_changes.keys()
    assert [name for name in first_changes if first_changes[name] == after[name]] == []


def test_a_path_into_the_trials_directory_is_the_same_in_another_directory():
    changes = []
    for directory in ("/runs/trial/files", "/tmp/replay/files"):
        callback = Keeps()
        state = begun(callback, directory=directory)
        callback.path = f"{directory}/epoch-3.txt"
        changes.append(fingerprints(state))
    assert changes[0] == changes[1] != {}


def test_a_callback_that_only_writes_has_none():
    callback = Keeps()
    state = begun(callback, output=[callback])
    callback.left = 5
    assert fingerprints(state) == {}


@pytest.mark.parametrize("stable", [True, False])
def test_a_token_that_differs_each_time_is_a_change_unless_it_is_known_to(stable):
    """A dataset's iterator that reads ahead has another position each time: it may have advanced."""
    tokens = iter(range(100))
    holder = Uncaptured(object(), "it", Kind((), "it", "", lambda _: next(tokens), stable=stable))
    holder.begin()
    assert holder.changed() is stable
