"""A trial that goes on finds its checkpoints where they are now, and what is missing is said."""

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_faults import snapshot
from scripted_trials import scripted_sweep

from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError

HERE = "/runs/"
COPIED = "/elsewhere/"
NOWHERE = ""
UNTOLD = 0


def place(trial, step, where, told=1):
    """Write a checkpoint below a directory of runs, and tell of it as one of the attempt ``told``."""
    directory, files = (
        Path(str(path).replace(HERE, where or HERE))
        for path in (trial.assignment.checkpoints[-1], trial.assignment.files)
    )
    path = directory / f"step-{step:09}"
    if where != NOWHERE:
        origin = replace(trial.assignment.origin, directory=str(files))
        CheckpointStore(directory, origin=origin).commit(snapshot(step))
    if told != UNTOLD:
        trial.keep(step, str(path).replace("attempt-01", f"attempt-{told:02}"))


def resume(directory, first):
    """Run a trial whose first attempt calls ``first``, and dies; return what is known and said then."""

    def die(trial):
        first(trial)
        return -9

    with scripted_sweep(directory / "runs", {(0, 1): die}) as sweep:
        sweep.serve()
        if sweep.error is not None:
            raise sweep.error
        notices = [n for n in sweep.notices if "no longer at" in n or "checkpoints in" in n]
        paths = [record.path for record in sweep.trials[0].checkpoints]
        return sweep.launcher.launched[1].known, paths, " ".join(notices)


@pytest.mark.parametrize(
    ("placed", "known_steps", "stored_steps", "pattern"),
    [
        ([(2, HERE)], [2], [2], None),
        ([(1, COPIED), (1, HERE, UNTOLD)], [1], [1], None),
        # As after a kill between a deletion and its row, and a commit and its row.
        ([(1, NOWHERE), (2, HERE), (3, HERE, UNTOLD)], [2], [2], None),
        ([(3, HERE, 2)], [], [3], None),
        (
            [(9, NOWHERE)],
            [],
            [9],
            "of step 9, is no longer at .* trained again, from the beginning",
        ),
        ([(4, HERE), (9, NOWHERE)], [4], [4, 9], "is no longer at .* trained again, from step 4"),
    ],
)
def test_a_trial_goes_on_from_what_is_there_and_a_loss_is_said(
    tmp_path, placed, known_steps, stored_steps, pattern
):
    paths, in_database, text = resume(
        tmp_path, lambda t: [place(t, *position) for position in placed]
    )
    assert [int(path[-9:]) for path in paths] == known_steps
    assert [int(path[-9:]) for path in in_database] == stored_steps
    assert all(HERE in path for path in paths), "a copy is gone on with"
    assert re.search(pattern, text) if pattern else text == ""


@pytest.mark.parametrize("content", [None, "mine"])
def test_checkpoints_elsewhere_are_found_by_their_paths_and_their_files_are_brought(
    tmp_path, content
):
    def first(trial):
        files = Path(trial.assignment.files)
        for directory, text in ((str(files).replace(HERE, COPIED), "theirs"), (files, content)):
            if text is not None:
                Path(directory).mkdir(parents=True)
                (Path(directory) / "log.csv").write_text(text)
        place(trial, 1, COPIED)
        place(trial, 2, COPIED)

    paths, in_database, notice = resume(tmp_path, first)
    assert list(paths) == in_database
    assert COPIED in paths[1]
    assert f"checkpoints in {Path(paths[0]).parent}" in notice
    [log] = (tmp_path / "runs").rglob("log.csv")
    assert log.read_text() == (content or "theirs"), "what is there stays"


def test_what_lies_in_an_object_store_is_known_by_its_name(tmp_path):
    url = "s3://bucket/scripted/trial-00000/attempt-01/checkpoints/step-000000004"
    paths, _, notice = resume(tmp_path, lambda trial: trial.keep(4, url))
    assert (paths, notice) == ((url,), "")


def test_a_disk_that_does_not_tell_is_no_missing_checkpoint(tmp_path, monkeypatch):
    is_dir = Path.is_dir

    def stale(path):
        if path.name.startswith("step-"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return is_dir(path)

    def first(trial):
        place(trial, 1, HERE)
        monkeypatch.setattr(Path, "is_dir", stale)

    with pytest.raises(CheckpointError, match="check the disk"):
        resume(tmp_path, first)
