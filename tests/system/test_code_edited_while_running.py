"""The study's file is edited while the study runs: nothing is begun under the new code."""

import pytest
from study_files import StudyText
from sweeps import sweep, trials_in

from sweeper.errors import DefinitionChangedError

CHANGED = r"was edited while it runs: build_model has changed \(small\.py\)"


def edited(moment, arguments, then="pass"):
    """Return a study whose first trial edits its file at a moment of its training."""
    return StudyText(
        head=f"""
        class Edits(keras.callbacks.Callback):
            def on_train_{moment}(self, logs=None):
                file = Path(__file__)
                file.write_text(file.read_text().replace("Dropout" "(0.3)", "Dropout(0.4)"))
                {then}
        """,
        callbacks="*([] if trial.number else [Edits()])",
        arguments=f'objective="val_loss", sampler="random", {arguments}',
    )


@pytest.mark.parametrize(
    ("isolation", "then"),
    [
        pytest.param("spawn", "pass", marks=pytest.mark.whole, id="a spawned trial"),
        pytest.param(
            "auto", "os.kill(os.getppid(), signal.SIGKILL)", id="a server that starts again"
        ),
    ],
)
def test_no_trial_is_begun_under_other_code_than_the_study_was_started_with(
    isolation, then, tmp_path
):
    file = edited("end", 'epochs=1, trials=2, audit="off"', then).write(tmp_path / "small.py")
    with pytest.raises(DefinitionChangedError, match=CHANGED):
        sweep(file, tmp_path, workers=1, isolation=isolation)
    trials = trials_in(tmp_path, "small")
    # The first trial, which trained under its own code, may still end when its server is killed.
    assert trials[0].state in ("complete", "interrupted")
    assert [(trial.state, trial.epochs) for trial in trials[1:]] in ([], [("interrupted", ())])


@pytest.mark.whole
def test_an_audit_under_edited_code_gives_no_verdict(tmp_path):
    file = edited("begin", "epochs=2, trials=1").write(tmp_path / "small.py")
    swept = sweep(file, tmp_path, workers=1, isolation="spawn")
    assert [trial.state for trial in swept.trials] == ["complete"]
    notices = [notice for notice in swept.notices if "gives no verdict" in notice]
    assert notices, swept.notices
    assert all("was edited while it runs: build_model has changed" in notice for notice in notices)
