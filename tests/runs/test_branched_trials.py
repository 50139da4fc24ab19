"""A branch from the command line, from the parent's checkpoint to its verification."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from study_files import StudyText
from sweeps import Ended, trials_in

from sweeper.cli.main import main

UNVALIDATED = "return Data(train=(x[:160], y[:160]), batch_size=8)"

STUDY = StudyText(
    data=UNVALIDATED,
    head="from sweeper import Keep",
    callbacks='keras.callbacks.CSVLogger(str(trial.directory / "log.csv"))',
    arguments='objective="loss", epochs=2, trials=1, sampler="random", keep=Keep(last=3), '
    'audit="off"',
)


INLINE = ("--workers", 1, "--isolation", "inline")
"""Trials train in this process, which is the same and quicker; replays have one of their own."""


@pytest.fixture
def sweeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The command, in this process and an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ended:
        code = main([str(word) for word in words])
        return Ended(code, *capsys.readouterr())

    return run


def test_branches_begin_where_their_parent_was_train_as_far_and_are_verified(
    sweeper: Callable[..., Ended], tmp_path: Path
) -> None:
    """As far as the parent has been extended, and not to the study's first length."""
    STUDY.write(tmp_path / "small.py")
    assert sweeper("run", "small.py", *INLINE).code == 0
    longer = sweeper("run", "small.py", *INLINE, "--epochs", 3)
    assert longer.code == 0, longer.err
    same = sweeper("branch", "small", 0, "--epoch", 2, "--json")
    assert same.code == 0, same.err
    told = json.loads(same.out)
    assert (told["number"], told["state"], told["parent"]["number"]) == (1, "waiting", 0)
    other = sweeper("branch", "small", 0, "--epoch", 1, "--set", "learning_rate=0.5")
    assert other.out.startswith(
        "trial 2 of study small begins at step 20 of trial 0 (epoch 1 of 3)"
    )
    assert "warning: learning_rate=0.5 is outside of FloatRange(low=0.001, high=0.1" in other.err

    # Whatever becomes of the parent's own, what a branch begins from stays.
    for attempt in ("attempt-01", "attempt-02"):
        shutil.rmtree(tmp_path / f"runs/small/trial-00000/{attempt}/checkpoints")
    resumed = sweeper("resume", "small", *INLINE)
    assert resumed.code == 0, resumed.err
    parent, unchanged, changed = trials = trials_in(tmp_path / "runs")
    assert [len(trial.epochs) for trial in trials] == [3] * 3
    assert (unchanged.digest, unchanged.value) == (parent.digest, parent.value)
    assert unchanged.epochs == parent.epochs
    assert [a.start_step for trial in trials[1:] for a in trial.attempts] == [40, 20]
    assert changed.digest != parent.digest
    assert changed.epochs[0] == parent.epochs[0]
    assert changed.epochs[1] != parent.epochs[1]
    assert changed.parent is not None
    assert (changed.parent.outside, changed.params) == (("learning_rate",), {"learning_rate": 0.5})
    assert changed.branch_report is not None
    assert changed.branch_report["kept"] == ["adam/learning_rate"]
    rows = [path.read_bytes() for path in sorted(tmp_path.glob("runs/*/*/files/log.csv"))]
    assert rows[0] == rows[1] != rows[2]

    words = ("verify", "small", "--trial", 2, "--workers", 1)
    verified = sweeper(*words, "--interrupt", "--seed", 4)
    assert verified.code == 0, verified.out + verified.err
    assert "trial 2 holds" in verified.out
    assert "resumed at step" in verified.out

    # Negative control: had the branch begun elsewhere, its replay would say so.
    with closing(sqlite3.connect(tmp_path / "runs/sweeper.db")) as database, database:
        database.execute("UPDATE sweeper_branches SET digest = 'another'")
    refuted = sweeper(*words)
    assert refuted.code == 4, refuted.out + refuted.err
    assert "and this branch began from another" in refuted.out


def test_parameters_that_make_another_shape_fail_the_branch_by_name(
    sweeper: Callable[..., Ended], tmp_path: Path
) -> None:
    rate = 'trial.suggest_int("units", 4, 8); model = keras.Sequential([keras.Input((16,)), '
    rate += (
        'keras.layers.Dense(trial.suggest_int("units", 4, 8)), keras.layers.Dense(1)]); rate = 0.1'
    )
    StudyText(
        data=UNVALIDATED,
        rate=rate,
        arguments='objective="loss", epochs=2, trials=1, sampler="random", audit="off"',
    ).write(tmp_path / "small.py")
    assert sweeper("run", "small.py", *INLINE).code == 0
    (parent,) = trials_in(tmp_path / "runs")
    units = 4 if parent.params["units"] != 4 else 5
    words = ("branch", "small", 0, "--set", f"units={units}", "--epochs", 3)
    assert sweeper(*words).code == 0
    assert sweeper("branch", "small", 0, "--epochs", 3).code == 0
    sweeper("resume", "small", *INLINE)
    _, branch, fitting = trials_in(tmp_path / "runs")
    assert (fitting.state, len(fitting.epochs)) == ("complete", 3), "the control"
    assert branch.state == "failed"
    assert branch.error is not None
    assert (
        f"with units={units} the model does not fit the checkpoint of step 40 of trial 0"
        in branch.error
    )
    assert "dense" in branch.error
    assert f"[16, {units}]" in branch.error
