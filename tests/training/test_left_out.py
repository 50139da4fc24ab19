"""What training changes in a callback with a get_state of its own, and get_state leaves out, has a fingerprint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from sweeper.training.userstate import Roots, UserState

SEEN = 0


class Inner:
    def __init__(self) -> None:
        self.count = 0


class Keeps(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.kept = 0
        self.same = [1, 2]
        self.left: Any = 0
        self.inner = Inner()
        self.table: dict[str, float] = {"took": 0.0, "epochs": 0}
        self.array = np.zeros(3)
        self.file: Any = None
        self.path = ""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        global SEEN
        SEEN += 1

    def get_state(self) -> dict[str, int]:
        return {"kept": self.kept}

    def set_state(self, state: dict[str, int]) -> None:
        self.kept = state["kept"]


def begun(callback: Keeps, **more: Any) -> UserState:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    state = UserState(Roots(model, [callback], exempt=[callback], **more))
    state.begin()
    return state


def fingerprints(state: UserState) -> dict[str, str]:
    saved: Any = state.capture({})
    assert not any("Keeps" in path for path in saved["changed"]), "nothing of it is kept as state"
    return dict(saved["left_out"])


def test_what_has_changed_is_named_wherever_the_callback_leads_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = Keeps()
    state = begun(callback)
    assert fingerprints(state) == {}
    callback.left = np.float32(2)
    callback.inner.count = 3
    callback.array[1] = 4
    monkeypatch.setattr(sys.modules[__name__], "SEEN", 7)
    with (tmp_path / "log.txt").open("w") as callback.file:
        found = fingerprints(state)
    assert found["callback Keeps: attribute 'left'"] == "2.0"
    assert found["callback Keeps.inner: attribute 'count'"] == "3"
    assert found["callback Keeps.array"].startswith("digest ")
    assert found[f"module {__name__}: variable 'SEEN'"] == "7"
    assert len(found) - ("callback Keeps: attribute 'file'" in found) == 4


def test_each_key_of_a_dictionary_has_its_own_and_what_is_gone_has_one() -> None:
    """A time that is measured into a dictionary excuses its own key, and no count beside it."""
    callback = Keeps()
    state = begun(callback)
    callback.table["epochs"] = 2
    name = "callback Keeps.table"
    assert fingerprints(state) == {f"{name}['epochs']": "2"}
    callback.table["more"] = 1
    found = fingerprints(state)
    assert set(found) == {f"{name}['epochs']", f"{name}['more']", f"{name}.keys()"}
    del callback.table["took"], callback.left
    found = fingerprints(state)
    assert found[f"{name}['took']"] == found["callback Keeps: attribute 'left'"] == "missing"


def test_a_fingerprint_follows_the_value_and_not_the_kind_of_sequence_or_number() -> None:
    callback = Keeps()
    state = begun(callback)
    texts = []
    for value in ([1, 2], (1, 2), [1, 3], {"a": np.arange(300)}, {"a": np.arange(1, 301)}):
        callback.left = value
        texts.append(fingerprints(state)["callback Keeps: attribute 'left'"])
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_a_path_into_the_trials_directory_is_the_same_in_another_directory() -> None:
    found = []
    for directory in ("/runs/trial/files", "/tmp/replay/files"):
        callback = Keeps()
        state = begun(callback, directory=directory)
        callback.path = f"{directory}/epoch-3.txt"
        found.append(fingerprints(state))
    assert found[0] == found[1] != {}


def test_a_callback_that_only_writes_has_none() -> None:
    callback = Keeps()
    state = begun(callback, output=[callback])
    callback.left = 5
    assert fingerprints(state) == {}
