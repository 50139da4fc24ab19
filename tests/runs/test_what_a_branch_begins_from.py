"""A parent's checkpoint is put beside a branch's files, on a disk and in an object store."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from sweeper.api.branching import put_beside
from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint
from sweeper.checkpoint.remote_store import open_store
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location, RunPaths, parse_location


@pytest.fixture(params=["disk", "memory"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> RunPaths:
    apart: Location | None = None
    if request.param == "memory":
        apart = parse_location(f"memory://bucket-{uuid.uuid4().hex}/prefix")
    return RunPaths(tmp_path, "digits", apart)


def committed(paths: RunPaths, tmp_path: Path) -> Location:
    store = open_store(paths.checkpoints(0, 1), spool=tmp_path / "spool", origin=None)
    snapshot = Snapshot(20, 1, {"model/00000": np.arange(3.0)}, {"position": {}}, {}, ())
    return store.commit(snapshot).path


def test_what_a_branch_begins_from_outlives_its_parents(paths: RunPaths, tmp_path: Path) -> None:
    path = committed(paths, tmp_path)
    files = paths.trial_files(0)
    files.mkdir(parents=True)
    (files / "log.csv").write_text("epoch\n0\n")
    put_beside(path, 0, 4, paths)
    put_beside(path, 0, 4, paths)  # again, after a branch that was never added
    open_store(path.parent, spool=tmp_path / "spool", origin=None).delete(path)
    assert list_checkpoints(path.parent) == ()
    (kept,) = list_checkpoints(paths.branch_start(4))
    loaded = load_checkpoint(kept)
    assert loaded.step == 20
    assert loaded.tensors["model/00000"].tolist() == [0.0, 1.0, 2.0]
    assert (paths.trial_files(4) / "log.csv").read_text() == "epoch\n0\n"


def test_a_disk_that_refuses_is_said_before_anything_is_written_down(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path, "digits")
    path = committed(paths, tmp_path)
    paths.trial(4).write_text("a file where the directory goes")
    with pytest.raises(
        CheckpointError, match=r"cannot be copied to the directory of trial 4: .*branch again"
    ):
        put_beside(path, 0, 4, paths)
