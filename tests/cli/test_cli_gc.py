"""``gc`` frees what may go, on real files and a real database, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sweeper.checkpoints.format import Snapshot
from sweeper.checkpoints.policy import Keep
from sweeper.checkpoints.store import CheckpointStore
from sweeper.cli.main import main
from sweeper.collection import Garbage, collect
from sweeper.errors import DefinitionError
from sweeper.paths import RunPaths
from sweeper.results import CheckpointRecord
from sweeper.storage.database import Database
from sweeper.storage.repository import Claim, Repository, StudyRow, WorkerIdentity


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
