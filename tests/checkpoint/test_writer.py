"""The background writer: one write in flight, nothing announced too early, no error lost."""

import errno
import gc
import os
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from checkpoint_faults import FailingOperations, snapshot

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import read_kept
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.declarations.checkpointing import Keep
from sweeper.errors import CheckpointError

WAIT = 10.0


class GatedStore(CheckpointStore):
    """A store whose commits begin when they are let, and that says how many are under way."""

    def __init__(self, directory):
        super().__init__(directory)
        self.gate = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.under_way = 0
        self.most = 0

    def commit(self, snapshot, *, trained_seconds=0.0):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.begun.release()
        assert self.gate.acquire(timeout=WAIT)
        checkpoint = super().commit(snapshot, trained_seconds=trained_seconds)
        self.under_way -= 1
        return checkpoint


class Ledger:
    """What the writer announced, with what was on disk at that moment."""

    def __init__(self):
        self.news = []
        self.threads = set()

    def committed(self, checkpoint):
        assert (checkpoint.path / "manifest.json").exists()
        assert checkpoint.written_seconds is not None
        self.news.append(f"+{checkpoint.step}")
        self.threads.add(threading.get_ident())

    def deleted(self, path):
        assert not path.exists()
        self.news.append(f"-{int(path.name[5:14])}")
        self.threads.add(threading.get_ident())


@pytest.fixture
def ledger():
    return Ledger()


def writer_of(store, ledger, keep=None, **rest):
    return BackgroundWriter(store, keep or Keep(), ledger.committed, ledger.deleted, **rest)


def test_commits_and_the_deletions_they_cause_are_announced_in_order_on_this_thread(store, ledger):
    with writer_of(store, ledger, Keep(last=2)) as writer:
        for step in range(1, 5):
            writer.submit(snapshot(step))
    assert ledger.news == ["+1", "+2", "+3", "-1", "+4", "-2"]
    assert ledger.threads == {threading.get_ident()}
    assert [p.name for p in store.list()] == ["step-000000003", "step-000000004"]


def test_submitting_does_not_wait_for_its_own_write_but_for_the_one_before(tmp_path, ledger):
    gated = GatedStore(tmp_path)
    writer = writer_of(gated, ledger)
    writer.submit(snapshot(1))
    assert gated.begun.acquire(timeout=WAIT)
    writer.poll()
    assert ledger.news == [], "nothing is announced before it is durable"

    opener = threading.Timer(0.05, gated.gate.release, [2])
    opener.start()
    writer.submit(snapshot(2))
    assert ledger.news == ["+1"], "the first was over before the second was taken"
    writer.close()
    opener.join()
    assert gated.most == 1
    assert ledger.news == ["+1", "+2"]


@pytest.mark.parametrize("call", ["submit", "poll", "flush", "close"])
def test_an_error_of_the_thread_is_raised_at_the_next_call_and_once(tmp_path, ledger, call):
    failing = CheckpointStore(tmp_path / "c", operations=FailingOperations(5, errno.ENOSPC))
    writer = writer_of(failing, ledger)
    writer.submit(snapshot(1))
    writer._thread.join()
    next_call = partial(getattr(writer, call), *([snapshot(2)] if call == "submit" else []))
    with pytest.raises(CheckpointError, match="No space left"):
        next_call()
    if call != "close":
        writer.submit(snapshot(3))
    writer.close()
    assert ledger.news == ([] if call == "close" else ["+3"])


def test_an_error_of_the_body_is_not_hidden_by_one_of_the_writer(tmp_path, ledger):
    failing = CheckpointStore(tmp_path / "c", operations=FailingOperations(5))

    def train():
        with writer_of(failing, ledger) as writer:
            writer.submit(snapshot(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        train()
    assert "No space left" in raised.value.__notes__[0]


def test_a_closed_writer_takes_nothing_and_closes_again(store, ledger):
    writer = writer_of(store, ledger)
    writer.submit(snapshot(1))
    assert writer._thread.daemon, "a process that ends is not held by a write"
    writer.close()
    writer.close()
    assert not writer._thread.is_alive()
    with pytest.raises(CheckpointError, match="closed"):
        writer.submit(snapshot(1))


class Held(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_snapshot_is_let_go_as_soon_as_it_is_written_or_has_failed(tmp_path, ledger, fails):
    operations = FailingOperations(5) if fails else None
    writer = writer_of(CheckpointStore(tmp_path / "c", operations=operations), ledger)
    array = np.ones(10).view(Held)
    reference = weakref.ref(array)
    taken = Snapshot(1, 0, {"a": array}, {}, {}, ("a",))
    writer.submit(taken)
    del taken, array
    writer._thread.join()
    gc.collect()
    assert reference() is None
    if fails:
        with pytest.raises(CheckpointError):
            writer.poll()
    writer.close()


class Watching(FileOperations):
    """Notes at each write which of the arrays are still held by anybody."""

    def __init__(self, arrays):
        self._references = [weakref.ref(array) for array in arrays]
        self.held = []

    def write(self, descriptor, data):
        self.held.append([reference() is not None for reference in self._references])
        return super().write(descriptor, data)


@pytest.mark.parametrize("keeping", [False, True], ids=["let go", "control: held to the end"])
def test_each_tensor_is_let_go_while_the_others_are_still_being_written(tmp_path, ledger, keeping):
    class Keeping(CheckpointStore):
        def commit(self, snapshot, *, trained_seconds=0.0):
            tensors = dict(snapshot.tensors)
            checkpoint = super().commit(snapshot, trained_seconds=trained_seconds)
            del tensors
            return checkpoint

    arrays = [np.ones(10), np.ones(10)]
    watching = Watching(arrays)
    store = (Keeping if keeping else CheckpointStore)(tmp_path / "c", operations=watching)
    taken = Snapshot(1, 0, dict(zip("ab", arrays, strict=True)), {}, {}, ("a", "b"))
    del arrays
    with writer_of(store, ledger) as writer:
        writer.submit(taken)
    header_a_b_state_manifest = [[True, True], [True, True], [False, True]] + [[False, False]] * 2
    assert (watching.held == header_a_b_state_manifest) is not keeping


def test_an_old_checkpoint_that_cannot_be_deleted_is_said_once_and_stops_nothing(tmp_path, ledger):
    class Stuck(FileOperations):
        stuck = True

        def rename(self, source, target):
            if self.stuck and source.name == "step-000000001":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            super().rename(source, target)

    operations = Stuck()
    warned = []
    store = CheckpointStore(tmp_path, operations=operations)
    with writer_of(store, ledger, Keep(last=1), notify=warned.append) as writer:
        for step in (1, 2, 3):
            writer.submit(snapshot(step))
        writer.flush()
        assert ledger.news == ["+1", "+2", "+3", "-2"]
        operations.stuck = False
        writer.submit(snapshot(4))
    assert [path.name for path in store.list()] == ["step-000000004"], "it is tried again"
    (message,) = warned
    assert "step-000000001 cannot be deleted" in message
    assert "the training continues" in message


def test_earlier_attempts_count_for_retention_and_are_deleted_by_it(tmp_path, ledger):
    first = CheckpointStore(tmp_path / "attempt-01")
    for step in (1, 2):
        first.commit(snapshot(step))
    second = CheckpointStore(tmp_path / "attempt-02")
    with writer_of(second, ledger, Keep(last=2), kept=read_kept([first.directory])) as writer:
        writer.submit(snapshot(3))
    assert ledger.news == ["+3", "-1"]
    assert len(first.list()) == len(second.list()) == 1


def test_retention_by_hours_goes_by_training_time_over_all_attempts_and_by_no_wall_clock(
    tmp_path, ledger, monkeypatch
):
    wall = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr("time.time", lambda: float(next(wall)))
    store = CheckpointStore(tmp_path)
    moment = 0.0

    def train(began, *steps, **history):
        nonlocal moment
        moment = began
        keep = Keep(last=1, every_hours=1)
        with writer_of(store, ledger, keep, clock=lambda: moment, **history) as writer:
            for step, seconds in steps:
                moment = began + seconds
                writer.submit(snapshot(step))
                writer.flush()
        return read_kept([store.directory])

    checkpoints = train(5_000.0, (1, 600), (2, 3_700), (3, 3_800))
    assert [(k.step, k.trained_seconds) for k in checkpoints] == [(2, 3_700.0), (3, 3_800.0)]
    rest = {"kept": checkpoints, "trained_seconds": 3_800.0}
    checkpoints = train(3.0, (4, 3_300), (5, 3_500), (6, 3_600), **rest)
    assert [k.step for k in checkpoints] == [2, 5, 6]
