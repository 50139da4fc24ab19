"""A trial that is killed before its first checkpoint, and whose factory finds what the killed attempt has saved."""

import pytest
from study_files import TWO_STEPS, StudyText
from sweeps import sweep

STUDY = StudyText(
    eager=True,
    head="""
    class SavesAndDies(keras.callbacks.Callback):
        def __init__(self, trial):
            super().__init__()
            self.file = str(trial.directory / "last.weights.h5")
            self.mark = trial.directory.parent / "died"

        def on_epoch_end(self, epoch, logs=None):
            self.model.save_weights(self.file)
            if KILLED and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    """,
    data=TWO_STEPS,
    callbacks="SavesAndDies(trial)",
    tail="""
    def continued(trial, build=build_model):
        model = build(trial)
        last = trial.directory / "last.weights.h5"
        if last.exists():
            model.load_weights(last)
        return model

    study = Study(
        name="small", model=continued, data=load_data, callbacks=build_callbacks, epochs=4, trials=1,
        objective="val_loss", sampler="random", audit="off", checkpoint_every=Every(epochs=3),
    )
    """,
)

KEEPS_THEM = """
from sweeper.run.trial import run

run.set_files_aside = lambda assignment, notify: None
"""


def trial_of(directory, killed, head=""):
    directory.mkdir()
    text = (
        str(STUDY)
        .replace("KILLED", str(killed))
        .replace("from sweeper import", f"{head}\nfrom sweeper import", 1)
    )
    (directory / "small.py").write_text(text)
    [trial] = sweep(directory / "small.py", directory / "runs", workers=1).trials
    return trial


def test_its_next_attempt_begins_as_the_first_one_did_and_nothing_is_deleted(tmp_path):
    whole = trial_of(tmp_path / "whole", killed=False)
    killed = trial_of(tmp_path / "killed", killed=True)
    assert [attempt.outcome for attempt in killed.attempts] == ["crashed", "complete"]
    assert (killed.digest, killed.epochs) == (whole.digest, whole.epochs)
    trial = tmp_path / "killed/runs/small/trial-00000"
    assert (trial / "attempt-01/files/last.weights.h5").exists()


@pytest.mark.whole
def test_with_the_files_of_the_killed_attempt_it_would_end_otherwise(tmp_path):
    """The control."""
    whole = trial_of(tmp_path / "whole", killed=False)
    killed = trial_of(tmp_path / "killed", killed=True, head=KEEPS_THEM)
    assert killed.digest != whole.digest
