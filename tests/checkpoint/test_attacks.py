"""Manifests that somebody made, links that lead outside, and disks that do not tell."""

import errno
import json
import os
from pathlib import Path

import pytest
import xxhash
from checkpoint_faults import snapshot

from sweeper.checkpoint import reading
from sweeper.checkpoint.format import MANIFEST_FILE, STATE_FILE
from sweeper.checkpoint.identity import unfinished_name
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import load_checkpoint, load_newest, read_kept
from sweeper.checkpoint.store import CheckpointStore, sweep_leftovers
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.spec.checkpointing import Keep


def forge(path, change):
    """Write another manifest, whose digest is right."""
    text = (path / MANIFEST_FILE).read_bytes()
    content = json.loads(text)["manifest"]
    changed = change(content)
    body = changed if isinstance(changed, bytes) else json.dumps(changed or content).encode()
    digest = xxhash.xxh3_128_hexdigest(body)
    (path / MANIFEST_FILE).write_bytes(
        b'{"xxh3_128":"%b","manifest":%b}\n' % (digest.encode(), body)
    )


def without(name):
    return lambda content: {key: value for key, value in content.items() if key != name}


def having(**changes):
    return lambda content: {**content, **changes}


FORGED = {
    "no step": without("step"),
    "no format": without("format"),
    "no files": without("files"),
    "a list": lambda _: [1, 2],
    "nothing": lambda _: b"null",
    "nested": lambda _: b"[" * 200_000 + b"]" * 200_000,
    "no JSON": lambda _: b"{",
    "no text": lambda _: b"\xff\xfe",
    "a wrong tag": having(trained_seconds={"$float": "ff"}),
    "a short entry": having(tensors=[["kernel"]]),
    "an origin of nobody": having(origin={"study": "x"}),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_a_forged_manifest_is_damage_and_the_checkpoint_before_is_used(store, change, second):
    forge(second, change)
    with pytest.raises(CorruptCheckpointError):
        load_checkpoint(second)
    assert [kept.good for kept in read_kept([store.directory])] == [True, False]
    notices = []
    assert load_newest([store.directory], notices.append).step == 1
    assert second.with_name("step-000000002.corrupt-1").is_dir()


def test_control_a_manifest_that_is_written_again_as_it_was_is_read(store):
    path = store.commit(snapshot(1)).path
    forge(path, lambda content: content)
    assert load_checkpoint(path).step == 1


def test_a_state_that_is_nested_without_end_is_damage(store, second):
    state = b"[" * 200_000 + b"]" * 200_000
    (second / STATE_FILE).write_bytes(state)

    def change(content):
        content["files"][1] = [STATE_FILE, len(state), xxhash.xxh3_128_hexdigest(state)]
        return content

    forge(second, change)
    assert load_newest([store.directory], lambda _: None).step == 1


@pytest.fixture
def outside(tmp_path):
    """A directory of somebody else's, to which links lead."""
    directory = tmp_path / "outside"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "data.bin").write_bytes(b"mine")
    return directory


def untouched(outside):
    return (outside / "deep" / "data.bin").read_bytes() == b"mine"


def test_links_in_the_place_or_inside_of_what_is_deleted_are_removed_and_not_followed(
    store, outside
):
    path = store.commit(snapshot(1)).path
    link = store.directory / "step-000000002"
    for target in (outside, outside / "nowhere"):
        link.symlink_to(target)
        store.delete(link)
        assert not link.is_symlink()
    (path / "deep").symlink_to(outside)
    (path / "more").mkdir()
    (path / "more" / "file").symlink_to(outside / "deep" / "data.bin")
    store.delete(path)
    unfinished = store.directory / unfinished_name("deleting", "step-000000002")
    unfinished.symlink_to(outside)
    assert sweep_leftovers(store.directory) == (unfinished,)
    assert untouched(outside)
    assert list(store.directory.iterdir()) == []


def test_a_directory_exchanged_for_a_link_while_it_is_deleted_is_not_followed(
    store, outside, monkeypatch
):
    """The race: between the look at an entry and its removal somebody puts a link in its place."""
    path = store.commit(snapshot(1)).path
    (path / "a").mkdir()
    (path / "a" / "file").write_bytes(b"")

    unlink, exchanged = os.unlink, []

    def racing(name, *, dir_fd=None):
        if Path(name).name == "file" and not exchanged:
            exchanged.append(name)
            (path / "a").rename(path / "b")
            (path / "a").symlink_to(outside / "deep")
            (outside / "deep" / "file").write_bytes(b"mine too")
        unlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", racing)
        with pytest.raises(OSError, match="a"):
            FileOperations().remove_tree(path)
    assert exchanged, "control: the link was put there"
    assert untouched(outside)
    assert (outside / "deep" / "file").exists()


def looks(store):
    return (
        lambda: load_newest([store.directory], pytest.fail),
        lambda: read_kept([store.directory]),
    )


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_disk_that_does_not_tell_is_the_environments_and_no_reason_to_begin_anew(
    store, monkeypatch, code
):
    store.commit(snapshot(1))

    def broken(_directory):
        raise OSError(code, os.strerror(code), str(store.directory))

    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(reading, "list_local", broken)
        for look in looks(store):
            with pytest.raises(
                CheckpointError, match="check the disk and its permissions"
            ) as raised:
                look()
            assert not isinstance(raised.value, CorruptCheckpointError)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EACCES])
def test_a_checkpoint_that_may_not_be_read_now_is_not_passed_over(store, monkeypatch, code, second):
    opened = Path.open

    def refusing(path, *arguments, **options):
        if path.parent == second:
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    for look in looks(store):
        with pytest.raises(CheckpointError):
            look()
    assert second.is_dir()


def test_an_old_checkpoint_that_cannot_be_deleted_is_said_once_and_stops_nothing(tmp_path):
    class Stuck(FileOperations):
        stuck = True

        def rename(self, source, target):
            if self.stuck and source.name == "step-000000001":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            super().rename(source, target)

    operations = Stuck()
    store = CheckpointStore(tmp_path, operations=operations)
    warned = []
    with BackgroundWriter(
        store, Keep(last=1), lambda _: None, lambda _: None, warn=warned.append
    ) as writer:
        for step in (1, 2, 3):
            writer.submit(snapshot(step))
        writer.flush()
        assert [path.name for path in store.list()] == ["step-000000001", "step-000000003"]
        operations.stuck = False
        writer.submit(snapshot(4))
    assert [path.name for path in store.list()] == ["step-000000004"], "it is tried again"
    (message,) = warned
    assert "step-000000001 cannot be deleted" in message
    assert "the training continues" in message
