"""Checkpoints in an object store are committed or absent, whatever fails, and are found again.

A store is files of this disk, or a real server of the S3 protocol behind a network that fails.
"""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoint_faults import commit_two, delete_one, killed_at, snapshot
from object_faults import (
    BUCKET,
    CountingObjects,
    FailingNetwork,
    FailingObjects,
    FileObjects,
    KillingObjects,
    ManifestFirst,
    prefix_of,
    set_s3_environment,
)

from sweeper.checkpoint import remote_objects
from sweeper.checkpoint.format import MANIFEST_FILE, TENSORS_FILE, Snapshot
from sweeper.checkpoint.reading import load_checkpoint, load_newest, read_kept
from sweeper.checkpoint.remote_objects import (
    ObjectStore,
    is_marked_corrupt_remote,
    listed_objects,
    sweep_remote,
)
from sweeper.checkpoint.remote_store import RemoteCheckpointStore, open_store
from sweeper.checkpoint.store import CheckpointStore, sweep_leftovers
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.support.paths import RemotePath

SMALLEST_PART = 5 << 20
"""Bytes: S3 refuses smaller parts."""


@contextmanager
def through(objects):
    """Let everything read and write by these operations."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote_objects, "objects_of", lambda _: objects)
        yield


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """Give a place in an object store of files, for everything that reads and writes there."""
    monkeypatch.chdir("/")
    with through(FileObjects()):
        yield prefix_of(tmp_path / "bucket" / "attempt-01" / "checkpoints")


def without_manifest(prefix):
    return [(p, names) for p, names in listed_objects(prefix).items() if MANIFEST_FILE not in names]


def unfinished(prefix):
    return [path for path, names in without_manifest(prefix) if not is_marked_corrupt_remote(names)]


def marked_as_damaged(prefix):
    return [path for path, names in without_manifest(prefix) if is_marked_corrupt_remote(names)]


def kill_everywhere(work, prefix, make=RemoteCheckpointStore):
    """Kill ``work`` before and after each operation; the step that loads then, and the notices."""
    disk = Path("/", *prefix.parts)
    RemoteCheckpointStore(prefix).commit(snapshot(1))
    counting = CountingObjects()
    with through(counting):
        work(make(prefix))
    shutil.rmtree(disk)
    kills = []
    for number, name in enumerate(counting.names, 1):
        for moment in ("before", "after"):
            RemoteCheckpointStore(prefix).commit(snapshot(1))
            with through(KillingObjects(number, moment)):
                status = killed_at(work, make(prefix))
            assert os.WIFSIGNALED(status), (name, number, moment)
            assert os.WTERMSIG(status) == signal.SIGKILL
            notices = []
            loaded = load_newest([prefix], notices.append)
            sweep_remote(prefix)
            assert unfinished(prefix) == [], "what a dead writer left is swept"
            kills.append((name, moment, None if loaded is None else loaded.step, len(notices)))
            shutil.rmtree(disk)
    return kills


def test_an_upload_killed_at_any_operation_is_committed_or_absent(prefix):
    kills = kill_everywhere(commit_two, prefix)
    committed = (f"upload {MANIFEST_FILE}", "after")
    for name, moment, step, notices in kills:
        assert (step, notices) == ((2, 0) if (name, moment) == committed else (1, 0)), name
    assert {name for name, *_ in kills} >= {
        f"upload {TENSORS_FILE}",
        "upload state.json",
        "size",
        committed[0],
    }


def test_an_upload_that_fails_at_any_operation_leaves_the_one_before(prefix):
    counting = CountingObjects()
    with through(counting):
        RemoteCheckpointStore(prefix).commit(snapshot(1))
    for number in range(1, len(counting.names) + 1):
        with through(FailingObjects(number, "before")), pytest.raises(CheckpointError):
            RemoteCheckpointStore(prefix).commit(snapshot(2))
        assert load_newest([prefix], pytest.fail).step == 1
    assert RemoteCheckpointStore(prefix).commit(snapshot(3)).step == 3


def test_a_remote_deletion_killed_anywhere_leaves_all_of_a_checkpoint_or_nothing(prefix):
    kills = kill_everywhere(delete_one, prefix)
    for name, moment, step, notices in kills:
        whole = (name, moment) == (f"remove {MANIFEST_FILE}", "before")
        assert (step, notices) == ((1, 0) if whole else (None, 0)), (name, moment)


def test_control_a_store_that_puts_the_manifest_first_is_caught(prefix):
    kills = kill_everywhere(commit_two, prefix, ManifestFirst)
    assert any(notices for *_, notices in kills), "half a checkpoint had a manifest"


def test_a_resume_finds_what_was_announced_though_no_listing_shows_it(prefix, monkeypatch):
    store = RemoteCheckpointStore(prefix)
    announced = [store.commit(snapshot(step)).path for step in (1, 2)]
    with monkeypatch.context() as forgetting:
        forgetting.setattr(FileObjects, "list", lambda *_: {})
        assert load_newest([prefix], pytest.fail) is None, "the listing alone finds nothing"
        assert load_newest([prefix], pytest.fail, known=announced).step == 2
        assert [k.step for k in read_kept([prefix], announced)] == [1, 2]
    store.delete(announced[1])  # what was deleted since is passed over in silence
    assert load_newest([prefix], pytest.fail, known=announced).step == 1
    assert [k.step for k in read_kept([prefix], announced)] == [1]


def test_a_checkpoint_that_vanishes_while_it_is_wanted_is_looked_for_again(prefix):
    """A paused attempt goes on, and replaces the checkpoint that its successor is reading."""
    store = RemoteCheckpointStore(prefix)
    first = store.commit(snapshot(1)).path

    class Overtaken(FileObjects):
        def download(self, path, file):
            if path.parent == first and len(store.list()) == 1:
                store.commit(snapshot(2))
                store.delete(first)
            super().download(path, file)

    with through(Overtaken()):
        assert load_newest([prefix], pytest.fail).step == 2


def test_a_damaged_remote_checkpoint_is_renamed_and_the_one_before_it_is_used(prefix):
    store = RemoteCheckpointStore(prefix)
    store.commit(snapshot(1))
    path = store.commit(snapshot(2)).path
    tensors = Path("/", *path.parts, TENSORS_FILE)
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="tensor"):
        load_checkpoint(path)
    notices = []
    assert load_newest([prefix], notices.append).step == 1
    assert "is damaged" in notices[0]
    assert "manifest.json.corrupt-1" in notices[0]
    assert load_newest([prefix], pytest.fail).step == 1
    assert marked_as_damaged(prefix) == [path]
    store.delete(path)
    assert marked_as_damaged(prefix) == []


def test_a_store_that_does_not_answer_is_no_empty_one(prefix, monkeypatch):
    def unreachable(*_):
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    path = RemoteCheckpointStore(prefix).commit(snapshot(1)).path
    monkeypatch.setattr(FileObjects, "download", unreachable)
    for paths in ([], [path]):
        for look in (partial(load_newest, notify=pytest.fail), read_kept):
            with pytest.raises(CheckpointError, match="cannot be read"):
                look([prefix], known=paths)
    monkeypatch.setattr(FileObjects, "list", unreachable)
    with pytest.raises(CheckpointError, match=r"cannot be listed.*credentials"):
        load_newest([prefix], pytest.fail)


def test_without_space_for_a_download_no_checkpoint_is_taken_for_missing_or_damaged(
    prefix, monkeypatch
):
    path = RemoteCheckpointStore(prefix).commit(snapshot(1)).path

    def none_usable():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    with monkeypatch.context() as full:
        full.setattr("tempfile.gettempdir", none_usable)
        for look in (partial(load_newest, notify=pytest.fail), read_kept):
            with pytest.raises(CheckpointError, match=r"no directory for its download.*TMPDIR"):
                look([prefix])
    assert load_newest([prefix], pytest.fail).path == path


def test_a_listing_that_hides_a_manifest_costs_no_checkpoint(prefix):
    class HidesManifests(FileObjects):
        def list(self, prefix):
            listed = super().list(prefix)
            return {names: size for names, size in listed.items() if names[-1] != MANIFEST_FILE}

    RemoteCheckpointStore(prefix).commit(snapshot(1))
    with through(HidesManifests()):
        assert sweep_remote(prefix) == ()
    assert load_newest([prefix], pytest.fail).step == 1


def test_a_trial_that_changes_its_location_keeps_and_deletes_in_both(prefix, tmp_path):
    disk = CheckpointStore(tmp_path / "attempt-01" / "checkpoints")
    here = disk.commit(snapshot(1)).path
    store = open_store(prefix)
    remote_path = store.commit(snapshot(2)).path
    assert load_newest([disk.directory, prefix], pytest.fail).step == 2
    store.delete(here)
    disk.delete(remote_path)
    assert (disk.list(), open_store(prefix).list()) == ((), ())


def test_the_local_copy_of_a_killed_upload_is_swept_and_no_other_is_left(prefix, tmp_path):
    spool = tmp_path / "spool"
    RemoteCheckpointStore(prefix, spool=spool).commit(snapshot(1))
    assert list(spool.iterdir()) == []
    operations = CountingObjects()
    with through(operations):
        RemoteCheckpointStore(prefix, spool=spool).commit(snapshot(2))
    number = operations.names.index(f"upload {TENSORS_FILE}") + 1
    with through(KillingObjects(number, "before")):
        assert os.WIFSIGNALED(killed_at(commit_two, RemoteCheckpointStore(prefix, spool=spool)))
    assert len(list(spool.iterdir())) == 1, "control: it was killed with its local copy"
    assert len(sweep_leftovers(spool)) == 1
    assert list(spool.iterdir()) == []


def test_a_spool_that_cannot_be_written_is_said_with_what_to_do(prefix, tmp_path):
    (tmp_path / "file").write_text("")
    store = RemoteCheckpointStore(prefix, spool=tmp_path / "file" / "spool")
    with pytest.raises(CheckpointError, match=r"for its upload.*--runs-dir"):
        store.commit(snapshot(1))


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.EBUSY, "SlowDown"), True),
        (OSError(errno.EREMOTEIO, "InternalError"), True),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (OSError(errno.EINVAL, "InvalidRequest"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (ValueError(), False),
    ],
)
def test_only_faults_that_may_pass_are_tried_again(error, passing, monkeypatch):
    monkeypatch.setattr(remote_objects, "_FIRST_PAUSE", 0.001)
    generator = random.getstate()
    outcomes = [error, None]

    def failing_once():
        if outcome := outcomes.pop(0):
            raise outcome

    try:
        ObjectStore("memory").retrying(failing_once)
    except (OSError, ValueError):
        assert not passing
    assert len(outcomes) == (0 if passing else 1)
    assert random.getstate() == generator, "an upload's faults change no trial's random numbers"


IMPORTING = """
import sys, threading, sweeper.checkpoint.store, sweeper.checkpoint.reading
print('fsspec' in sys.modules)
import sweeper.checkpoint.remote_store, fsspec
fsspec.get_filesystem_class('s3')
print(threading.active_count())
"""


def test_importing_what_speaks_to_a_store_starts_no_thread_and_local_reading_imports_none():
    words = [sys.executable, "-c", IMPORTING]
    process = subprocess.run(words, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "1"]


@pytest.fixture
def s3(s3_url, monkeypatch):
    """Let everything read and write on a server of the S3 protocol."""
    set_s3_environment(monkeypatch, s3_url)
    with through(ObjectStore("s3")):
        yield RemotePath("s3", (BUCKET, "served", "attempt-01", "checkpoints"))


def test_a_network_that_fails_one_request_in_ten_loses_nothing(s3, s3_url, monkeypatch):
    monkeypatch.setattr(remote_objects, "_FIRST_PAUSE", 0.02)
    in_parts = {"max_concurrency": 1, "chunksize": SMALLEST_PART}
    monkeypatch.setitem(remote_objects.UPLOADING, "s3", in_parts)
    generator = random.getstate()
    two_parts_and_a_bit = np.arange(SMALLEST_PART // 4 * 2 + 99, dtype=np.float32)
    taken = [snapshot(step) for step in range(1, 8)]
    taken.append(Snapshot(8, 0, {"w": two_parts_and_a_bit}, {}, {}, ("w",)))
    with FailingNetwork(s3_url, seed=4) as network:
        set_s3_environment(monkeypatch, network.url)
        with through(ObjectStore("s3")):
            store = RemoteCheckpointStore(s3 / "flaky")
            checkpoints = [store.commit(state) for state in taken]
            read = [load_checkpoint(committed.path).digest for committed in checkpoints]
    assert network.failures > 3
    assert random.getstate() == generator, "nor does its client draw from a trial's generator"
    assert read == [committed.digest for committed in checkpoints]
    set_s3_environment(monkeypatch, s3_url)
    assert [load_checkpoint(committed.path).digest for committed in checkpoints] == read


def test_a_bucket_that_is_not_there_is_named(s3):
    store = RemoteCheckpointStore(RemotePath("s3", ("no-such-bucket", "checkpoints")))
    assert store.list() == ()
    with pytest.raises(CheckpointError, match=r"check that s3://no-such-bucket exists"):
        store.commit(snapshot(1))


def test_a_forked_process_connects_anew(s3):
    def commit(store):
        signal.alarm(30)
        os._exit(commit_two(store).step)

    store = RemoteCheckpointStore(s3 / "forked")
    store.commit(snapshot(1))
    assert os.waitstatus_to_exitcode(killed_at(commit, store)) == 2
    assert load_checkpoint(store.directory / "step-000000002").step == 2
