"""A trial's checkpoints are found where they are now, and what is missing is said."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from checkpoint_faults import snapshot

from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError
from sweeper.records.results import AttemptRecord, CheckpointRecord, TrialRecord
from sweeper.run.worker import checkpoints as locating
from sweeper.run.worker.checkpoints import bring_files, locate
from sweeper.support.paths import RunPaths, parse_location


def trial(*paths):
    checkpoints = tuple(
        CheckpointRecord(int(str(path)[-9:]), 0, "d", 1, str(path)) for path in paths
    )
    attempt = AttemptRecord(1, "lost", 0, None, "here", 1, datetime.now(UTC), None, None)
    return TrialRecord(
        "digits", 0, "interrupted", {}, None, 0, None, attempts=(attempt,), checkpoints=checkpoints
    )


def write(paths, *steps):
    origin = Origin("digits", "1" * 32, 0, 0, directory=str(paths.trial_files(0)))
    store = CheckpointStore(Path(str(paths.checkpoints(0, 1))), origin=origin)
    return [store.commit(snapshot(step)).path for step in steps]


@pytest.fixture
def old(tmp_path):
    return RunPaths(tmp_path / "old", "digits")


@pytest.fixture
def new(tmp_path):
    return RunPaths(tmp_path / "new", "digits")


def test_what_is_where_it_was_is_no_news(old):
    paths = write(old, 1, 2)
    located = locate(trial(*paths), old)
    assert located.known == tuple(map(str, paths))
    assert not located.moved
    assert located.notice(trial(*paths), old.trial_files(0)) is None


def test_a_copy_is_gone_on_with_and_the_original_is_not(old, new):
    before, now = write(old, 1), write(new, 1)
    located = locate(trial(*before), new)
    assert located.known == (str(now[0]),)
    assert dict(located.moved) == {str(before[0]): str(now[0])}
    assert located.newest is None
    assert located.notice(trial(*before), new.trial_files(0)) is None


def test_checkpoints_elsewhere_are_found_by_their_paths_and_said(old, new):
    before = write(old, 1, 2)
    located = locate(trial(*before), new)
    assert located.known == tuple(map(str, before))
    assert located.newest == before[1]
    assert f"checkpoints in {before[0].parent}" in (
        located.notice(trial(*before), new.trial_files(0)) or ""
    )
    files = old.trial_files(0)
    files.mkdir(parents=True)
    (files / "log.csv").write_text("0,1\n")
    new.trial_files(0).mkdir(parents=True)
    bring_files(before[1], new.trial_files(0))
    assert (new.trial_files(0) / "log.csv").read_text() == "0,1\n"
    (new.trial_files(0) / "log.csv").write_text("mine")
    bring_files(before[1], new.trial_files(0))
    assert (new.trial_files(0) / "log.csv").read_text() == "mine", "what is there stays"


def test_what_is_nowhere_is_said_with_where_training_begins_again(old):
    gone = Path(str(old.checkpoints(0, 1))) / "step-000000009"
    message = locate(trial(gone), old).notice(trial(gone), old.trial_files(0))
    assert message is not None
    assert f"of step 9, is no longer at {gone}" in message
    assert "from the beginning" in message
    (there,) = write(old, 4)
    located = locate(trial(there, gone), old)
    assert "from step 4" in (located.notice(trial(there, gone), old.trial_files(0)) or "")
    assert located.gone == ()


def test_an_older_one_that_is_gone_and_a_newer_one_that_nobody_wrote_down_are_no_loss(old):
    """As after a kill between a commit or a deletion and its row."""
    deleted = Path(str(old.checkpoints(0, 1))) / "step-000000001"
    known, _unrecorded = write(old, 2, 3)
    located = locate(trial(deleted, known), old)
    assert located.notice(trial(deleted, known), old.trial_files(0)) is None
    assert located.gone == (str(deleted),)
    unlisted = Path(str(old.checkpoints(0, 2))) / "step-000000003"
    assert locate(trial(unlisted), old).notice(trial(unlisted), old.trial_files(0)) is None


def test_what_lies_in_an_object_store_is_known_by_its_name(new):
    url = "s3://bucket/digits/trial-00000/attempt-01/checkpoints/step-000000004"
    paths = RunPaths(new.root, new.study, parse_location("s3://bucket"))
    assert locate(trial(url), new).known == (url,)
    assert locate(trial(url), paths).moved == {}


def test_a_disk_that_does_not_tell_is_no_missing_checkpoint(old, monkeypatch):
    (path,) = write(old, 1)

    def stale(_self):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(locating.Path, "is_dir", stale)
    with pytest.raises(CheckpointError, match="check the disk"):
        locate(trial(path), old)
