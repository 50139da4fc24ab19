"""Whatever two checkpoints do not have alike is found, by the user's name; and nothing else is."""

import copy

import numpy as np
import pytest
from checkpoints_on_disk import STATE, TENSORS, Planted, write

from sweeper.checkpoint.format import relocated
from sweeper.replay.comparison import compare_checkpoints, compare_model, judge


def differences(tmp_path, state=None, **tensors):
    changed = {name.replace("__", "/"): value for name, value in tensors.items()}
    return compare_checkpoints(
        write(tmp_path / "a"),
        write(tmp_path / "bb", state, {**TENSORS, **changed}),
        objectives=["val_accuracy"],
    )


def test_checkpoints_that_are_the_same_do_not_differ_however_long_they_took(tmp_path):
    assert differences(tmp_path) == []
    # How far tf.data has read ahead is no difference; anything else that is kept of the data is one.
    read_ahead = np.ones(5, np.uint8)
    assert differences(tmp_path / "ahead", data__train__iterator=read_ahead) == []
    assert differences(tmp_path / "more", data__train__order=np.ones(5))
    # Names that Keras made up are no values.
    state = copy.deepcopy(STATE)
    state["model"] = ["dense_7/kernel", "dense_7/bias"]
    assert differences(tmp_path / "names", state) == []


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        (
            "model__00000",
            np.arange(6, dtype=np.float64),
            "model variable 0 (dense/kernel): float32[6] undisturbed, float64[6] resumed",
        ),
        ("reachable__00001", np.zeros(1), "reachable, '1': only resumed"),
    ],
)
def test_a_tensor_that_differs_is_named(tmp_path, tensor, value, message):
    (found,) = differences(tmp_path, **{tensor: value})
    assert str(found).startswith(message)
    assert (found.level, found.excusable) == ("error", False)


VALUES = [
    (["global_seed_generator"], 7, "the state of global seed generator: null undisturbed, 7"),
    (["another"], {"x": 1}, "the state of another: missing undisturbed, {"),
    (["model"], ["dense/kernel"], "the state of model: 2 undisturbed, 1 resumed"),
    (
        ["user_state", "changed", "callback Count", "set", "count"],
        3.0,
        "callback Count, attribute 'count': 3 undisturbed, 3.0 resumed",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), VALUES, ids=lambda p: str(p)[:60])
def test_a_value_that_differs_is_named_with_both_values(tmp_path, path, value, message):
    other = Planted(path).write(tmp_path / "bb", value)
    (found,) = compare_checkpoints(write(tmp_path / "a"), other, objectives=["val_accuracy"])
    assert str(found).startswith(message)


def test_a_new_object_elsewhere_makes_no_difference_of_those_after_it(tmp_path):
    """Shared objects are named by their first place; one more of them shifts no other."""
    state = copy.deepcopy(STATE)
    kept = state["user_state"]
    kept["changed"]["callback Another"] = {"set": {"x": {"!": "list", "v": [9]}}, "gone": []}
    (found,) = differences(tmp_path, state)
    assert found.name == "callback Another, attribute 'x'"


def test_an_array_is_excused_in_the_elements_that_differ_anyway_and_in_no_other(tmp_path):
    seconds = Planted(["user_state/callback Count.seconds", 0])
    more = Planted(["user_state/callback Count.seconds", 2])
    whole = write(tmp_path / "a")
    anyway = compare_checkpoints(whole, seconds.write(tmp_path / "bb", 0.125))
    same = compare_checkpoints(whole, seconds.write(tmp_path / "ccc", 0.75))
    assert [each.level for each in judge(same, anyway, None)] == ["note"]
    other = compare_checkpoints(whole, more.write(tmp_path / "dddd", 3.0))
    assert [each.level for each in judge(other, anyway, None)] == ["error"]
    assert str(other[0]).startswith(
        "callback Count, attribute 'seconds': differs in 1 of 3 values, by at most 3"
    )


def test_the_replays_own_directory_stands_for_the_trials(tmp_path):
    state = copy.deepcopy(STATE)
    state["user_state"]["changed"]["callback Count"]["set"]["file"] = "/runs/trial/files/a.txt"
    moved = relocated(state, "/runs/trial/files", "/tmp/replay/files")
    assert moved != state
    one, other = write(tmp_path / "a", state), write(tmp_path / "bb", moved)
    assert len(compare_checkpoints(one, other)) == 1
    directories = ("/runs/trial/files", "/tmp/replay/files")
    assert compare_checkpoints(one, other, directories=directories) == []
    assert relocated("/runs/trial/files-of-another", "/runs/trial/files", "/x") == (
        "/runs/trial/files-of-another"
    )


def test_two_models_are_compared_in_their_weights_alone():
    state = {"model": ["dense/kernel"]}
    ours = {"model/00000": np.zeros(2), "optimizer/00000": np.zeros(1)}
    theirs = {"model/00000": np.array([0.0, 0.5]), "optimizer/00000": np.ones(1)}
    (found,) = compare_model(ours, theirs, state, ("kept", "replayed"))
    assert str(found) == (
        "model variable 0 (dense/kernel): differs in 1 of 2 values, by at most 0.5"
    )
