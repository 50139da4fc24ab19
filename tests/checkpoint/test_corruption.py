"""Whatever happens to a checkpoint's files, what loads is what was written, or the one before."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from checkpoint_faults import snapshot

import sweeper.checkpoint.reading
from sweeper.checkpoint.reading import load_checkpoint, load_newest, read_kept
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError, CorruptCheckpointError

FILES = ["tensors.safetensors", "state.json", "manifest.json"]


def flip(path, position, bit):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def undetected_flips(path):
    """Flip one bit of every byte of every file in turn; return where loading noticed nothing."""
    missed = []
    for name in FILES:
        original = (path / name).read_bytes()
        for position in range(len(original)):
            flip(path / name, position, position % 8)
            try:
                load_checkpoint(path)
                missed.append((name, position))
            except CorruptCheckpointError:
                pass
            finally:
                (path / name).write_bytes(original)
    return missed


def test_a_flipped_bit_anywhere_is_found(store):
    path = store.commit(snapshot(1, size=20)).path
    assert undetected_flips(path) == []
    assert load_checkpoint(path).step == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "longer", "missing"])
def test_a_damaged_file_is_named_renamed_and_the_checkpoint_before_is_used(
    store, name, damage, second
):
    data = (second / name).read_bytes()
    if damage == "flipped":
        flip(second / name, len(data) // 2, 3)
    elif damage == "missing":
        (second / name).unlink()
    else:
        content = {"truncated": data[:-1], "emptied": b"", "longer": data + b"\0"}
        (second / name).write_bytes(content[damage])
    with pytest.raises(CorruptCheckpointError, match=name):
        load_checkpoint(second)
    notices = []
    assert load_newest([store.directory], notices.append).step == 1
    (notice,) = notices
    assert name in notice
    assert "step-000000002.corrupt-1" in notice
    assert (store.directory / "step-000000002.corrupt-1").is_dir()
    assert load_newest([store.directory], pytest.fail).step == 1


def test_a_header_that_is_changed_and_means_the_same_is_found(store):
    path = store.commit(snapshot(1)).path / "tensors.safetensors"
    data = path.read_bytes()
    padding = data.index(b"}} ") + 2
    path.write_bytes(data[:padding] + b"\t" + data[padding + 1 :])
    with pytest.raises(CorruptCheckpointError, match="digest"):
        load_checkpoint(path.parent)


def test_files_of_two_checkpoints_mixed_are_found(store):
    first, second = (store.commit(snapshot(step)).path for step in (1, 2))
    for name in FILES[:2]:
        shutil.copy(first / name, second / name)
    with pytest.raises(CorruptCheckpointError):
        load_checkpoint(second)
    third = second.with_name("step-000000003")
    first.rename(third)
    with pytest.raises(CorruptCheckpointError, match="has step 1, expected 3"):
        load_checkpoint(third)


def test_an_extra_file_does_no_harm_and_goes_with_the_checkpoint(store):
    path = store.commit(snapshot(1)).path
    (path / "notes.txt").write_text("mine")
    (path / "more").mkdir()
    assert load_checkpoint(path).step == 1
    store.delete(path)
    assert list(store.directory.iterdir()) == []
    store.delete(path)  # what is gone is deleted already
    assert store.list() == ()
    with pytest.raises(CheckpointError, match="is missing") as raised:
        load_checkpoint(path)
    assert not isinstance(raised.value, CorruptCheckpointError)


def test_names_that_are_no_checkpoints_are_never_read_or_deleted(store):
    path = store.commit(snapshot(5)).path
    for other in (".writing-9", "step-000000009.tmp", "step-9", "step-0000000009", "latest"):
        shutil.copytree(path, store.directory / other)
    assert store.list() == (path,)
    with pytest.raises(CheckpointError, match="not deleted"):
        store.delete(store.directory / "latest")
    with pytest.raises(CheckpointError, match="does not have the name of a checkpoint"):
        load_checkpoint(store.directory / "latest")


def test_the_newest_over_all_attempts_is_found_and_the_later_attempt_wins_a_tie(tmp_path):
    first, second = (CheckpointStore(tmp_path / name) for name in ("attempt-01", "attempt-02"))
    directories = [first.directory, second.directory, tmp_path / "attempt-03"]
    assert load_newest(directories, pytest.fail) is None
    first.commit(snapshot(4))
    assert load_newest(directories, pytest.fail).step == 4
    second.commit(snapshot(4, fill=9.0))
    assert load_newest(directories, pytest.fail).tensors["kernel"][0] == 9
    newest = first.commit(snapshot(6)).path
    assert load_newest(directories, pytest.fail).step == 6
    flip(newest / "state.json", 0, 0)
    assert load_newest(directories, lambda _: None).tensors["kernel"][0] == 9


def test_the_fallback_works_where_nothing_can_be_renamed(store, second, monkeypatch):
    flip(second / "state.json", 3, 3)
    notices = []

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "rename", read_only)
    assert load_newest([store.directory], notices.append).step == 1
    assert "could not be renamed" in notices[0]
    assert second.is_dir()


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_read_to_its_end(store, monkeypatch):
    committed = store.commit(snapshot(1))
    read = sweeper.checkpoint.reading.read_verified

    def deleting_first(path, files):
        store.delete(path)
        assert store.list() == ()
        return read(path, files)

    monkeypatch.setattr(sweeper.checkpoint.reading, "read_verified", deleting_first)
    loaded = load_checkpoint(committed.path)
    assert (loaded.step, loaded.digest) == (1, committed.digest)


def test_a_checkpoint_that_vanishes_before_it_is_opened_is_looked_for_again(store, monkeypatch):
    """A paused attempt goes on, and replaces the checkpoint that its successor is about to read."""
    first = store.commit(snapshot(1)).path

    def overtaken(path):
        if path == first:
            store.commit(snapshot(2))
            store.delete(first)
        return load_checkpoint(path)

    monkeypatch.setattr(sweeper.checkpoint.reading, "load_checkpoint", overtaken)
    notices = []
    assert load_newest([store.directory], notices.append).step == 2
    assert "is missing" in notices[0]


def test_what_retention_knows_is_read_from_the_manifests_alone(store):
    store.commit(snapshot(1), trained_seconds=3.0)
    path = store.commit(snapshot(2)).path
    (store.directory / "step-000000001" / "tensors.safetensors").unlink()
    flip(path / "manifest.json", 50, 1)
    one, two = read_kept([store.directory])
    assert (one.step, one.metrics, one.trained_seconds) == (1, {"val_loss": 0.5}, 3.0)
    assert one.good
    assert not two.good
