"""Checkpoints on a real server of the S3 protocol, behind a network that fails."""

import os
import random
import signal

import numpy as np
import pytest
from checkpoint_faults import commit_two, killed_at, snapshot
from object_faults import (
    BUCKET,
    FailingNetwork,
    ImpatientObjects,
    ManifestFirst,
    set_s3_environment,
)

from sweeper.checkpoint import remote_objects
from sweeper.checkpoint.format import MANIFEST_FILE, Snapshot
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.remote_objects import ObjectStore
from sweeper.checkpoint.remote_store import RemoteCheckpointStore
from sweeper.errors import CheckpointError
from sweeper.support.paths import RemotePath

SMALLEST_PART = 5 << 20
"""Bytes: S3 refuses smaller parts."""


def connected(monkeypatch, objects):
    """Let everything that reads checkpoints use this store."""
    monkeypatch.setattr(remote_objects, "objects_of", lambda _: objects)


def big_snapshot(step):
    """Two whole of the smallest parts and a bit."""
    values = np.arange(SMALLEST_PART // 4 * 2 + 99, dtype=np.float32) + step
    return Snapshot(step, 0, {"w": values}, {}, {}, ("w",))


def test_a_network_that_fails_one_request_in_ten_loses_nothing(s3_url, monkeypatch):
    monkeypatch.setattr(remote_objects, "_FIRST_PAUSE", 0.02)
    in_parts = {"max_concurrency": 1, "chunksize": SMALLEST_PART}
    monkeypatch.setitem(remote_objects.UPLOADING, "s3", in_parts)
    generator = random.getstate()
    directory = RemotePath("s3", (BUCKET, "flaky", "attempt-01", "checkpoints"))
    with FailingNetwork(s3_url, seed=4) as network:
        set_s3_environment(monkeypatch, network.url)
        connected(monkeypatch, ObjectStore("s3"))
        store = RemoteCheckpointStore(directory)
        done = [store.commit(snapshot(step)) for step in range(1, 8)]
        done.append(store.commit(big_snapshot(8)))
        through = [load_checkpoint(committed.path).digest for committed in done]
    assert network.failures > 3
    assert random.getstate() == generator, "nor does its client draw from a trial's generator"
    assert through == [committed.digest for committed in done]
    set_s3_environment(monkeypatch, s3_url)
    connected(monkeypatch, ObjectStore("s3"))
    assert [load_checkpoint(c.path).digest for c in done] == through


def commit_impatiently(store, directory, quiet):
    """Commit 15 times without a second try: how many were announced, absent, and half there."""
    announced = absent = half = 0
    for step in range(1, 16):
        try:
            committed = store.commit(snapshot(step))
        except CheckpointError:
            committed = None
        path = directory / f"step-{step:09d}"
        if committed is None and not quiet.size(path / MANIFEST_FILE):
            absent += 1
            continue
        try:
            loaded = load_checkpoint(path)
        except CheckpointError:
            half += 1
            continue
        announced += committed is not None
        assert committed is None or loaded.digest == committed.digest
    return announced, absent, half


@pytest.mark.whole
@pytest.mark.parametrize("make", [RemoteCheckpointStore, ManifestFirst])
def test_a_client_that_tries_nothing_twice_still_leaves_no_half(s3_url, monkeypatch, make):
    """The second store is the control: its manifest does not come last."""
    directory = RemotePath("s3", (BUCKET, make.__name__, "attempt-01", "checkpoints"))
    set_s3_environment(monkeypatch, s3_url)
    quiet = ObjectStore("s3")
    quiet.size(directory / "connected")
    with FailingNetwork(s3_url, seed=3) as network:
        set_s3_environment(monkeypatch, network.url)
        connected(monkeypatch, ImpatientObjects())
        store = make(directory)
        connected(monkeypatch, quiet)
        announced, absent, half = commit_impatiently(store, directory, quiet)
    assert announced > 5
    if make is ManifestFirst:
        assert half > 0
    else:
        assert absent > 2
        assert half == 0


def test_a_bucket_that_is_not_there_is_named(s3_url, monkeypatch):
    set_s3_environment(monkeypatch, s3_url)
    directory = RemotePath("s3", ("no-such-bucket", "attempt-01", "checkpoints"))
    connected(monkeypatch, ObjectStore("s3"))
    store = RemoteCheckpointStore(directory)
    assert store.list() == ()
    with pytest.raises(CheckpointError, match=r"check that s3://no-such-bucket exists"):
        store.commit(snapshot(1))


def test_a_forked_process_connects_anew(s3_url, monkeypatch):
    set_s3_environment(monkeypatch, s3_url)
    directory = RemotePath("s3", (BUCKET, "forked", "attempt-01", "checkpoints"))
    connected(monkeypatch, ObjectStore("s3"))
    store = RemoteCheckpointStore(directory)
    store.commit(snapshot(1))

    def commit(store):
        signal.alarm(30)
        os._exit(commit_two(store).step)

    assert os.waitstatus_to_exitcode(killed_at(commit, store)) == 2
    connected(monkeypatch, ObjectStore("s3"))
    assert load_checkpoint(directory / "step-000000002").step == 2
