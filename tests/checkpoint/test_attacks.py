"""Manifests that somebody made, links that lead outside, and disks that do not tell."""

import errno
import json
import os

import pytest
import xxhash
from checkpoint_faults import snapshot

from sweeper.checkpoint import reading
from sweeper.checkpoint.format import MANIFEST_FILE, STATE_FILE, TENSORS_FILE
from sweeper.checkpoint.identity import unfinished_name
from sweeper.checkpoint.reading import load_checkpoint, load_newest, read_kept
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.errors import CheckpointError, CorruptCheckpointError

HUGE = 7 << 40


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


def enlarged(content):
    """A first tensor of 7 TiB, and a file that is said to be as large."""
    name, dtype, _, digest = content["tensors"][0]
    content["tensors"][0] = [name, dtype, [HUGE // 4], digest]
    content["files"][0][1] = HUGE + 4096
    return content


def empty_but_vast(content):
    name, dtype, _, digest = content["tensors"][0]
    content["tensors"][0] = [name, dtype, [0, 1 << 80], digest]
    return content


FORGED = {
    "no step": without("step"),
    "no format": without("format"),
    "no files": without("files"),
    "a list": lambda _: [1, 2],
    "nothing": lambda _: b"null",
    "nested": lambda _: b"[" * 200_000 + b"]" * 200_000,
    "no JSON": lambda _: b"{",
    "no text": lambda _: b"\xff\xfe",
    "a step of text": having(step="2"),
    "a negative step": having(step=-2),
    "an endless number": having(trained_seconds={"$int": "0x" + "f" * 400}),
    "a wrong tag": having(trained_seconds={"$float": "ff"}),
    "a digest of what it lacks": having(digest_names=["nowhere"]),
    "metrics of text": having(metrics={"loss": "low"}),
    "other files": having(files=[["../../x", 1, "0"], ["y", 1, "0"]]),
    "one file": having(files=[]),
    "a short entry": having(tensors=[["kernel"]]),
    "an unknown dtype": having(tensors=[["kernel", "object", [1], "0"]]),
    "an origin of nobody": having(origin={"study": "x"}),
    "7 TiB": enlarged,
    "empty but vast": empty_but_vast,
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


@pytest.mark.parametrize("name", [TENSORS_FILE, STATE_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("kind", ["fifo", "directory", "an endless device", "an empty device"])
def test_what_is_no_regular_file_is_damage_and_nobody_waits_for_it(store, name, kind, second):
    (second / name).unlink()
    if kind == "fifo":
        os.mkfifo(second / name)
    elif kind == "directory":
        (second / name).mkdir()
    else:
        (second / name).symlink_to("/dev/null" if kind == "an empty device" else "/dev/zero")
    notices = []
    assert load_newest([store.directory], notices.append).step == 1
    assert "is not a regular file" in notices[0]


def test_a_manifest_of_a_size_that_none_has_is_not_read(store, monkeypatch):
    path = store.commit(snapshot(1)).path
    os.truncate(path / MANIFEST_FILE, 1 << 40)
    with pytest.raises(CorruptCheckpointError, match="bytes, expected"):
        load_checkpoint(path)


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
    name = unfinished_name("deleting", "step-000000002").replace(f"-p{os.getpid()}-", "-p4194305-")
    unfinished = store.directory / name
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


@pytest.mark.parametrize("call", ["list_local", "open_regular"])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EACCES, errno.EIO])
def test_a_disk_that_does_not_tell_is_no_reason_to_begin_anew(
    store, second, monkeypatch, call, code
):
    """But of one checkpoint, as of one with a bad sector, an error of reading passes it over."""
    work = getattr(reading, call)

    def broken(path):
        if store.directory == path or second == path.parent:
            raise OSError(code, os.strerror(code), str(path))
        return work(path)

    monkeypatch.setattr(reading, call, broken)
    notices = []
    if call == "open_regular" and code == errno.EIO:
        assert load_newest([store.directory], notices.append).step == 1
        assert "cannot be read" in notices[0]
        assert [kept.good for kept in read_kept([store.directory])] == [True, False]
    else:
        for look in (load_newest, read_kept):
            with pytest.raises(CheckpointError, match="check the disk") as raised:
                look([store.directory], notices.append if look is load_newest else ())
            assert not isinstance(raised.value, CorruptCheckpointError)
        assert notices == []
    assert second.is_dir()
