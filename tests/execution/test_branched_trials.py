"""A branch from the command line, from the parent's checkpoint to its verification."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

from study_files import StudyText
from sweeps import command, trials_in

STUDY = StudyText(
    head="from sweeper import Keep",
    callbacks='keras.callbacks.CSVLogger(str(trial.directory / "log.csv"))',
    arguments='objective="val_loss", epochs=2, trials=1, sampler="random", keep=Keep(last=3), '
    'audit="off"',
)


def test_branches_begin_where_their_parent_was_and_are_verified(tmp_path: Path) -> None:
    STUDY.write(tmp_path / "small.py")
    assert command("run", "small.py", "--workers", 1, cwd=tmp_path).code == 0
    same = command("branch", "small", 0, "--epoch", 1, "--json", cwd=tmp_path)
    assert same.code == 0, same.err
    told = json.loads(same.out)
    assert (told["number"], told["state"], told["parent"]["number"]) == (1, "waiting", 0)
    other = command("branch", "small", 0, "--epoch", 1, "--set", "learning_rate=0.5", cwd=tmp_path)
    assert other.out.startswith(
        "trial 2 of study small begins at step 20 of trial 0 (epoch 1 of 2)"
    )
    assert "warning: learning_rate=0.5 is outside of FloatRange(low=0.001, high=0.1" in other.err

    # Whatever becomes of the parent's own, what a branch begins from stays.
    shutil.rmtree(tmp_path / "runs/small/trial-00000/attempt-01/checkpoints")
    resumed = command("resume", "small", "--workers", 1, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    parent, unchanged, changed = trials_in(tmp_path / "runs")
    assert unchanged.digest == parent.digest
    assert (unchanged.value, unchanged.epochs) == (parent.value, parent.epochs)
    assert [a.start_step for a in (*unchanged.attempts, *changed.attempts)] == [20, 20]
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
    verified = command(*words, "--interrupt", "--seed", 4, cwd=tmp_path)
    assert verified.code == 0, verified.out + verified.err
    assert "trial 2 holds" in verified.out
    assert "resumed at step" in verified.out

    # Negative control: had the branch begun elsewhere, its replay would say so.
    with sqlite3.connect(tmp_path / "runs/sweeper.db") as database:
        database.execute("UPDATE sweeper_branches SET digest = 'another'")
    refuted = command(*words, cwd=tmp_path)
    assert refuted.code == 4, refuted.out + refuted.err
    assert "and this branch began from another" in refuted.out


def test_a_branch_of_an_extended_trial_trains_as_far_as_that(tmp_path: Path) -> None:
    STUDY.write(tmp_path / "small.py")
    assert command("run", "small.py", "--workers", 1, cwd=tmp_path).code == 0
    longer = command("run", "small.py", "--workers", 1, "--epochs", 3, cwd=tmp_path)
    assert longer.code == 0, longer.err
    added = command("branch", "small", 0, "--epoch", 2, cwd=tmp_path)
    assert added.out.startswith(
        "trial 1 of study small begins at step 40 of trial 0 (epoch 2 of 3)"
    ), added.err
    assert command("resume", "small", "--workers", 1, cwd=tmp_path).code == 0
    parent, branch = trials_in(tmp_path / "runs")
    assert len(branch.epochs) == 3
    assert (branch.digest, branch.value) == (parent.digest, parent.value)


def test_parameters_that_make_another_shape_fail_the_branch_by_name(tmp_path: Path) -> None:
    rate = 'trial.suggest_int("units", 4, 8); model = keras.Sequential([keras.Input((16,)), '
    rate += (
        'keras.layers.Dense(trial.suggest_int("units", 4, 8)), keras.layers.Dense(4)]); rate = 0.1'
    )
    StudyText(
        rate=rate,
        arguments='objective="val_loss", epochs=2, trials=1, sampler="random", audit="off"',
    ).write(tmp_path / "small.py")
    assert command("run", "small.py", "--workers", 1, cwd=tmp_path).code == 0
    (parent,) = trials_in(tmp_path / "runs")
    units = 4 if parent.params["units"] != 4 else 5
    words = ("branch", "small", 0, "--set", f"units={units}", "--epochs", 3)
    assert command(*words, cwd=tmp_path).code == 0
    command("resume", "small", "--workers", 1, cwd=tmp_path)
    _, branch = trials_in(tmp_path / "runs")
    assert branch.state == "failed"
    assert branch.error is not None
    assert (
        f"what units={units} makes does not fit the checkpoint of step 40 of trial 0"
        in branch.error
    )
    assert "dense" in branch.error
    assert f"[16, {units}]" in branch.error
