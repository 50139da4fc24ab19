"""Whatever two checkpoints do not have alike is found, by the user's name; and nothing else is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.checkpoints.format import Snapshot
from sweeper.checkpoints.store import CheckpointStore
from sweeper.checkpoints.values import relocated
from sweeper.execution.audit.differences import Difference, compare_checkpoints

STATE: dict[str, Any] = {
    "position": {
        "step": 8,
        "epoch": 1,
        "step_in_epoch": 0,
        "stopped": False,
        "logs": {"loss": 0.5},
    },
    "model": ["dense/kernel", "dense/bias"],
    "optimizer": ["adam/iteration", "adam/learning_rate"],
    "attributes": {"dropout": {"rate": 0.5}},
    "global_seed_generator": None,
    "python_random": {"version": 3, "gauss": None},
    "history": {
        "epoch": [0],
        "logs": {"!": "dict", "v": [["loss", {"!": "list", "v": [0.5]}]]},
        "epochs": [[0, {"loss": 0.5, "val_accuracy": 0.25, "seconds": 1.5}]],
    },
    "callbacks": [
        {"class": "Count", "attributes": {"count": 3, "file": "/runs/trial/files/a.txt"}},
        {"class": "CSVLogger", "attributes": {}, "file_size": 120},
    ],
    "data": {"train": {"kind": "ArraySource", "state": None}},
}
TENSORS = {
    "model/00000": np.arange(6, dtype=np.float32),
    "model/00001": np.zeros(2, np.float32),
    "optimizer/00000": np.array(8),
    "optimizer/00001": np.array(0.01, np.float32),
    "python_random/0": np.arange(4, dtype=np.uint32),
    "callbacks/0/best": np.ones(3),
}


def write(directory: Path, state: dict[str, Any] | None = None, **tensors: Any) -> Path:
    given = {**TENSORS, **{name.replace("__", "/"): value for name, value in tensors.items()}}
    taken = Snapshot(
        step=8,
        epoch=1,
        tensors=given,
        state=state or STATE,
        metrics={},
        digest_names=tuple(name for name in given if name.startswith(("model", "optimizer"))),
    )
    path = CheckpointStore(directory).commit(taken, trained_seconds=float(directory.name == "a"))
    return Path(str(path.path))


def differences(
    tmp_path: Path, state: dict[str, Any] | None = None, **tensors: Any
) -> list[Difference]:
    return compare_checkpoints(
        write(tmp_path / "a"),
        write(tmp_path / "b", state, **tensors),
        objectives=["val_accuracy"],
    )


def test_checkpoints_that_are_the_same_do_not_differ_however_long_they_took(tmp_path: Path) -> None:
    assert differences(tmp_path) == []


@pytest.mark.parametrize(
    ("tensor", "value", "message", "exact"),
    [
        (
            "model__00000",
            np.arange(6, dtype=np.float32)[::-1].copy(),
            "model variable 0 (dense/kernel) differs (in 6 of 6 values, by at most 5)",
            True,
        ),
        (
            "optimizer__00001",
            np.array(0.02, np.float32),
            (
                "optimizer variable 1 (adam/learning_rate) is 0.009999999776482582, and "
                "0.019999999552965164 after the resume"
            ),
            True,
        ),
        ("python_random__0", np.zeros(4, np.uint32), "python random, '0', differs", True),
        ("callbacks__0__best", np.zeros(3), "callback Count, 'best', differs", False),
        ("model__00000", np.arange(6, dtype=np.float64), "float32[6] and float64[6]", True),
        ("reachable__00000", np.zeros(1), "only the resumed one has it", True),
    ],
)
def test_a_tensor_that_differs_is_named(
    tmp_path: Path, tensor: str, value: Any, message: str, exact: bool
) -> None:
    (found,) = differences(tmp_path, **{tensor: value})
    assert message in str(found)
    assert found.exact is exact


def test_how_far_tf_data_has_read_ahead_is_no_difference(tmp_path: Path) -> None:
    one = write(tmp_path / "a", data__train__iterator=np.zeros(8, np.uint8))
    other = write(tmp_path / "b", data__train__iterator=np.ones(5, np.uint8))
    assert compare_checkpoints(one, other) == []
    # Anything else that is kept of the data counts.
    third = write(tmp_path / "c", data__train__order=np.ones(5, np.uint8))
    assert compare_checkpoints(one, third)


CHANGED_VALUES: list[tuple[list[Any], Any, str, bool]] = [
    (["position", "stopped"], True, "position, 'stopped', is false, and true", True),
    (
        ["position", "logs", "accuracy"],
        0.1,
        "position, 'logs/accuracy', is missing, and 0.1",
        False,
    ),
    (
        ["attributes", "dropout", "rate"],
        0.25,
        "attributes, 'dropout/rate', is 0.5, and 0.25",
        False,
    ),
    (["global_seed_generator"], 7, "the state of global seed generator is null, and 7", True),
    (["python_random", "gauss"], 0.5, "python random, 'gauss', is null, and 0.5", True),
    (["callbacks", 0, "attributes", "count"], 4, "callback Count, 'count', is 3, and 4", False),
    (["callbacks", 0, "attributes", "count"], 3.0, "is 3, and 3.0 after the resume", False),
    (["data", "train", "state"], [1], "data, 'train/state', is null, and [1]", False),
    (["history", "epochs", 0, 1, "seconds"], 2.5, "'epochs/0/1/seconds', is 1.5, and 2.5", False),
    (["history", "epochs", 0, 1, "val_accuracy"], 0.5, "'epochs/0/1/val_accuracy', is 0.25", True),
    (
        ["history", "logs", "v"],
        [["loss", {"!": "list", "v": [1.5]}]],
        "'logs/loss/0', is 0.5",
        False,
    ),
    (["model"], ["dense/kernel"], "model is 2, and 1", True),
    (["another"], {"x": 1}, "the state of another is missing, and {", False),
]


@pytest.mark.parametrize(
    ("path", "value", "message", "exact"), CHANGED_VALUES, ids=lambda p: str(p)[:40]
)
def test_a_value_that_differs_is_named(
    tmp_path: Path, path: list[Any], value: Any, message: str, exact: bool
) -> None:
    """Every component: the negative control of a comparison that finds nothing."""
    state = copy.deepcopy(STATE)
    inside: Any = state
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    (found,) = differences(tmp_path, state)
    assert message in str(found)
    assert found.exact is exact


def test_names_that_keras_made_up_and_the_length_of_a_log_file_are_no_values(
    tmp_path: Path,
) -> None:
    state = copy.deepcopy(STATE)
    state["model"] = ["dense_7/kernel", "dense_7/bias"]
    state["callbacks"][1]["file_size"] = 121
    assert differences(tmp_path, state) == []


def test_the_replays_own_directory_stands_for_the_trials(tmp_path: Path) -> None:
    state = relocated(STATE, "/runs/trial/files", "/tmp/replay/files")
    assert state["callbacks"][0]["attributes"]["file"] == "/tmp/replay/files/a.txt"
    one, other = write(tmp_path / "a"), write(tmp_path / "b", state)
    assert len(compare_checkpoints(one, other)) == 1
    directories = ("/runs/trial/files", "/tmp/replay/files")
    assert compare_checkpoints(one, other, directories=directories) == []
    assert relocated("/runs/trial/files-of-another", "/runs/trial/files", "/x") == (
        "/runs/trial/files-of-another"
    )
