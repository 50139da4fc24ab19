"""What every checkpoint store promises to the background writer and to who resumes.

A store is a fixture parameter: on disk, in fsspec's memory, and on a real server of the S3 protocol.
The broken ones below are the suite's negative controls.
"""

import numpy as np
import pytest
from checkpoint_faults import digest, snapshot
from object_faults import BUCKET, set_s3_environment

from sweeper.checkpoint import remote_objects
from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.checkpoint.remote_objects import ObjectStore
from sweeper.checkpoint.remote_store import RemoteCheckpointStore
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError
from sweeper.support.paths import RemotePath


@pytest.fixture(params=["local", "memory", "s3"])
def store(request, tmp_path, monkeypatch):
    if request.param == "local":
        return CheckpointStore(tmp_path / "checkpoints")
    if request.param == "s3":
        set_s3_environment(monkeypatch, request.getfixturevalue("s3_url"))
    directory = RemotePath(request.param, (BUCKET, tmp_path.name, "checkpoints"))
    objects = ObjectStore(request.param)
    monkeypatch.setattr(remote_objects, "objects_of", lambda _: objects)
    return RemoteCheckpointStore(directory, spool=tmp_path)


def check_it_returns_what_it_was_given(store):
    taken = snapshot(33)
    expected = digest(taken)
    tensors = dict(taken.tensors)
    checkpoint = store.commit(taken, trained_seconds=1.5)
    loaded = load_checkpoint(checkpoint.path)
    assert loaded.digest == checkpoint.digest == expected
    assert (loaded.step, loaded.epoch, loaded.trained_seconds) == (33, 3, 1.5)
    assert loaded.bytes == checkpoint.bytes > sum(tensor.nbytes for tensor in tensors.values())
    assert (loaded.state, loaded.metrics) == (taken.state, taken.metrics)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], tensor)


def check_it_lists_the_oldest_first(store):
    assert store.list() == ()
    paths = {step: store.commit(snapshot(step)).path for step in (20, 3, 100)}
    assert store.list() == (paths[3], paths[20], paths[100])


def check_it_keeps_both_of_a_step_taken_again(store):
    first, second = (store.commit(snapshot(1, fill=value)) for value in (1.0, 2.0))
    assert store.list() == (first.path, second.path)
    assert load_checkpoint(first.path).tensors["kernel"][0] == 1
    assert load_newest([store.directory], pytest.fail).tensors["kernel"][0] == 2
    store.delete(first.path)
    third = store.commit(snapshot(1, fill=3.0))
    assert store.list() == (second.path, third.path)


def check_it_deletes_what_it_is_asked_and_nothing_else(store):
    first = store.commit(snapshot(1))
    second = store.commit(snapshot(2))
    store.delete(first.path)
    assert store.list() == (second.path,)
    with pytest.raises(CheckpointError):
        load_checkpoint(first.path)
    with pytest.raises(CheckpointError):
        store.delete(store.directory)


CHECKS = [
    check_it_returns_what_it_was_given,
    check_it_lists_the_oldest_first,
    check_it_keeps_both_of_a_step_taken_again,
    check_it_deletes_what_it_is_asked_and_nothing_else,
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_checkpoint_store_keeps_its_promise(store, check):
    check(store)


class Forgetful(CheckpointStore):
    def commit(self, snapshot, *, trained_seconds=0.0):
        snapshot = Snapshot(33, 3, snapshot.tensors, {}, snapshot.metrics, snapshot.digest_names)
        return super().commit(snapshot, trained_seconds=trained_seconds)


class Unsorted(CheckpointStore):
    def list(self):
        return tuple(sorted(super().list(), key=lambda p: p.stat().st_ctime_ns))


class Overwriting(CheckpointStore):
    def commit(self, snapshot, *, trained_seconds=0.0):
        for path in self.list():
            if path.name.startswith(f"step-{snapshot.step:09d}"):
                self.delete(path)
        return super().commit(snapshot, trained_seconds=trained_seconds)


class Undying(CheckpointStore):
    def delete(self, path):
        return True


@pytest.mark.parametrize(
    ("broken", "check"), list(zip([Forgetful, Unsorted, Overwriting, Undying], CHECKS, strict=True))
)
def test_control_a_store_that_breaks_a_promise_fails_its_check(tmp_path, broken, check):
    with pytest.raises((AssertionError, CheckpointError)):
        check(broken(tmp_path / "checkpoints"))
