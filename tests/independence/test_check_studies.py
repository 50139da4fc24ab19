"""``sweeper check`` as one types it: on the studies that are kept here, and on two that are bad."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forgetful import ONCE_AN_EPOCH, WITH_EVERY_BATCH
from rehearsals import PLAIN
from study_files import StudyText
from sweeps import command, trials_in

from sweeper.cli.main import main

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.py"))
SOUND = StudyText(
    model=PLAIN.replace("keras.layers", "keras.layers.Dropout(0.3), keras.layers"),
    arguments='objective="val_loss", epochs=2, trials=2, sampler="random"',
)
CLOCK = StudyText(
    head="""
    import time

    class Jitter(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = rate * (1 + 1e-2 * (time.time() % 1))
    """,
    callbacks="Jitter()",
    arguments='objective="val_loss", epochs=1, trials=2, sampler="random"',
)
SHARED = StudyText(
    name="shared",
    head="""
    LOG = keras.callbacks.History()
    """,
    callbacks="LOG",
)


Checked = Callable[[Path, int], dict[str, Any]]


@pytest.fixture
def checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Checked:
    """What the command prints of a file, in this process, which has imported everything."""
    monkeypatch.chdir(tmp_path)

    def check(file: Path, code: int) -> dict[str, Any]:
        ended = main(["check", str(file), "--workers", "2", "--json"])
        said = capsys.readouterr()
        assert ended == code, said.out + said.err
        assert not (tmp_path / "runs").exists(), "a check touches no database and keeps no file"
        report: dict[str, Any] = json.loads(said.out)
        return report

    return check


def test_a_sound_study_holds_in_everything(checked: Checked, tmp_path: Path) -> None:
    assert_it_holds(checked(SOUND.write(tmp_path / "sound.py"), 0))


@pytest.mark.whole  # larger networks, longer epochs, two replicas
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_kept_here_holds(file: Path, checked: Checked) -> None:
    assert_it_holds(checked(file, 0))


def assert_it_holds(report: dict[str, Any]) -> None:
    assert report["holds"] is True
    assert [f for f in report["findings"] if f["level"] != "note"] == []
    held = "\n".join(report["held"])
    for promise in (
        "share none",
        "do not move each other",
        "can be captured",
        "the same seed gives the same",
        "and another seed gives others",
        "in different orders, and each repeats",
        "repeat bit for bit in another process",
        "killed (SIGKILL) after step",
        "the objective",
    ):
        assert promise in held
    estimate = report["estimate"]
    assert estimate["study_seconds"] >= estimate["trial_seconds"] > estimate["startup_seconds"] > 0
    assert estimate["disk_bytes"] > estimate["checkpoint_bytes"] > 0
    assert estimate["memory_bytes"] == 2 * estimate["trial_bytes"] > 0
    assert report["steps"] > 0


@pytest.mark.whole  # by default: two rehearsals of it, in test_check_rehearsal.py
def test_a_clock_in_a_callback_exits_with_4_and_names_it(checked: Checked, tmp_path: Path) -> None:
    file = CLOCK.write(tmp_path / "clock.py")
    [finding] = checked(file, 4)["findings"]
    lines = file.read_text().splitlines()
    assert (finding["level"], finding["file"]) == ("error", str(file))
    assert "time.time()" in lines[finding["line"] - 1]
    assert "callback Jitter does not repeat" in finding["message"]
    assert "time.time in Jitter.on_epoch_end" in finding["message"]


@pytest.mark.parametrize(
    ("text", "where", "line"),
    [
        (ONCE_AN_EPOCH, "Decay.on_epoch_end", "math.epochs_seen = "),
        pytest.param(
            WITH_EVERY_BATCH, "Drop.on_train_batch_end", "steps[0] += 1", marks=pytest.mark.whole
        ),
    ],
    ids=["once an epoch", "with every batch"],
)
def test_state_that_no_checkpoint_finds_is_seen_when_a_killed_trial_is_resumed(
    text: StudyText, where: str, line: str, checked: Checked, tmp_path: Path
) -> None:
    file = text.write(tmp_path / "forgetful.py")
    report = checked(file, 4)
    [finding] = report["findings"]
    assert (finding["level"], finding["check"]) == ("error", "resume")
    assert finding["message"].startswith("killed after step ")
    assert "kept where no checkpoint finds it" in finding["message"]
    assert f"the module variable 'math' in {where}" in finding["message"]
    assert line in file.read_text().splitlines()[finding["line"] - 1]
    assert any("repeat bit for bit" in held for held in report["held"]), "without a kill, it does"


def test_a_run_refuses_before_its_first_trial_what_every_trial_would_be_refused_for(
    tmp_path: Path,
) -> None:
    file = SHARED.write(tmp_path / "shared.py")
    ended = command("run", file, "--workers", 1, cwd=tmp_path)
    assert ended.code == 4, ended.err
    assert ended.out == ""
    line = 1 + file.read_text().splitlines().index("def build_callbacks(trial):")
    assert f"error: {file}:{line}: callback" in ended.err
    assert "module attribute shared.LOG" in ended.err
    assert "no trial was run" in ended.err
    assert [trial.state for trial in trials_in(tmp_path / "runs", "shared")] == []
