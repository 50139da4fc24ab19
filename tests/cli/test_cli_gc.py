"""``gc`` frees what may go, on real files and a real database, and nothing else."""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from sweeper.api.collection import collect
from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.identity import Origin, claim_directory, unfinished_name
from sweeper.checkpoint.store import CheckpointStore
from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.declarations.checkpointing import Keep
from sweeper.errors import DefinitionError, ForeignCheckpointError
from sweeper.records.results import CheckpointRecord
from sweeper.support.paths import RunPaths


def snapshot(step):
    return Snapshot(step, step, {"a": np.arange(step)}, {}, {}, ("a",))


class StudyFiles:
    """A study with trials whose checkpoints are really on disk."""

    def __init__(self, runs, keep=None):
        self.runs = runs
        self.paths = RunPaths(runs, "digits")
        self.repository = Repository(Database.open(f"sqlite:///{runs}/sweeper.db", create=True))
        described = (keep or Keep(last=1)).describe()
        self.repository.create_or_open(
            StudyRow("digits", {"keep": described}, "loss", "minimize", 5, None, 0)
        )

    def claim(self):
        claim = self.repository.claim("digits", WorkerIdentity.here(), lambda number: number)
        assert isinstance(claim, Claim)
        return claim

    def write(self, claim, *steps):
        study = self.repository.study("digits")
        origin = Origin(study.name, study.identity, claim.number, study.seed)
        store = CheckpointStore(self.paths.checkpoints(claim.number, claim.attempt), origin=origin)
        paths = []
        for step in steps:
            checkpoint = store.commit(snapshot(step))
            paths.append(checkpoint.path)
            record = CheckpointRecord(
                step, step, checkpoint.digest, checkpoint.bytes, str(checkpoint.path)
            )
            self.repository.record_checkpoint(claim.token, record)
        return paths

    def interrupted(self, *steps):
        """The paths of checkpoints of these steps, whose attempt is over."""
        claim = self.claim()
        paths = self.write(claim, *steps)
        self.repository.finish(claim.token, Ending("interrupted"))
        return paths

    def close(self):
        self.repository.database.close()

    def stored(self, number):
        return [c.path for c in self.repository.trial("digits", number).checkpoints]

    def collect(self, **options):
        return collect(self.repository, "digits", self.runs, **options)


@pytest.fixture
def files(tmp_path):
    with closing(StudyFiles(tmp_path)) as files:
        yield files


def test_checkpoints_that_no_rule_keeps_go_and_the_newest_of_all_attempts_stays(files):
    old = files.interrupted(1, 2)
    second = files.claim()
    (newest,) = files.write(second, 3)
    files.repository.finish(second.token, Ending("complete", value=0.5, digest="d"))
    collected = files.collect(dry_run=True)
    assert [item.path for item in collected] == old
    assert all(path.exists() for path in old), "a dry run deletes nothing"
    assert files.collect() == collected
    assert not any(path.exists() for path in old)
    assert newest.exists()
    assert files.stored(0) == [str(newest)]
    assert files.collect() == ()


def test_a_running_trial_keeps_all(files):
    claim = files.claim()
    paths = files.write(claim, 1, 2, 3)
    assert files.collect() == ()
    assert all(path.exists() for path in paths)


def test_the_database_lists_no_checkpoint_that_is_gone(files):
    lost, newest = files.interrupted(1, 2)
    CheckpointStore(lost.parent).delete(lost)
    files.collect()
    assert files.stored(0) == [str(newest)]


def test_what_dead_processes_and_readers_left_goes(files):
    (whole,) = files.interrupted(5)
    whole.with_name("step-000000004.corrupt-1").mkdir()
    whole.with_name(unfinished_name("writing", "step-000000006")).mkdir()
    assert sorted(item.why for item in files.collect()) == ["damaged", "unfinished"]
    assert list(whole.parent.iterdir()) == [whole]


def test_what_is_unfinished_goes_once_its_attempt_is_over(files):
    claim = files.claim()
    (whole,) = files.write(claim, 5)
    unfinished = whole.with_name(unfinished_name("writing", "step-000000006"))
    unfinished.mkdir()
    assert files.collect() == (), "a running trial keeps all"
    files.repository.finish(claim.token, Ending("interrupted"))
    newer = whole.parents[1].with_name("attempt-02") / "checkpoints" / unfinished.name
    newer.mkdir(parents=True)
    assert [(item.path, item.why) for item in files.collect()] == [(unfinished, "unfinished")]
    assert list(whole.parent.iterdir()) == [whole]
    assert newer.is_dir(), "a worker has begun an attempt meanwhile"


def test_a_predicate_that_only_code_knows_is_not_guessed(tmp_path):
    keep = Keep(when=lambda metrics: metrics["loss"] < 1)
    with closing(StudyFiles(tmp_path, keep)) as files:
        with pytest.raises(DefinitionError, match=r"function .* --keep-last"):
            files.collect()
        assert files.collect(keep=Keep(last=1)) == ()


def test_a_study_whose_files_are_elsewhere_loses_nothing(files, tmp_path):
    (path,) = files.interrupted(1)
    collect(files.repository, "digits", tmp_path / "elsewhere")
    assert files.stored(0) == [str(path)]


def test_the_verb_says_what_it_freed(files, capsys):
    old, _ = files.interrupted(1, 2)
    where = ["--runs-dir", str(files.runs)]
    assert main(["gc", "--dry-run", *where]) == 0
    assert "would free" in capsys.readouterr().out
    assert main(["gc", "digits", "--json", *where]) == 0
    (freed,) = json.loads(capsys.readouterr().out)
    assert (freed["path"], freed["why"], freed["trial"]) == (str(old), "retention", 0)


def killed_after_writing(files, *steps):
    """A trial whose worker is gone, as after SIGKILL: its attempt is open in the database."""
    gone = replace(WorkerIdentity.here(), pid=2**22 + 1)
    claim = files.repository.claim("digits", gone, lambda number: number)
    assert isinstance(claim, Claim)
    return files.write(claim, *steps)


def test_a_trial_whose_process_was_killed_is_not_called_running(files):
    old, newest = killed_after_writing(files, 1, 2)
    assert [item.path for item in files.collect(dry_run=True)] == [old]
    assert [item.path for item in files.collect()] == [old]
    assert files.stored(0) == [str(newest)]
    assert files.collect() == ()


def test_what_has_gone_is_said_also_where_the_next_study_ends_with_an_error(files, capsys):
    old, _ = killed_after_writing(files, 1, 2)
    other = replace(files.repository.study("digits"), name="letters", source=None)
    files.repository.create_or_open(other)
    claim_directory(files.runs / "letters", Origin("letters", "2" * 32, 0, 7, "f"))
    assert main(["gc", "--runs-dir", str(files.runs)]) == 1
    printed = capsys.readouterr()
    assert str(old) in printed.out
    assert "belongs to study 'letters' (identity 22222222, seed 7, since" in printed.err


def test_the_checkpoints_of_another_study_are_no_garbage_of_this_one(files):
    """As where two databases have filled one directory before there were markers."""
    directory = files.interrupted(1)[0].parent
    foreign = CheckpointStore(directory, origin=Origin("digits", "2" * 32, 0, 7, "f"))
    paths = [foreign.commit(snapshot(step)).path for step in (2, 3)]
    with pytest.raises(ForeignCheckpointError, match="it belongs to another study 'digits'"):
        files.collect()
    assert all(path.is_dir() for path in paths)


def test_links_to_other_directories_are_not_emptied(files, tmp_path):
    (path,) = files.interrupted(1)
    outside = tmp_path / "outside"
    for step in (5, 6, 7):
        CheckpointStore(outside / "checkpoints").commit(snapshot(step))
    damaged = path.with_name("step-000000004.corrupt-1")
    damaged.symlink_to(outside)
    (files.paths.trial(0) / "attempt-02").symlink_to(outside)
    assert [item.path for item in files.collect()] == [damaged]
    assert not damaged.is_symlink()
    assert len(list((outside / "checkpoints").iterdir())) == 3


def test_what_ran_before_a_trial_began_anew_goes_and_displaces_nothing(files):
    claim = files.claim()
    files.write(claim, 8, 9)
    files.repository.finish(claim.token, Ending("failed", error="KeyError: 'x'"))
    changed = StudyRow(
        "digits", {"keep": Keep(last=1).describe(), "epochs": 4}, "loss", "minimize", 5, None, 0
    )
    files.repository.accept_while_nothing_has_a_value(changed, lambda n: n)
    second = files.claim()
    assert (second.number, second.attempt) == (claim.number, 2)
    (path,) = files.write(second, 1)
    files.repository.finish(second.token, Ending("interrupted"))
    assert [item.path.name for item in files.collect()] == ["step-000000008", "step-000000009"]
    assert path.is_dir()
    assert [c.path for c in files.repository.trial("digits", 0).checkpoints] == [str(path)]


def test_a_copied_database_has_the_same_studies(tmp_path, capsys):
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("laptop", "cluster"))
    with Database.open(source, create=True) as database:
        Repository(database).create_or_open(
            StudyRow("digits", {"epochs": 3}, "loss", "minimize", 4, None, 0)
        )
    assert main(["db", "copy", source, target]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("studies: 1, trials: 0; copied ")
    assert f"export SWEEPER_STORAGE={target}" in printed.err
    with Database.open(target, create=False) as database:
        assert Repository(database).study_names() == ("digits",)
    assert main(["db", "copy", f"sqlite:///{tmp_path / 'none.db'}", target]) == 1
    assert "there is no database at" in capsys.readouterr().err
