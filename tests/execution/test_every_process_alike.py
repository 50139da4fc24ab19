"""What Python draws anew for every process is the same in all that run a study's trials.

The study splits by ``hash()`` of strings, and its training goes by generators without a seed and
by an eager operation of TensorFlow's with one.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from study_files import StudyText
from sweeps import Result, RunningCommand, command, differing, results_of, trials_in

UNWATCHED = True

SPLIT = StudyText(
    head="""
    import random
    import uuid

    import tensorflow as tf

    class KillsTheRunOnce(keras.callbacks.Callback):
        def __init__(self, mark):
            super().__init__()
            self.mark = str(mark)

        def on_epoch_end(self, epoch, logs=None):
            rate = 0.01 + random.Random().random() / 100 + np.random.RandomState().uniform() / 100
            self.model.optimizer.learning_rate.assign(rate + tf.random.uniform((), seed=1) / 100)
            if epoch == 1 and "KILL" in os.environ and not Path(self.mark).exists():
                Path(self.mark).touch()
                os.killpg(os.getpgrp(), signal.SIGKILL)
    """,
    data="""
    kept = np.array([hash(f"sample {i}") % 4 != 0 for i in range(200)])
    x = x + np.random.default_rng().normal(size=x.shape).astype("float32") / 4
    held = [x[~kept], y[~kept]]
    return Data(train=(x[kept][:120], y[kept][:120]), validation=tuple(held), batch_size=8)
    """,
    model="name_of_this_run = uuid.uuid4()",
    callbacks="KillsTheRunOnce(trial.directory / 'mark')",
    arguments='objective="val_loss", epochs=3, trials=1, sampler="random", audit="off"',
)


@dataclass(frozen=True)
class Run:
    results: dict[int, Result]
    attempts: int
    hashes: set[int]
    output: str


def run(file: Path, isolation: str, hash_seed: str) -> Run:
    runs = file.parent / f"{isolation}-{hash_seed}"
    words = ("run", file, "--isolation", isolation, "--runs-dir", runs)
    ended = command(*words, cwd=file.parent, env={"PYTHONHASHSEED": hash_seed})
    assert ended.code == 0, ended.err
    return seen(runs, ended.err)


def seen(runs: Path, output: str) -> Run:
    trials = trials_in(runs)
    with sqlite3.connect(runs / "sweeper.db") as database:
        kept = database.execute("SELECT fingerprint FROM sweeper_attempts").fetchall()
    hashes = {json.loads(row[0])["string_hash"] for row in kept}
    return Run(results_of(trials), sum(len(t.attempts) for t in trials), hashes, output)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SPLIT.write(tmp_path_factory.mktemp("split") / "split.py")


@pytest.fixture(scope="module")
def forked(file: Path) -> Run:
    return run(file, "fork", "1")


def test_two_runs_and_a_resumed_one_split_alike_whatever_the_hash_seed_outside(
    file: Path, forked: Run
) -> None:
    runs = file.parent / "killed"
    words = ("run", file, "--runs-dir", runs)
    with RunningCommand(*words, cwd=file.parent, env={"PYTHONHASHSEED": "2", "KILL": "1"}) as first:
        assert first.end() == -signal.SIGKILL
    resumed = command(
        "resume", "small", "--runs-dir", runs, cwd=file.parent, env={"PYTHONHASHSEED": "3"}
    )
    assert resumed.code == 0, resumed.err
    again = seen(runs, resumed.err)
    assert again.attempts == 2
    assert differing(forked.results, again.results) == []
    assert again.hashes == forked.hashes


@pytest.mark.whole
def test_spawned_trials_hash_as_forked_ones_do(file: Path, forked: Run) -> None:
    spawned = run(file, "spawn", "random")
    assert differing(forked.results, spawned.results) == []
    assert "PYTHONHASHSEED" not in spawned.output


def test_numbers_of_the_systems_are_reported_by_name_before_training(forked: Run) -> None:
    assert "uuid.uuid4 in build_model (" in forked.output
    assert "default_rng" not in forked.output


def test_an_inline_trial_hashes_otherwise_and_says_so(file: Path, forked: Run) -> None:
    """Also the negative control: the split does go by the seed."""
    inline = run(file, "inline", "random")
    assert "set PYTHONHASHSEED=0" in inline.output
    assert differing(forked.results, inline.results) == [0]
    assert inline.hashes != forked.hashes
