"""Pinning keeps what an audit needs out of retention's reach, and changes nothing of the trial's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from sweeper.checkpoint.format import Committed, Snapshot
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.errors import CheckpointError
from sweeper.run.protocol.messages import AuditOrder, IntervalPinned
from sweeper.run.trial.pinning import AuditPins, PinningStore
from sweeper.spec.checkpointing import Keep
from sweeper.train.state.state import Position

STEPS = 8
"""Steps of an epoch."""


def snapshot(step: int, *, inside: int = 0) -> Snapshot:
    """A snapshot at ``step``; ``inside`` an epoch's last block of validation, if that is its length."""
    return Snapshot(
        step=step,
        epoch=step // STEPS,
        tensors={"model/00000": np.full(4, step, np.float32)},
        state={"position": {"step": step, "step_in_epoch": inside, "stopped": False}},
        metrics={},
        digest_names=("model/00000",),
    )


class Pinned:
    """A store of the trial's own checkpoints, pinned as ``order`` says, and its writer."""

    def __init__(self, directory: Path, keep: Keep | None = None, **order: object) -> None:
        given = {"which": "first", "wanted": 2, "middle": True, **order}
        self.pins = AuditPins(AuditOrder(str(directory / "audit" / "attempt-01"), **given))  # type: ignore[arg-type]
        self.own = CheckpointStore(directory / "checkpoints")
        self.announced: list[int] = []
        self.writer = BackgroundWriter(
            PinningStore(self.own, self.pins, elsewhere=False),
            keep or Keep(),
            lambda done: self.announced.append(done.step),
            lambda _path: None,
        )

    def write(self, *steps: int) -> None:
        for step in steps:
            self.writer.submit(snapshot(step))
            self.writer.flush()

    def news(self) -> list[tuple[int, int]]:
        return [(n.from_step, n.to_step) for n in self.intervals()]

    def intervals(self) -> list[IntervalPinned]:
        return self.pins.unreported()


def step_at(path: str | None) -> int:
    return load_checkpoint(Path(path or "")).step


def test_the_first_intervals_begin_in_the_middle_of_an_epoch_and_outlive_retention(
    tmp_path: Path,
) -> None:
    trial = Pinned(tmp_path, Keep(last=1))
    assert trial.pins.begin(Position(), STEPS, None) == 4
    assert trial.pins.needs_middle
    trial.writer.submit(snapshot(4, inside=4), aside=trial.pins.middle)
    trial.write(8, 16, 24)
    trial.writer.close()
    assert trial.announced == [8, 16, 24], "the middle one is none of the trial's checkpoints"
    assert [path.name for path in trial.own.list()] == ["step-000000024"]
    found = trial.intervals()
    assert [(n.from_step, n.to_step, n.to_epoch) for n in found] == [(4, 8, 1), (8, 16, 2)]
    assert [(step_at(n.from_path), step_at(n.to_path)) for n in found] == [(4, 8), (8, 16)]


def test_pinning_takes_no_room_while_the_trials_own_copy_is_there(tmp_path: Path) -> None:
    trial = Pinned(tmp_path, which="all", middle=False)
    trial.pins.begin(Position(), STEPS, None)
    trial.write(8)
    (interval,) = trial.intervals()
    own = trial.own.list()[0] / "tensors.safetensors"
    assert own.samefile(Path(interval.to_path) / "tensors.safetensors")
    assert interval.from_path is None


def test_where_no_links_can_be_made_the_checkpoint_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_file_system(*_paths: object, **_options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    trial = Pinned(tmp_path, which="all", middle=False)
    trial.pins.begin(Position(), STEPS, None)
    trial.write(8)
    (interval,) = trial.intervals()
    assert interval.problem is None
    assert step_at(interval.to_path) == 8


def test_a_pin_that_fails_costs_its_audit_and_not_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    trial = Pinned(tmp_path, which="all", middle=False)
    trial.pins.begin(Position(), STEPS, None)
    trial.write(8)
    assert trial.announced == [8]
    (interval,) = trial.intervals()
    assert interval.problem is not None
    assert "could not be pinned: [Errno 28]" in interval.problem
    assert not Path(interval.directory).exists()


def test_one_drawn_interval_begins_at_its_epoch(tmp_path: Path) -> None:
    trial = Pinned(tmp_path, which="drawn", wanted=1, middle=False, epoch=2)
    assert trial.pins.begin(Position(), STEPS, None) == 0
    trial.write(8, 16, 24, 32)
    assert trial.news() == [(16, 24)]
    from_the_beginning = Pinned(tmp_path / "other", which="drawn", wanted=1, middle=False)
    from_the_beginning.pins.begin(Position(), STEPS, None)
    from_the_beginning.write(8, 16)
    assert from_the_beginning.news() == [(0, 8)]


def test_a_trial_that_goes_on_begins_its_interval_with_the_checkpoint_it_came_from(
    tmp_path: Path,
) -> None:
    before = CheckpointStore(tmp_path / "before").commit(snapshot(12, inside=4))
    trial = Pinned(tmp_path, wanted=1, middle=True)
    trial.pins.begin(Position(step=12, epoch=1, step_in_epoch=4), STEPS, before.path)
    trial.write(16, 24)
    assert trial.news() == [(12, 16)], "one more was wanted"


def test_an_epoch_of_one_step_has_no_middle(tmp_path: Path) -> None:
    trial = Pinned(tmp_path)
    assert trial.pins.begin(Position(), 1, None) == 0
    trial.write(8, 16)
    assert trial.news() == [(0, 8), (8, 16)]


def test_a_snapshot_taken_during_validation_ends_no_interval(tmp_path: Path) -> None:
    """A replay stops between steps and between epochs, and nowhere else."""
    trial = Pinned(tmp_path, which="all", middle=False)
    trial.pins.begin(Position(), STEPS, None)
    trial.writer.submit(snapshot(8, inside=STEPS))
    trial.writer.flush()
    assert trial.news() == []


def test_what_nobody_needs_goes_when_the_attempt_is_over(tmp_path: Path) -> None:
    trial = Pinned(tmp_path)
    trial.pins.begin(Position(), STEPS, None)
    trial.writer.submit(snapshot(4, inside=4), aside=trial.pins.middle)
    trial.writer.flush()
    assert (tmp_path / "audit").exists()
    trial.pins.close()
    assert not (tmp_path / "audit").exists()


def test_of_an_object_store_a_copy_is_kept_here_for_as_long_as_it_is_needed(tmp_path: Path) -> None:
    pins = AuditPins(AuditOrder(str(tmp_path / "audit" / "attempt-01"), "first", 2))
    pins.begin(Position(), STEPS, None)

    class Elsewhere:
        def commit(self, snapshot: Snapshot, **_options: object) -> Committed:
            return Committed(snapshot.step, snapshot.epoch, "", 0, tmp_path / "nowhere")

        def delete(self, path: Path) -> None:
            raise CheckpointError(str(path))

    store = PinningStore(Elsewhere(), pins, elsewhere=True)  # type: ignore[arg-type]
    for step in (8, 16, 24, 32):
        store.commit(snapshot(step))
    found = pins.unreported()
    assert [(step_at(n.from_path), step_at(n.to_path)) for n in found] == [(8, 16), (16, 24)]
