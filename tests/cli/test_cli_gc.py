"""``gc`` frees what may go, on real files and a real database, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeper.checkpoints.format import Snapshot
from sweeper.checkpoints.marker import Marker, claim_directory
from sweeper.checkpoints.origin import Origin
from sweeper.checkpoints.policy import Keep
from sweeper.checkpoints.store import CheckpointStore
from sweeper.cli.main import main
from sweeper.collection import Garbage, collect
from sweeper.errors import DefinitionError, ForeignCheckpointError
from sweeper.paths import RunPaths
from sweeper.results import CheckpointRecord
from sweeper.storage.audits import Audits, Pinned
from sweeper.storage.database import Database
from sweeper.storage.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.storage.restarts import Restarts


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, step, {"a": np.arange(step)}, {}, {}, ("a",))


class Place:
    """A study with trials whose checkpoints are really on disk."""

    def __init__(self, runs: Path, keep: Keep | None = None) -> None:
        self.runs = runs
        self.paths = RunPaths(runs, "digits")
        self.repository = Repository(Database.open(f"sqlite:///{runs}/sweeper.db", create=True))
        described = (keep or Keep(last=1)).describe()
        self.repository.create_or_open(
            StudyRow("digits", {"keep": described}, "loss", "minimize", 5, None, 0)
        )

    def claim(self) -> Claim:
        claim = self.repository.claim("digits", WorkerIdentity.here(), lambda number: number)
        assert isinstance(claim, Claim)
        return claim

    def write(self, claim: Claim, *steps: int, told: bool = True) -> list[Path]:
        store = CheckpointStore(self.paths.checkpoints(claim.number, claim.attempt))
        written = []
        for step in steps:
            made = store.commit(snapshot(step))
            written.append(made.path)
            if told:
                record = CheckpointRecord(step, step, made.digest, made.bytes, str(made.path))
                self.repository.record_checkpoint(claim.token, record)
        return written

    def stored(self, number: int) -> list[str]:
        return [c.path for c in self.repository.trial("digits", number).checkpoints]

    def collect(self, **options: object) -> tuple[Garbage, ...]:
        return collect(self.repository, "digits", self.runs, **options)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_checkpoints_that_no_rule_keeps_go_and_the_newest_of_all_attempts_stays(
    place: Place,
) -> None:
    first = place.claim()
    old = place.write(first, 1, 2)
    place.repository.finish(first.token, "interrupted")
    second = place.claim()
    (newest,) = place.write(second, 3)
    place.repository.finish(second.token, "complete", value=0.5, digest="d")
    told = place.collect(dry_run=True)
    assert [item.path for item in told] == old
    assert all(path.exists() for path in old), "a dry run deletes nothing"
    assert place.collect() == told
    assert not any(path.exists() for path in old)
    assert newest.exists()
    assert place.stored(0) == [str(newest)]
    assert place.collect() == ()


def test_a_running_trial_keeps_all(place: Place) -> None:
    claim = place.claim()
    written = place.write(claim, 1, 2, 3)
    assert place.collect() == ()
    assert all(path.exists() for path in written)


def test_the_database_lists_what_is_on_disk_either_way_round(place: Place) -> None:
    claim = place.claim()
    (lost,) = place.write(claim, 1)
    (untold,) = place.write(claim, 2, told=False)
    place.repository.finish(claim.token, "interrupted")
    CheckpointStore(lost.parent).delete(lost)
    assert place.stored(0) == [str(lost)]
    place.collect()
    assert place.stored(0) == [str(untold)]


def test_what_dead_processes_and_readers_left_goes(place: Place) -> None:
    claim = place.claim()
    (whole,) = place.write(claim, 5)
    damaged = whole.with_name("step-000000004.corrupt-1")
    damaged.mkdir()
    code = (
        "from sweeper.checkpoints.names import unfinished_name; import pathlib, sys;"
        "(pathlib.Path(sys.argv[1]) / unfinished_name('writing', 'step-000000006')).mkdir()"
    )
    subprocess.run([sys.executable, "-c", code, str(whole.parent)], check=True)
    place.repository.finish(claim.token, "interrupted")
    assert sorted(item.why for item in place.collect()) == ["damaged", "unfinished"]
    assert list(whole.parent.iterdir()) == [whole]


def test_a_predicate_that_only_code_knows_is_not_guessed(tmp_path: Path) -> None:
    place = Place(tmp_path, Keep(when=lambda metrics: metrics["loss"] < 1))
    with pytest.raises(DefinitionError, match=r"predicate .* --keep-last"):
        place.collect()
    assert place.collect(keep=Keep(last=1)) == ()


def test_a_study_whose_files_are_elsewhere_loses_nothing(place: Place, tmp_path: Path) -> None:
    claim = place.claim()
    (path,) = place.write(claim, 1)
    place.repository.finish(claim.token, "interrupted")
    collect(place.repository, "digits", tmp_path / "elsewhere")
    assert place.stored(0) == [str(path)]


def test_the_verb_says_what_it_freed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    claim = place.claim()
    old, _ = place.write(claim, 1, 2)
    place.repository.finish(claim.token, "interrupted")
    where = ["--runs-dir", str(place.runs)]
    assert main(["gc", "--dry-run", *where]) == 0
    assert "would free" in capsys.readouterr().out
    assert main(["gc", "digits", "--json", *where]) == 0
    (freed,) = json.loads(capsys.readouterr().out)
    assert (freed["path"], freed["why"], freed["trial"]) == (str(old), "retention", 0)
    assert main(["gc", "nosuch", *where]) == 2


def test_upgrading_a_database_of_this_version_says_that_nothing_is_to_do(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "upgrade", "--runs-dir", str(place.runs)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_pins_of_audits_that_are_over_go_and_those_that_wait_stay(place: Place) -> None:
    claim = place.claim()
    place.write(claim, 1)
    pins = place.paths.audits(claim.number, claim.attempt)
    for name in ("0-1", "1-2", "middle"):
        CheckpointStore(pins / name / "to").commit(snapshot(1))
    waits = Pinned(0, 1, 1, "here", str(pins / "0-1"), None, str(pins / "0-1" / "to"))
    Audits(place.repository.database).add(claim.token, waits)
    assert place.collect() == (), "a running trial keeps all"
    place.repository.finish(claim.token, "interrupted")
    found = place.collect(dry_run=True)
    assert [(g.path, g.why) for g in found] == [
        (pins / "1-2", "unfinished"),
        (pins / "middle", "unfinished"),
    ]
    assert place.collect() == found
    assert [path.name for path in pins.iterdir()] == ["0-1"]


def killed_after_writing(place: Place, *steps: int) -> list[Path]:
    """A trial whose worker is gone, as after SIGKILL: its attempt is open in the database."""
    gone = replace(WorkerIdentity.here(), pid=2**22 + 1)
    claim = place.repository.claim("digits", gone, lambda number: number)
    assert isinstance(claim, Claim)
    return place.write(claim, *steps)


def test_a_trial_whose_process_was_killed_is_not_called_running(place: Place) -> None:
    old, newest = killed_after_writing(place, 1, 2)
    assert [item.path for item in place.collect(dry_run=True)] == [old]
    assert [item.path for item in place.collect()] == [old]
    assert place.stored(0) == [str(newest)]
    assert place.collect() == ()


def test_what_has_gone_is_said_also_where_the_next_study_ends_with_an_error(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _ = killed_after_writing(place, 1, 2)
    other = replace(place.repository.study("digits"), name="letters", source=None)
    place.repository.create_or_open(other)
    claim_directory(place.runs / "letters", Marker("letters", "2" * 32, 7, "f"))
    assert main(["gc", "--runs-dir", str(place.runs)]) == 1
    told = capsys.readouterr()
    assert str(old) in told.out
    assert "belongs to study 'letters' (identity 22222222, seed 7, since" in told.err


def test_the_checkpoints_of_another_study_are_no_garbage_of_this_one(place: Place) -> None:
    """As where two databases have filled one directory before there were markers."""
    claim = place.claim()
    directory = place.write(claim, 1)[0].parent
    place.repository.finish(claim.token, "interrupted")
    foreign = CheckpointStore(directory, origin=Origin("digits", "2" * 32, 0, 7, "f"))
    paths = [foreign.commit(snapshot(step)).path for step in (2, 3)]
    with pytest.raises(ForeignCheckpointError, match="it is of another study 'digits'"):
        place.collect()
    assert all(path.is_dir() for path in paths)


def test_links_to_other_places_are_not_emptied(place: Place, tmp_path: Path) -> None:
    claim = place.claim()
    (path,) = place.write(claim, 1)
    place.repository.finish(claim.token, "interrupted")
    outside = tmp_path / "outside"
    for step in (5, 6, 7):
        CheckpointStore(outside / "checkpoints").commit(snapshot(step))
    damaged = path.with_name("step-000000004.corrupt-1")
    damaged.symlink_to(outside)
    (place.paths.trial(0) / "attempt-02").symlink_to(outside)
    assert [item.path for item in place.collect()] == [damaged]
    assert not damaged.is_symlink()
    assert len(list((outside / "checkpoints").iterdir())) == 3


def test_what_ran_before_a_trial_began_anew_goes_and_displaces_nothing(place: Place) -> None:
    claim = place.claim()
    place.write(claim, 8, 9)
    place.repository.finish(claim.token, "failed", error="KeyError: 'x'")
    changed = StudyRow(
        "digits", {"keep": Keep(last=1).describe(), "epochs": 4}, "loss", "minimize", 5, None, 0
    )
    Restarts(place.repository.database).accept_while_nothing_has_a_value(changed, lambda n: n)
    again = place.claim()
    assert (again.number, again.attempt) == (claim.number, 2)
    (now,) = place.write(again, 1)
    place.repository.finish(again.token, "interrupted")
    assert [item.path.name for item in place.collect()] == ["step-000000008", "step-000000009"]
    assert now.is_dir()
    assert [c.path for c in place.repository.trial("digits", 0).checkpoints] == [str(now)]
