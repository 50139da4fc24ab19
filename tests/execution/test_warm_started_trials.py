"""Whole trials that begin from a file: killed, resumed, verified; and a file that changes."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
from study_files import StudyText
from sweeps import command, sweep

from sweeper.errors import DefinitionChangedError, DefinitionError
from sweeper.events import Notice

HEAD = """
from sweeper import WarmStart

class DiesOnce(keras.callbacks.Callback):
    def __init__(self, trial):
        super().__init__()
        self.mark = Path(__file__).with_name(f"died-{trial.number}")

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
ARGUMENTS = 'objective="val_loss", epochs=4, trials=2, sampler="random", audit="off"'


def base_weights(path: Path, seed: int = 1) -> Path:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4),
        ]
    )
    model.save_weights(path)
    return path


def study(directory: Path, warm_start: str, *, dies: bool = False) -> Path:
    directory.mkdir()
    text = StudyText(
        head=HEAD,
        callbacks="DiesOnce(trial)" if dies else "",
        arguments=f"{ARGUMENTS}, warm_start={warm_start}",
    )
    return text.write(directory / "small.py")


@pytest.mark.parametrize(
    "given", ["WarmStart({path!r})", "lambda trial: {path!r} if trial.number else None"]
)
def test_a_warm_started_trial_that_is_killed_and_resumed_ends_alike_and_verifies(
    given: str, tmp_path: Path
) -> None:
    base = base_weights(tmp_path / "base.weights.h5")
    warm_start = given.format(path=str(base))
    whole = sweep(study(tmp_path / "a", warm_start), tmp_path / "a/runs")
    dying = study(tmp_path / "b", warm_start, dies=True)
    killed = sweep(dying, tmp_path / "b/runs")
    cold = sweep(study(tmp_path / "c", "None"), tmp_path / "c/runs")
    assert [len(t.attempts) for t in killed.trials] == [2, 2]
    assert [t.digest for t in killed.trials] == [t.digest for t in whole.trials]
    assert killed.trials[1].digest != cold.trials[1].digest
    assert (killed.trials[0].digest == cold.trials[0].digest) is ("lambda" in given)
    report = killed.trials[1].warm_start
    assert report is not None
    assert (report["path"], report["kind"], report["of"]) == (str(base), "Keras weights", 4)
    said = [
        e.message for e in killed.events if isinstance(e, Notice) and "begins from" in e.message
    ]
    assert sum(m.startswith("trial 1:") for m in said) == 1

    words = ("small", "--all", "--interrupt", "--runs-dir", tmp_path / "b/runs")
    verified = command("verify", *words, cwd=tmp_path)
    assert verified.code == 0, verified.err
    shown = command("show", "small", 1, "--json", "--runs-dir", tmp_path / "b/runs", cwd=tmp_path)
    assert json.loads(shown.out)["warm_start"] == report

    base_weights(base, seed=2)
    again = command("verify", *words[:2], *words[3:], cwd=tmp_path)
    if "lambda" in given:
        assert again.code == 4, again.err
        assert "what it began from is no longer the same" in again.out + again.err
        return
    assert again.code == 1, again.out
    assert "defined otherwise" in again.err
    assert "warm_start" in again.err
    with pytest.raises(DefinitionChangedError, match="warm_start"):
        sweep(dying, tmp_path / "b/runs", trials=3)


def test_a_study_whose_file_is_missing_or_does_not_fit_says_so(tmp_path: Path) -> None:
    gone = study(tmp_path / "a", f"WarmStart({str(tmp_path / 'gone.keras')!r})")
    with pytest.raises(DefinitionError, match=r"gone\.keras does not exist"):
        sweep(gone, tmp_path / "a/runs")
    base = base_weights(tmp_path / "base.weights.h5")
    given = f"WarmStart({str(base)!r}, rename={{'layers/dense': 'layers/other'}})"
    unfit = sweep(study(tmp_path / "b", given), tmp_path / "b/runs")
    assert {t.state for t in unfit.trials} == {"failed"}
    assert "sequential/dense/kernel is not in it; looked for layers/other/vars/0" in str(
        unfit.trials[0].error
    )
