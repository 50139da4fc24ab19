"""Where a rehearsed trial is killed, and what acts once an epoch: found by its effect.

By default that is seen once, in test_check_studies.py: each case is a whole check, and costs as much.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from forgetful import ARGUMENTS, ONCE_AN_EPOCH, RATES
from study_files import StudyText

from sweeper.checks import check
from sweeper.checks.interrupted_runs import interruptions
from sweeper.replay.reports import CheckReport
from sweeper.run.replays import Kill


@pytest.mark.parametrize(
    ("end", "steps", "kills"),
    [
        (62, 20, [[Kill(20, 41)], [Kill(10, 21), Kill(30, 41)]]),
        (40, 20, [[Kill(20, 40)], [Kill(10, 21), Kill(30, 40)]]),
        (20, 20, [[Kill(10, 11)]]),
        (4, 1, [[Kill(1, 3)]]),
        (2, 1, [[Kill(1, 2)]]),
        (2, 2, [[Kill(1, 2)]]),
        (5, 3, [[Kill(3, 5)], [Kill(1, 4), Kill(4, 5)]]),
    ],
)
def test_one_is_killed_past_an_epochs_end_and_one_twice_past_its_middle(
    end: int, steps: int, kills: list[list[Kill]]
) -> None:
    assert [list(each.kills) for each in interruptions(end, steps)] == kills


def test_every_kill_is_between_its_checkpoint_and_the_end() -> None:
    for steps in range(1, 30):
        for end in range(2, 4 * steps):
            for interruption in interruptions(end, steps):
                before = 0
                for kill in interruption.kills:
                    assert before < kill.checkpoint < kill.after <= end
                    before = kill.checkpoint


IN_A_FILE = StudyText(
    name="file",
    head=f"""
class Decay(keras.callbacks.Callback):
    def __init__(self, folder):
        super().__init__()
        self.folder = str(folder)

    def on_epoch_end(self, epoch, logs=None):
        file = Path(self.folder) / "epochs.txt"
        seen = int(file.read_text() if file.exists() else "0") + 1
        file.write_text(str(seen))
        if seen == 2:
            self.slower()
{RATES}""",
    callbacks="Decay(trial.directory)",
    arguments=ARGUMENTS,
)
AFTER_VALIDATIONS = StudyText(
    name="validations",
    head=f"""
import math


class Patient(keras.callbacks.Callback):
    def on_test_end(self, logs=None):
        math.validations = getattr(math, "validations", 0) + 1

    def on_epoch_begin(self, epoch, logs=None):
        if getattr(math, "validations", 0) == 2:
            self.slower()
{RATES}""",
    callbacks="Patient()",
    arguments=ARGUMENTS,
)
IN_ITSELF = StudyText(
    name="itself",
    head=f"""
class Decay(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_epoch_end(self, epoch, logs=None):
        self.seen += 1
        if self.seen >= 2:
            self.slower()
{RATES}""",
    callbacks="Decay()",
    arguments=ARGUMENTS,
)


def checked(text: StudyText, directory: Path) -> CheckReport:
    return check.check_study(str(text.write(directory / f"{text.name}.py")))


@pytest.mark.whole
@pytest.mark.parametrize(
    "text",
    [ONCE_AN_EPOCH, IN_A_FILE, AFTER_VALIDATIONS],
    ids=lambda text: text.name,
)
def test_what_acts_once_an_epoch_and_is_in_no_checkpoint_is_found_by_its_effect(
    text: StudyText, tmp_path: Path
) -> None:
    report = checked(text, tmp_path)
    errors = [f for f in report.findings if f.level == "error"]
    assert [f.check for f in errors] == ["resume"], report.findings
    assert errors[0].message.startswith("killed after step ")
    assert "Some state that training changes is not in checkpoints" in errors[0].message
    assert any("repeat bit for bit" in held for held in report.held), "without a kill, it does"


@pytest.mark.whole  # by default: a study kept here, in test_check_studies.py
def test_what_the_callback_keeps_in_itself_holds_at_an_epochs_end_and_in_its_middle(
    tmp_path: Path,
) -> None:
    report = checked(IN_ITSELF, tmp_path)
    assert report.findings == ()
    held_after = [held for held in report.held if held.startswith("killed")]
    assert len(held_after) == 2
    assert "killed (SIGKILL) after step 41 and resumed at an epoch's end" in held_after[0]
    assert (
        "after step 21 and again after step 41 and resumed in the middle of an epoch"
        in held_after[1]
    )
    assert all("bit-identical at step 62" in held for held in held_after)


@pytest.mark.whole  # by default: the other finding is none, in test_check_studies.py
def test_without_interruptions_it_would_not_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "interruptions", lambda end, steps: ())
    assert checked(ONCE_AN_EPOCH, tmp_path).holds


@pytest.mark.parametrize(
    ("freq", "epochs", "expected"),
    [(5, 6, 1), (2, 6, 2), (5, 3, 5), ([9], 10, 1), ([2, 9], 10, [2, 9])],
)
def test_a_validation_that_is_due_after_the_rehearsed_epochs_is_rehearsed_in_each(
    freq: object, epochs: int, expected: object
) -> None:
    import keras
    import numpy as np

    from sweeper import Data
    from sweeper.replay.digests import shortened
    from sweeper.train.loop.plan import TrainingPlan

    x, y = np.zeros((8, 2), "float32"), np.zeros(8)
    plan = TrainingPlan(
        model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        data=Data(train=(x, y), validation=(x, y), validation_freq=freq),
        callbacks=(),
        epochs=epochs,
        objective="loss",
        order_seed=np.random.SeedSequence(0),
    )
    assert shortened(plan, None, None)[0].data.validation_freq == expected
