"""A study whose checkpoints are in an object store goes on, on another machine, where it was."""

import textwrap

import pytest
from interruptions import KILL_ALL
from object_faults import BUCKET, s3_environment
from study_files import StudyText
from sweeps import RunningCommand, database_url, results_of, sweep, trials_in

from sweeper.api.collection import collect
from sweeper.checkpoint.format import MANIFEST_FILE, TENSORS_FILE
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.remote_objects import ObjectStore, listed_objects
from sweeper.checks.verify import kept_checkpoints_of
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.spec.checkpointing import Keep
from sweeper.support.paths import RemotePath, RunPaths, parse_location

STUDY = StudyText(
    head=KILL_ALL
    + textwrap.dedent("""
    from sweeper.checkpoint.remote_objects import ObjectStore

    # Everything is killed before the n-th small object: a checkpoint's state, then its manifest.
    KILL_BEFORE = int(os.environ.get("SWEEPER_TEST_KILL_BEFORE", 0))
    upload = ObjectStore.upload
    uploads = 0

    def killing_upload(self, path, file):
        global uploads
        if path.name.endswith("json"):
            uploads += 1
            if uploads == KILL_BEFORE:
                kill_all()
        upload(self, path, file)

    ObjectStore.upload = killing_upload
    """),
    rate='trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)',
    arguments="""objective="val_loss", epochs=2, trials=1, sampler="random", audit="off",
    checkpoint_every=Every(steps=7)""",
)


@pytest.mark.whole
def test_a_study_killed_between_upload_and_manifest_resumes_elsewhere_bit_for_bit(
    tmp_path, s3_url, here, monkeypatch
):
    file = STUDY.write(tmp_path / "study.py")
    sweep(file, tmp_path / "undisturbed", workers=1, isolation="inline")
    for name, value in s3_environment(s3_url).items():
        monkeypatch.setenv(name, value)
    undisturbed, first, other = (tmp_path / name for name in ("undisturbed", "first", "other"))
    remote = (*("--storage", database_url(tmp_path)), *("--checkpoints", f"s3://{BUCKET}/e2e"))
    words = ("run", file, "--workers", 1, *remote)
    killed = RunningCommand(
        *words, "--runs-dir", first, cwd=tmp_path, env={"SWEEPER_TEST_KILL_BEFORE": "6"}
    )
    with killed:
        assert killed.end() < 0, "the command and its trial were killed"
    kept = RemotePath("s3", (BUCKET, "e2e", "small", "trial-00000", "attempt-01", "checkpoints"))
    listed = listed_objects(kept)
    unfinished = [path.name for path, names in listed.items() if MANIFEST_FILE not in names]
    assert unfinished == ["step-000000021"]
    resumed = here(*words, "--runs-dir", other, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert results_of(trials_in(tmp_path)) == results_of(trials_in(undisturbed))
    (trial,) = trials_in(tmp_path)
    assert [a.start_step for a in trial.attempts] == [0, 14]
    assert all(parse_location(c.path).parts[:2] == (BUCKET, "e2e") for c in trial.checkpoints)
    assert not list(other.rglob("*.safetensors")), "nothing but logs and files is kept here"
    listed = listed_objects(kept)
    assert all(MANIFEST_FILE in names for names in listed.values()), "swept"
    for log in tmp_path.rglob("log.txt"):
        assert "nclosed" not in log.read_text()
    check_verify(tmp_path, other, here)
    check_gc(tmp_path, other)


def check_verify(database, runs, here):
    """What lies in the store is replayed and equal, and not once a bit of it is another."""
    words = ("verify", "small", "--all", "--storage", database_url(database), "--runs-dir", runs)
    holds = here(*words, cwd=database)
    assert (holds.code, "2 checkpoints equal" in holds.out) == (0, True), holds.out + holds.err
    (trial,) = trials_in(database)
    store = ObjectStore("s3")
    file = parse_location(trial.checkpoints[-1].path) / TENSORS_FILE
    whole, damaged = database / "whole", database / "damaged"
    store.download(file, whole)
    content = whole.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    store.upload(file, damaged)
    differs = here(*words, cwd=database)
    store.upload(file, whole)
    assert differs.code == 4, differs.err
    assert "trial 0 DIFFERS" in differs.out
    assert str(file) in differs.out


def check_gc(database, runs):
    """What the study's own rules keep stays; what is then not kept goes, there and in the rows."""
    with Database.open(database_url(database), create=False) as opened:
        repository = Repository(opened)
        before = repository.trial("small", 0).checkpoints
        assert len(before) == 2
        kept = kept_checkpoints_of(repository.trial("small", 0), RunPaths(runs, "small"))
        assert [(k.recorded, k.damage) for k in kept] == [(record, None) for record in before]
        assert all(k.manifest is not None for k in kept), "verify reads them"
        assert collect(repository, "small", runs) == ()
        assert repository.trial("small", 0).checkpoints == before
        (gone,) = collect(repository, "small", runs, keep=Keep(last=1))
        (left,) = repository.trial("small", 0).checkpoints
    assert (str(gone.path), gone.why) == (before[0].path, "retention")
    assert left.path == before[1].path
    store = ObjectStore("s3")
    assert store.size(parse_location(before[0].path) / MANIFEST_FILE) is None
    assert load_checkpoint(parse_location(left.path)).digest == left.digest
