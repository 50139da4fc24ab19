"""A study whose checkpoints are in an object store goes on, on another machine, where it was."""

import textwrap

import fsspec
import pytest
from interruptions import KILL_ALL
from object_faults import BUCKET, s3_environment
from study_files import StudyText
from sweeps import RunningCommand, database_url, results_of, sweep, trials_in

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
    directory = f"{BUCKET}/e2e/small/trial-00000/attempt-01/checkpoints"
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    assert unfinished(store, directory) == ["step-000000021"]
    resumed = here(*words, "--runs-dir", other, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert results_of(trials_in(tmp_path)) == results_of(trials_in(undisturbed))
    (trial,) = trials_in(tmp_path)
    assert [a.start_step for a in trial.attempts] == [0, 14]
    assert all(c.path.startswith(f"s3://{BUCKET}/e2e/") for c in trial.checkpoints)
    assert not list(other.rglob("*.safetensors")), "nothing but logs and files is kept here"
    assert unfinished(store, directory) == [], "swept"
    logs = [log.read_text().lower() for log in tmp_path.rglob("log.txt")]
    assert len(logs) >= 2, "of both attempts"
    assert not any("unclosed" in log for log in logs), "no connection is left open"
    flags = ("--storage", database_url(tmp_path), "--runs-dir", other)
    check_verify(tmp_path, store, flags, here)
    check_gc(tmp_path, store, flags, here)


def unfinished(store, directory):
    """The names of the checkpoints without a manifest."""
    store.invalidate_cache()
    files = [path.rsplit("/", 2)[-2:] for path in store.find(directory)]
    whole = {name for name, file in files if file == "manifest.json"}
    return sorted({name for name, _ in files} - whole)


def check_verify(database, store, flags, here):
    """What lies in the store is replayed and equal, and not once a bit of it is another."""
    words = ("verify", "small", "--all", *flags)
    holds = here(*words, cwd=database)
    assert (holds.code, "2 checkpoints equal" in holds.out) == (0, True), holds.out + holds.err
    (trial,) = trials_in(database)
    file = f"{trial.checkpoints[-1].path}/tensors.safetensors"
    content = store.cat_file(file)
    store.pipe_file(file, content[:-1] + bytes([content[-1] ^ 1]))
    differs = here(*words, cwd=database)
    store.pipe_file(file, content)
    assert differs.code == 4, differs.err
    assert "trial 0 DIFFERS" in differs.out
    assert file in differs.out


def check_gc(database, store, flags, here):
    """What the study's own rules keep stays; what is then not kept goes, there and in the rows."""
    [trial] = trials_in(database)
    assert len(trial.checkpoints) == 2
    assert here("gc", "small", *flags, cwd=database).code == 0
    assert trials_in(database) == (trial,)
    assert here("gc", "small", "--keep-last", 1, *flags, cwd=database).code == 0
    [checkpoint] = trials_in(database)[0].checkpoints
    assert checkpoint == trial.checkpoints[1]
    store.invalidate_cache()
    assert not store.exists(f"{trial.checkpoints[0].path}/manifest.json")
    assert store.exists(f"{checkpoint.path}/manifest.json")
