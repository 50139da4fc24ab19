"""Manifests that somebody made, links that lead outside, and disks that do not tell."""

import errno
import json
import os
from pathlib import Path

import pytest
import xxhash
from checkpoint_faults import snapshot

from sweeper.checkpoint import reading
from sweeper.checkpoint.format import MANIFEST_FILE
from sweeper.checkpoint.identity import unfinished_name
from sweeper.checkpoint.reading import load_checkpoint, load_newest, read_kept
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.errors import CheckpointError, CorruptCheckpointError


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
    assert [checkpoint.good for checkpoint in read_kept([store.directory])] == [True, False]
    notices = []
    assert load_newest([store.directory], notices.append).step == 1
    assert second.with_name("step-000000002.corrupt-1").is_dir()


def test_control_a_manifest_that_is_written_again_as_it_was_is_read(store):
    path = store.commit(snapshot(1)).path
    forge(path, lambda content: content)
    assert load_checkpoint(path).step == 1


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


def test_a_later_format_is_refused_and_not_taken_for_damage(store, second):
    forge(second, having(format=2))
    with pytest.raises(CheckpointError, match="format 2") as raised:
        load_newest([store.directory], pytest.fail)
    assert not isinstance(raised.value, CorruptCheckpointError)
    assert second.is_dir()


@pytest.mark.parametrize("owner", [reading, Path])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EACCES, errno.EIO])
def test_a_disk_that_does_not_tell_is_no_reason_to_begin_anew(
    store, second, monkeypatch, owner, code
):
    """But of one checkpoint, as of one with a bad sector, an error of reading passes it over."""
    name = "list_local" if owner is reading else "open"
    work = getattr(owner, name)

    def broken(path, *arguments, **options):
        if store.directory == path or second == path.parent:
            raise OSError(code, os.strerror(code), str(path))
        return work(path, *arguments, **options)

    monkeypatch.setattr(owner, name, broken)
    notices = []
    if owner is Path and code == errno.EIO:
        assert load_newest([store.directory], notices.append).step == 1
        assert "cannot be read" in notices[0]
        assert [checkpoint.good for checkpoint in read_kept([store.directory])] == [True, False]
    else:
        for look in (load_newest, read_kept):
            with pytest.raises(CheckpointError, match="check the disk") as raised:
                look([store.directory], notices.append if look is load_newest else ())
            assert not isinstance(raised.value, CorruptCheckpointError)
        assert notices == []
    assert second.is_dir()
