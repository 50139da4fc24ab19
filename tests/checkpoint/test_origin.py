"""Whose a checkpoint is, and whose a directory: another's is refused by name and left as it is."""

import threading
from dataclasses import replace

import pytest
from checkpoint_faults import snapshot

from sweeper.checkpoint import identity as markers
from sweeper.checkpoint.identity import MARKER_FILE, Origin, claim_directory, read_marker
from sweeper.checkpoint.reading import load_newest, read_kept, read_manifest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import ForeignCheckpointError

MINE = Origin("digits", "1" * 32, 3, 0, "f" * 32, {"rate": 0.1}, directory="/runs/files")
MARKER = Origin("digits", "1" * 32, 0, 0, "f" * 32)


def written(directory, origin, step=1):
    return CheckpointStore(directory, origin=origin).commit(snapshot(step)).path


def test_a_manifest_bears_its_origin_and_the_owner_reads_it(tmp_path):
    path = written(tmp_path, MINE)
    assert read_manifest(path).origin == MINE
    assert load_newest([tmp_path], pytest.fail, origin=MINE).origin == MINE
    for same in (
        # What is asked for while it trains is in no manifest that was written before.
        {"parameters": {**MINE.parameters, "decay": 0.5}},
        {"directory": "/elsewhere"},
        {"study": "digits~1"},  # a study that was renamed
    ):
        assert load_newest([tmp_path], pytest.fail, origin=replace(MINE, **same)).step == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"identity": "2" * 32}, "another study 'digits' (identity 22222222, seed 0)"),
        ({"study": "letters", "identity": "2" * 32}, "it belongs to study 'letters'"),
        ({"study": "", "identity": "2" * 32}, "it belongs to a training without a study"),
        ({"trial": 4}, "it belongs to trial 4, and this is trial 3"),
        ({"seed": 7}, "its seed was 7, and is 0 now"),
        ({"definition": "e" * 32}, "the fingerprint eeeeeeee, and the study's has ffffffff"),
        ({"parameters": {"rate": 0.2}}, "its rate was 0.2, and is 0.1 now"),
        ({"parameters": {"rate": "0.1"}}, "its rate was '0.1', and is 0.1 now"),
    ],
)
def test_a_checkpoint_of_another_origin_is_refused_by_name_and_left_as_it_is(
    tmp_path, other, message
):
    path = written(tmp_path, replace(MINE, **other))
    contents = {file: file.read_bytes() for file in path.iterdir()}
    for read in (
        lambda: load_newest([tmp_path], pytest.fail, origin=MINE),
        lambda: read_kept([tmp_path], origin=MINE),
    ):
        with pytest.raises(ForeignCheckpointError) as raised:
            read()
        assert message in str(raised.value)
        assert str(path) in str(raised.value)
    assert {file: file.read_bytes() for file in path.iterdir()} == contents
    assert load_newest([tmp_path], pytest.fail).step == 1, "control: without an origin it is read"


def test_an_accepted_change_of_the_definition_goes_on_with_the_old_ones_checkpoints(tmp_path):
    written(tmp_path, replace(MINE, definition="e" * 32, seed=7))
    accepted = replace(MINE, former=("e" * 32,))
    assert load_newest([tmp_path], pytest.fail, origin=accepted).step == 1


def test_one_that_does_not_say_whose_it_is_is_used_by_nobody_who_asks(tmp_path):
    path = written(tmp_path, None)
    messages = []
    assert load_newest([tmp_path], messages.append, origin=MINE) is None
    assert "does not name its owner" in messages[0]
    assert path.is_dir()
    assert read_kept([tmp_path], origin=MINE) == ()
    assert read_kept([tmp_path], [path], origin=MINE) == ()
    assert load_newest([tmp_path], pytest.fail).step == 1, "control: without an origin it is read"


def test_a_directory_is_the_first_ones_and_nobody_elses(tmp_path):
    directory = tmp_path / "digits"
    claim_directory(directory, MARKER)
    claim_directory(directory, MARKER)
    with pytest.raises(ForeignCheckpointError, match=r"belongs to study 'digits' \(identity 1111"):
        claim_directory(directory, replace(MARKER, identity="2" * 32))
    assert read_marker(directory).identity == MARKER.identity
    claim_directory(directory, replace(MARKER, seed=5))
    assert read_marker(directory).seed == 5, "a change that was accepted is written down"
    assert [path.name for path in directory.iterdir()] == [MARKER_FILE]


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000, '{"study": 1}', "null"])
def test_a_marker_that_nobody_can_read_is_refused_and_not_replaced(tmp_path, content):
    (tmp_path / MARKER_FILE).write_text(content)
    with pytest.raises(ForeignCheckpointError, match="does not name the owner"):
        claim_directory(tmp_path, MARKER, adopt=True)
    assert (tmp_path / MARKER_FILE).read_text() == content


def test_checkpoints_without_a_marker_are_only_adopted_by_who_has_a_record_of_them(tmp_path):
    (tmp_path / "trial-00000").mkdir()
    with pytest.raises(ForeignCheckpointError, match="left no marker"):
        claim_directory(tmp_path, MARKER)
    assert read_marker(tmp_path) is None
    claim_directory(tmp_path, MARKER, adopt=True)
    assert read_marker(tmp_path) is not None


def claim_twice(directory, *, at_once):
    """Let two studies claim a directory, one after the other or at once; return who was refused."""
    refused = []

    def begin(identity):
        try:
            claim_directory(directory, replace(MARKER, identity=identity * 32))
        except ForeignCheckpointError:
            refused.append(identity)

    threads = [threading.Thread(target=begin, args=(identity,)) for identity in "12"]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    for thread in threads:
        thread.join()
    return refused


def test_of_two_who_begin_at_the_same_moment_one_is_refused(tmp_path, monkeypatch):
    """Both look, and find nothing, before either writes."""
    both_looked = threading.Barrier(2)
    first = threading.local()

    def looking(directory):
        marker = read_marker(directory)
        if not hasattr(first, "look"):
            first.look = both_looked.wait(10)
        return marker

    monkeypatch.setattr(markers, "read_marker", looking)
    (refused,) = claim_twice(tmp_path, at_once=True)
    assert read_marker(tmp_path).identity[0] != refused


def test_on_a_file_system_without_links_the_second_is_refused_as_well(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(95, "no links here")

    monkeypatch.setattr(markers.os, "link", no_links)
    assert claim_twice(tmp_path, at_once=False) == ["2"]
