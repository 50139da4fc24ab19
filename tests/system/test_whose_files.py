"""Another study's files never become this one's, and a study's own go with it wherever it moves."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from disk_contents import digests
from interruptions import KILL_ALL
from study_files import SHORT, StudyText
from sweeps import Result, RunningCommand, results_of, sweep, trials_in

STUDY = StudyText(
    head=KILL_ALL
    + """
DIE_AT = int(os.environ.get("SWEEPER_TEST_DIE_AT", 0))

class Writing(keras.callbacks.Callback):
    \"\"\"Keeps paths below the trial's directory: one from the factory, one that changes.\"\"\"

    def __init__(self, directory):
        super().__init__()
        self.fixed, self.newest = directory / "fixed.txt", str(directory)
        self.written = []

    def on_epoch_end(self, epoch, logs=None):
        self.newest = str(self.fixed.parent / f"epoch-{epoch}.txt")
        self.written = [*self.written, Path(self.newest)]
        for path in (self.fixed, *self.written):
            path.write_text(f"{epoch} {logs['loss']!r}")

    def on_train_batch_end(self, batch, logs=None):
        if DIE_AT and int(self.model.optimizer.iterations) >= DIE_AT:
            kill_all()
""",
    callbacks="""
        Writing(trial.directory),
        keras.callbacks.CSVLogger(str(trial.directory / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(trial.directory / "at-{epoch}.keras")),
        keras.callbacks.EarlyStopping(monitor="loss", patience=25),
    """,
    arguments="""objective="val_loss", epochs=4, trials=1, sampler="random", audit="off",
    checkpoint_every=Every(steps=7)""",
)


@dataclass(frozen=True)
class Killed:
    """A study that was killed at step 50 of 80, and what it gives when it is not."""

    file: Path
    home: Path
    whole: dict[int, Result]

    def copy(self, directory):
        """The killed study's home in another place; its database has the first one's paths."""
        shutil.copytree(self.home, directory)
        return directory


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("study")
    file = STUDY.write(directory / "study.py")
    home = directory / "home"
    home.mkdir()
    whole = sweep(file, directory / "whole", workers=1, isolation="inline")
    with RunningCommand("run", file, cwd=home, env={"SWEEPER_TEST_DIE_AT": "50"}) as run:
        assert run.end() == -9, run.err
    return Killed(file, home, results_of(whole.trials))


def check_went_on(ended, killed, runs):
    assert ended.code == 0, ended.err
    trials = trials_in(runs)
    assert results_of(trials) == killed.whole
    assert trials[0].attempts[-1].start_step in range(35, 51), "it began anew"


@pytest.mark.whole
def test_a_study_moved_as_the_how_to_says_ends_as_if_it_had_stayed(killed, tmp_path, here):
    """``cp -r runs``, and resume with ``--runs-dir``: the old place is not written to."""
    original = digests(killed.home)
    runs = killed.copy(tmp_path / "there") / "runs"
    ended = here("resume", "small", "--runs-dir", runs, cwd=tmp_path)
    check_went_on(ended, killed, runs)
    assert digests(killed.home) == original
    files = runs / "small" / "trial-00000" / "files"
    assert len((files / "log.csv").read_text().splitlines()) == 5
    assert {f"epoch-{n}.txt" for n in range(4)} <= {path.name for path in files.iterdir()}
    (trial,) = trials_in(runs)
    assert all(Path(checkpoint.path).is_relative_to(runs) for checkpoint in trial.checkpoints)
    assert all(Path(checkpoint.path).is_dir() for checkpoint in trial.checkpoints)


def test_a_copy_of_the_database_alone_goes_on_and_deletes_nothing_of_the_first(
    killed, tmp_path, here
):
    """Its checkpoints are found where they are recorded, where retention is not at home."""
    original = digests(killed.home)
    runs = tmp_path / "there" / "runs"
    runs.mkdir(parents=True)
    for file in (killed.home / "runs").glob("sweeper.db*"):
        shutil.copy(file, runs)
    first = killed.home / "runs" / "small" / "trial-00000" / "attempt-01" / "checkpoints"
    shown = here("show", "small", "0", "--runs-dir", runs, cwd=tmp_path)
    assert f"in {first}" in shown.out
    check_went_on(here("resume", "small", "--runs-dir", runs, cwd=tmp_path), killed, runs)
    assert digests(killed.home) == original


def test_paths_shown_are_those_where_the_study_is_now(killed, tmp_path, here):
    runs = killed.copy(tmp_path / "there") / "runs"
    shown = here("show", "small", "0", "--runs-dir", runs, cwd=tmp_path)
    present = runs / "small" / "trial-00000" / "attempt-01" / "checkpoints"
    assert f"in {present}" in shown.out
    assert str(killed.home) not in shown.out


@pytest.mark.whole
def test_a_trial_that_goes_on_under_other_settings_says_which(killed, tmp_path, here, monkeypatch):
    file = STUDY.write(tmp_path / "study.py")
    file.write_text(file.read_text() + "\n# a remark\n")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    runs = killed.copy(tmp_path / "there") / "runs"
    resumed = here("run", file, "--runs-dir", runs, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    [notice] = [line for line in resumed.err.splitlines() if "a different environment" in line]
    assert "trial 0 resumes" in notice
    assert "onednn was default and is 0" in notice
    assert "study.py" not in notice, "a remark is no change of the code"


@pytest.mark.parametrize("form", ["database removed", "another database"])
def test_what_another_study_left_is_refused_by_name_and_nothing_is_touched(
    killed, tmp_path, here, form
):
    """The attack: other seed, data and range under the same name, on the runs of the first."""
    runs = killed.copy(tmp_path / "there") / "runs"
    storage = f"sqlite:///{runs / 'sweeper.db'}"
    if form == "database removed":
        for path in runs.glob("sweeper.db*"):
            path.unlink()
    else:
        storage = f"sqlite:///{tmp_path / 'other.db'}"
    original = digests(runs)
    other = replace(
        STUDY,
        data="x, y = x[::-1], y[::-1]",
        rate='trial.suggest_float("learning_rate", 1e-5, 1e-4, log=True)',
        arguments=f"{STUDY.arguments}, seed=7",
    ).write(tmp_path / "study.py")
    ended = here("run", other, "--runs-dir", runs, "--storage", storage, cwd=tmp_path)
    assert ended.code == 1
    assert f"{runs / 'small'} belongs to study 'small' (identity " in ended.err
    assert "trial 0" not in ended.err
    assert digests(runs) == original


def test_a_study_whose_first_file_is_a_temporary_one_runs(tmp_path):
    """`tempfile` looks for its directory under a lock, and the file that it opens there is announced."""
    study = replace(SHORT, head="import tempfile\n\ntempfile.TemporaryFile().close()")
    swept = sweep(study.write(tmp_path / "small.py"), tmp_path / "runs", trials=1)
    assert [trial.state for trial in swept.trials] == ["complete"]
