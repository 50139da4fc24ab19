"""A study on two replicas: killed and resumed it is the same, replica by replica; it checks and verifies."""

import json
from pathlib import Path

import numpy as np
import pytest
from study_files import DIES_ONCE
from sweeps import differing, results_of, sweep, trials_in

from sweeper.checkpoint.reading import load_checkpoint

pytestmark = pytest.mark.whole
"""By default `train/test_exactness_suite.py` resumes trainings on two replicas, in a process."""

STUDY = Path(__file__).parents[2] / "studies" / "two_replicas.py"

KILLED = (
    DIES_ONCE
    + """
study = Study(
    callbacks=lambda trial: [DiesOnce(trial, 36, kept=30)] if KILLS else [],
"""
)
"""The trial is killed in the middle of its second epoch, of 22 steps each."""


def write(file, *, kills):
    text = STUDY.read_text().replace("study = Study(\n", KILLED.replace("KILLS", str(kills)))
    file.write_text(
        text.replace("epochs=8", "epochs=2").replace("trials=4", 'trials=1, audit="off"')
    )
    return file


def last_checkpoint(trial):
    newest = max(trial.checkpoints, key=lambda checkpoint: checkpoint.step)
    return load_checkpoint(Path(newest.path)).tensors


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory with the study and the runs of it, in this process, that nobody killed."""
    directory = tmp_path_factory.mktemp("whole")
    file = write(directory / "replicas.py", kills=False)
    sweep(file, directory / "runs", workers=1, isolation="inline")
    return directory


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The trials that were killed, in processes of their own."""
    directory = tmp_path_factory.mktemp("killed")
    sweep(write(directory / "replicas.py", kills=True), directory / "runs", workers=1)
    return trials_in(directory / "runs", "two-replicas")


def test_a_study_killed_in_the_middle_of_an_epoch_ends_replica_by_replica_as_one_that_was_not(
    whole, killed
):
    for trial in killed:
        assert [a.outcome for a in trial.attempts] == ["crashed", "complete"]
        assert [a.start_step for a in trial.attempts] == [0, 30], "in the middle of an epoch"
    undisturbed = trials_in(whole / "runs", "two-replicas")
    assert differing(results_of(undisturbed), results_of(killed)) == []
    for one, other in zip(undisturbed, killed, strict=True):
        tensors, other_tensors = (last_checkpoint(trial) for trial in (one, other))
        compared = [n for n in tensors if n.startswith(("model/", "optimizer/", "metrics/"))]
        assert sum(name.endswith("/replica-1") for name in compared) >= 2
        assert all(np.array_equal(tensors[name], other_tensors[name]) for name in compared)


def test_a_study_on_two_replicas_verifies_also_interrupted(whole, here):
    words = ("verify", "two-replicas", "--runs-dir", "runs", "--trial", 0, "--interrupt")
    answer = here(*words, cwd=whole)
    assert answer.code == 0, answer.out + answer.err


def test_checkpoints_of_two_replicas_are_measured_as_they_were_validated_and_leave(
    whole, tmp_path, here
):
    runs = ("--runs-dir", whole / "runs")
    (tmp_path / "validation.py").write_text(
        f"import sys\nsys.path.insert(0, {str(whole)!r})\nfrom replicas import load_data\n"
    )
    measured = here(
        *("evaluate", "two-replicas", "--data", tmp_path / "validation.py:load_data", "--json"),
        *runs,
        cwd=tmp_path,
    )
    assert measured.code == 0, measured.out + measured.err
    trials = {trial.number: trial for trial in trials_in(whole / "runs", "two-replicas")}
    last = [row for row in json.loads(measured.out) if row["epoch"] == 2]
    assert len(last) == 1
    for row in last:
        validated = trials[row["trial"]].epochs[-1].metrics
        expected = {n.removeprefix("val_"): v for n, v in validated.items() if n.startswith("val_")}
        assert row["metrics"] == expected
    for form in ("weights", "savedmodel"):
        path = tmp_path / ("model.weights.h5" if form == "weights" else "model")
        words = ("export", "two-replicas", "--format", form, "--output", path)
        answer = here(*words, *runs, cwd=tmp_path)
        assert answer.code == 0, answer.out + answer.err
        assert "description" in answer.out
