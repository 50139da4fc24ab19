"""What a resume says when the study, or what it runs on, is not what it was."""

from dataclasses import replace

from interruptions import KILL_ALL
from study_files import StudyText
from sweeps import RunningCommand

STUDY = StudyText(
    data="return Data(train=(x, y), batch_size=20)",
    arguments='objective="loss", epochs=2, trials=1, sampler="random", audit="off"',
)
FAILS_ONCE = replace(
    STUDY,
    head="""
    class StopsOnce(keras.callbacks.Callback):
        def __init__(self, mark):
            super().__init__()
            self.mark = str(mark)

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1 and not Path(self.mark).exists():
                Path(self.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
    """,
    callbacks="StopsOnce(trial.directory / 'mark')",
)


def test_a_trial_that_goes_on_under_other_settings_says_which(tmp_path, here, monkeypatch):
    file = FAILS_ONCE.write(tmp_path / "study.py")
    text = file.read_text().replace("os.kill(os.getpid(), signal.SIGKILL)", "kill_all()")
    file.write_text(text + KILL_ALL)
    runs = tmp_path / "runs"
    with RunningCommand("run", file, "--runs-dir", runs, cwd=tmp_path) as run:
        assert run.end() == -9
    file.write_text(file.read_text() + "\n# a remark\n")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    resumed = here("resume", "small", "--runs-dir", runs, cwd=tmp_path)
    assert resumed.code == 0
    assert "trial 0 resumes in a different environment" in resumed.err
    assert "onednn was default and is 0" in resumed.err
    assert "study.py" not in resumed.err.partition("different environment")[2].partition("\n")[0], (
        "a remark is no change of the code"
    )
