"""A branch takes everything of its parent's checkpoint but what holds the changed parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import exactness_callbacks as calls
import exactness_models as models
import keras
import numpy as np
import pytest
from exactness_models import STEPS, compiled
from keras import layers, optimizers
from trainings import Watcher, plan, train

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.reading import load_newest
from sweeper.train import branching
from sweeper.train.branching import BranchReport, Initial, merged
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import TrainingPlan

Build = Callable[[float], keras.Model]


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple


def with_dropout(optimizer: Callable[[float], Any]) -> Build:
    return lambda rate: compiled(optimizer(rate), layers.Dropout(0.3))


CASES = [
    Case("SGD", with_dropout(lambda rate: optimizers.SGD(rate, 0.9)), calls.of_keras),
    Case("Adam", with_dropout(lambda rate: optimizers.Adam(rate, amsgrad=True))),
    Case("averages", lambda _rate: models.averaged(), calls.swapping),
    Case("accumulation", lambda _rate: models.accumulating()),
]


def planned(case: Case, rate: float) -> TrainingPlan:
    keras.backend.clear_session(free_memory=False)
    return plan(
        model=lambda: case.build(rate), data=models.data, callbacks=case.callbacks, epochs=3
    )


def branched(
    case: Case, loaded: LoadedCheckpoint, rate: float, parent_rate: float | None = None
) -> tuple[TrainingLoop, LoadedCheckpoint, BranchReport]:
    """A branch of ``loaded``, and what it goes on from."""
    before = None if parent_rate is None else Initial.of(planned(case, parent_rate))
    own = planned(case, rate)
    initial = Initial.of(own)
    loop = TrainingLoop(own, Watcher(block=1))
    if before is not None:
        before = Initial.from_json(before.to_json())
    pair = None if before is None else (before, initial)
    goes_on_from, report = merged(loaded, loop._state.components, pair)
    return loop, goes_on_from, report


def parents_checkpoint(case: Case, rate: float, directory: Path, at: int) -> LoadedCheckpoint:
    train(planned(case, rate), Watcher(directory, stop_at=at, block=1))
    loaded = load_newest([directory], pytest.fail)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name == "SGD" else pytest.mark.whole) for case in CASES],
    ids=lambda case: case.name,
)
def test_a_branch_without_a_change_ends_as_its_parent(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = Watcher(tmp_path / "whole", block=1)
    train(planned(case, 0.02), whole)
    loaded = parents_checkpoint(case, 0.02, tmp_path / "parent", STEPS + 2)
    loop, goes_on_from, report = branched(case, loaded, 0.02)
    ended = Watcher(tmp_path / "branch", block=1)
    loop._observer = ended
    loop.run(goes_on_from)
    assert ended.digest == whole.digest
    assert report.kept == ()
    assert len(report.taken) > 4


def value(loop: TrainingLoop, name: str) -> float:
    (found,) = [v for v in loop._plan.model.optimizer.variables if v.path.endswith(name)]
    return float(found.numpy())


def test_a_changed_rate_is_kept_and_the_slots_come_from_the_parent(tmp_path: Path) -> None:
    case = CASES[1]
    loaded = parents_checkpoint(case, 0.02, tmp_path, STEPS + 2)
    loop, goes_on_from, report = branched(case, loaded, 0.005, parent_rate=0.02)
    loop._state.before_train_begin(goes_on_from)
    loop._callbacks.on_train_begin()
    position = loop._state.restore(goes_on_from)
    assert value(loop, "learning_rate") == pytest.approx(0.005)
    assert value(loop, "iteration") == STEPS + 2 == position.step
    assert [name.rpartition("/")[2] for name in report.kept] == ["learning_rate"]
    slots = [v for v in loop._plan.model.optimizer.variables if "momentum" in v.path]
    assert slots
    assert all(np.any(slot.numpy() != 0) for slot in slots if slot.numpy().size > 3)


def test_without_the_second_build_the_parents_rate_would_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what tells hyperparameters apart is the comparison of the two builds."""
    case = CASES[1]
    loaded = parents_checkpoint(case, 0.02, tmp_path, 3)
    monkeypatch.setattr(branching, "_differing", lambda *_: {})
    loop, goes_on_from, report = branched(case, loaded, 0.005, parent_rate=0.02)
    assert report.kept == ()
    loop._state.before_train_begin(goes_on_from)
    loop._callbacks.on_train_begin()
    loop._state.restore(goes_on_from)
    assert value(loop, "learning_rate") == pytest.approx(0.02)


class Patient(keras.callbacks.Callback):
    """Has a parameter, a parameter that training changes, and a count."""

    def __init__(self, patience: int) -> None:
        super().__init__()
        self.patience = patience
        self.left = patience
        self.seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.left -= 1
        self.seen += 1


def test_a_callbacks_parameter_is_kept_and_its_count_taken(tmp_path: Path) -> None:
    def case(patience: int) -> Case:
        return replace(CASES[0], callbacks=lambda: [Patient(patience)])

    loaded = parents_checkpoint(case(5), 0.02, tmp_path, STEPS + 1)
    before = Initial.from_json(Initial.of(planned(case(5), 0.02)).to_json())
    own = planned(case(9), 0.02)
    loop = TrainingLoop(own, Watcher(block=1))
    goes_on_from, report = merged(loaded, loop._state.components, (before, Initial.of(own)))
    loop._state.before_train_begin(goes_on_from)
    loop._callbacks.on_train_begin()
    loop._state.restore(goes_on_from)
    (callback,) = own.callbacks
    assert vars(callback)["patience"] == 9
    assert vars(callback)["left"] == 9, "what training made of the old value belongs to that"
    assert vars(callback)["seen"] == 1
    assert set(report.kept) == {"callback Patient.patience", "callback Patient.left"}


def test_what_does_not_fit_is_named_with_both_shapes(tmp_path: Path) -> None:
    def build(units: float) -> keras.Model:
        return compiled(optimizers.SGD(0.1), layers.Dense(int(units)))

    case = Case("units", build)
    loaded = parents_checkpoint(case, 4, tmp_path, 2)
    loop = TrainingLoop(planned(case, 6), Watcher(block=1))
    found = loop._state.misfits(loaded)
    assert any("dense" in misfit and "6]" in misfit and "4]" in misfit for misfit in found), found
