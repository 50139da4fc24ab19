"""A commit or a deletion that is stopped anywhere, by anything, loses nothing that was whole."""

import errno
import os
import re
import shutil
import signal
import subprocess

import pytest
from checkpoint_faults import (
    CountingOperations,
    FailingOperations,
    KillingOperations,
    OverwritingStore,
    PowerCut,
    PowerCutOperations,
    commit_two,
    delete_one,
    killed_at,
    snapshot,
)

from sweeper.checkpoint.identity import unfinished_name
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.checkpoint.store import CheckpointStore, sweep_leftovers
from sweeper.errors import CheckpointError


def operations_of(work, directory, make=CheckpointStore):
    """Return the names of the operations that ``work`` takes where step 1 is there."""
    CheckpointStore(directory).commit(snapshot(1))
    counting = CountingOperations()
    work(make(directory, operations=counting))
    shutil.rmtree(directory)
    return counting.names


def kill_everywhere(work, directory, make):
    """Kill ``work`` before, in and after each of its operations.

    Yields:
        For each point: the operation, its number, the moment, the step that loads then (None for
        none), how many checkpoints bear a name, and how many notices there were.
    """
    names = operations_of(work, directory, make)
    for number, name in enumerate(names, 1):
        moments = ["before", "half", "after"] if name == "write" else ["before", "after"]
        for moment in moments:
            CheckpointStore(directory).commit(snapshot(1))
            status = killed_at(work, make(directory, operations=KillingOperations(number, moment)))
            assert os.WIFSIGNALED(status), (name, number, moment)
            assert os.WTERMSIG(status) == signal.SIGKILL
            notices = []
            loaded = load_newest([directory], notices.append)
            step = None if loaded is None else loaded.step
            sweep_leftovers(directory)
            leftovers = [p.name for p in directory.iterdir() if p.name.startswith(".")]
            assert leftovers == [], "what a dead writer leaves is swept"
            count = len(list(directory.iterdir()))
            shutil.rmtree(directory)
            yield name, number, moment, step, count, len(notices)


def test_a_commit_killed_at_any_operation_leaves_the_newest_complete_checkpoint(tmp_path):
    kills = list(kill_everywhere(commit_two, tmp_path / "c", CheckpointStore))
    renamed = next(
        i for i, (name, _, moment, *_) in enumerate(kills) if (name, moment) == ("rename", "after")
    )
    for index, (name, number, moment, step, count, notices) in enumerate(kills):
        expected = (2, 2, 0) if index >= renamed else (1, 1, 0)
        assert (step, count, notices) == expected, (name, number, moment)
    assert {name for name, *_ in kills} >= {"create", "write", "fsync", "close", "rename"}


def test_a_deletion_killed_at_any_operation_leaves_all_of_a_checkpoint_or_nothing(tmp_path):
    kills = list(kill_everywhere(delete_one, tmp_path / "c", CheckpointStore))
    for name, number, moment, step, count, notices in kills:
        gone = (name, moment) != ("rename", "before")
        assert (step, count, notices) == ((None, 0, 0) if gone else (1, 1, 0)), (
            name,
            number,
            moment,
        )


def test_control_a_store_that_overwrites_is_caught(tmp_path):
    kills = kill_everywhere(commit_two, tmp_path / "c", OverwritingStore)
    assert any(notices for *_, notices in kills), "half a checkpoint was found under a real name"


def cut_power_everywhere(directory, *, undo_renames):
    """Cut the power before each operation of a commit, and after it was announced."""
    cuts = []
    for number in range(1, len(operations_of(commit_two, directory)) + 2):
        CheckpointStore(directory).commit(snapshot(1))
        notices = []
        operations = PowerCutOperations(number, undo_renames=undo_renames)
        announced = False
        try:
            CheckpointStore(directory, operations=operations).commit(snapshot(2))
            announced = True
            operations.lose()
        except PowerCut:
            assert not announced
        loaded = load_newest([directory], notices.append)
        cuts.append((None if loaded is None else loaded.step, announced, notices))
        shutil.rmtree(directory)
    return cuts


@pytest.mark.parametrize("undo_renames", [False, True])
def test_a_power_cut_anywhere_loses_nothing_that_was_announced(tmp_path, undo_renames):
    cuts = cut_power_everywhere(tmp_path / "c", undo_renames=undo_renames)
    for step, announced, notices in cuts:
        assert step in ((2,) if announced else (1, 2))
        assert notices == []
    assert [announced for _, announced, _ in cuts] == [False] * (len(cuts) - 1) + [True]


def left_behind(directory):
    return sorted(p.name for p in directory.iterdir()) if directory.exists() else []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_at_any_operation_leaves_nothing_half_written(tmp_path, code):
    directory = tmp_path / "c"
    names = operations_of(commit_two, directory)
    for number, name in enumerate(names, 1):
        CheckpointStore(directory).commit(snapshot(1))
        failing = CheckpointStore(directory, operations=FailingOperations(number, code))
        with pytest.raises(CheckpointError) as raised:
            failing.commit(snapshot(2))
        message = str(raised.value)
        assert str(directory) in message
        assert os.strerror(code) in message
        assert re.search(r"needs about \d+ bytes, and 12345 bytes are free", message)
        assert ("sweeper gc" in message) == (code in (errno.ENOSPC, errno.EDQUOT))
        whole = ["step-000000001"]
        if number == len(names):
            assert name == "fsync_directory"
            whole.append("step-000000002")
        assert left_behind(directory) == whole, (name, number)
        assert load_newest([directory], pytest.fail).step == len(whole)
        assert failing.commit(snapshot(3)).step == 3, "the next one is written as ever"
        shutil.rmtree(directory)


def test_a_file_system_that_is_full_says_how_much_is_needed_and_free(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        pytest.skip(f"mounting a small tmpfs is not allowed here: {process.stderr.strip()}")
    try:
        store = CheckpointStore(mount / "checkpoints")
        store.commit(snapshot(1))
        with pytest.raises(CheckpointError, match=r"No space left.*needs about \d{6}") as full:
            store.commit(snapshot(2, size=30_000))
        free = int(re.search(r"(\d+) bytes are free", str(full.value))[1])
        assert 0 <= free < 64 * 1024
        assert left_behind(store.directory) == ["step-000000001"]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_what_cannot_even_be_removed_is_said_with_the_error(store):
    class Stuck(FailingOperations):
        def remove_tree(self, path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.raises(CheckpointError) as raised:
        CheckpointStore(store.directory, operations=Stuck(6)).commit(snapshot(1))
    assert "could not be removed either" in raised.value.__notes__[0]


def test_an_interruption_inside_a_commit_cleans_up_too(store):
    class Interrupting(CountingOperations):
        def before(self, name):
            if name == "fsync":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CheckpointStore(store.directory, operations=Interrupting()).commit(snapshot(1))
    assert left_behind(store.directory) == []


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(store):
    class Rival(FileOperations):
        raced = False

        def rename(self, source, target):
            if not self.raced:
                self.raced = True
                store.commit(snapshot(5, fill=1.0))
            super().rename(source, target)

    mine = CheckpointStore(store.directory, operations=Rival()).commit(snapshot(5, fill=2.0))
    assert mine.path.name == "step-000000005.2"
    assert load_checkpoint(store.list()[0]).tensors["kernel"][0] == 1


def test_what_an_ended_attempt_left_unfinished_is_swept_and_nothing_else(store):
    store.commit(snapshot(1))
    unfinished = store.directory / unfinished_name("writing", "step-000000002")
    user = store.directory / ".writing-my-notes"
    for path in (unfinished, user):
        path.mkdir()
        (path / "tensors.safetensors").write_bytes(b"half")
    assert sweep_leftovers(store.directory) == (unfinished,)
    assert set(store.directory.iterdir()) == {user, *store.list()}
    assert sweep_leftovers(store.directory / "none") == ()
