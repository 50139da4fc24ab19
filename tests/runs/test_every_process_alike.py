"""What Python draws anew for every process is the same in all that run a study's trials."""

import contextlib
import json
import sqlite3
import sys
from dataclasses import dataclass

import pytest
from corpus import forget_modules
from study_files import StudyText
from sweeps import LIMIT, Result, RunningCommand, command, differing, results_of, sweep, trials_in
from waiting import until

SPLIT = StudyText(
    head="""
    import random
    import threading
    import uuid

    import tensorflow as tf

    class WaitsOnce(keras.callbacks.Callback):
        def __init__(self, mark):
            super().__init__()
            self.mark = str(mark)

        def on_epoch_end(self, epoch, logs=None):
            rate = 0.01 + random.Random().random() / 100 + np.random.RandomState().uniform() / 100
            self.model.optimizer.learning_rate.assign(rate + tf.random.uniform((), seed=1) / 100)
            waits = epoch == 1 and "SWEEPER_TEST_WAITS" in os.environ
            if waits and not Path(self.mark).exists():
                Path(self.mark).touch()
                threading.Event().wait()
    """,
    data="""
    kept = np.array([hash(f"sample {i}") % 4 != 0 for i in range(200)])
    x = x + np.random.default_rng().normal(size=x.shape).astype("float32") / 4
    held = [x[~kept], y[~kept]]
    return Data(train=(x[kept][:120], y[kept][:120]), validation=tuple(held), batch_size=8)
    """,
    model="name_of_this_run = uuid.uuid4()",
    callbacks="WaitsOnce(trial.directory / 'mark')",
    arguments='objective="val_loss", epochs=3, trials=1, sampler="random", audit="off"',
)


@dataclass(frozen=True)
class Run:
    results: dict[int, Result]
    attempts: int
    hashes: set[int]
    output: str


def seen(runs, output):
    trials = trials_in(runs)
    with contextlib.closing(sqlite3.connect(runs / "sweeper.db")) as database:
        rows = database.execute("SELECT fingerprint FROM sweeper_attempts").fetchall()
    hashes = {json.loads(row[0])["string_hash"] for row in rows}
    return Run(results_of(trials), sum(len(t.attempts) for t in trials), hashes, output)


def run(file, isolation, env=None):
    runs = file.parent / isolation
    words = ("run", file, "--isolation", isolation, "--runs-dir", runs)
    ended = command(*words, cwd=file.parent, env=env)
    assert ended.code == 0, ended.err
    return seen(runs, ended.err)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return SPLIT.write(tmp_path_factory.mktemp("split") / "split.py")


@pytest.fixture(scope="module")
def forked(file):
    return run(file, "fork")


def test_two_runs_and_a_resumed_one_split_alike_whatever_the_hash_seed_outside(file, forked):
    """The run that is killed has a hash seed of its own; the others have that of tests' commands."""
    runs = file.parent / "killed"
    other = {"PYTHONHASHSEED": "2", "SWEEPER_TEST_WAITS": "1"}
    with RunningCommand("run", file, "--runs-dir", runs, cwd=file.parent, env=other) as first:
        reached = until(lambda: list(runs.rglob("mark")) and list(runs.rglob("step-*")), LIMIT)
        assert reached, first.err
        first.kill_group()
    resumed = command("resume", "small", "--runs-dir", runs, cwd=file.parent)
    assert resumed.code == 0, resumed.err
    resumed_run = seen(runs, resumed.err)
    assert resumed_run.attempts == 2
    assert differing(forked.results, resumed_run.results) == []
    assert resumed_run.hashes == forked.hashes


def test_a_line_that_takes_the_systems_random_numbers_is_named(file, forked):
    lines = file.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "uuid.uuid4()" in line)
    assert f"{file}:{number}: build_model takes random numbers" in " ".join(forked.output.split())
    assert forked.output.count("takes random numbers") == 1


def test_an_inline_trial_hashes_otherwise_and_says_so(file, forked, monkeypatch):
    """Also the negative control: the split does go by the seed."""
    if sys.flags.hash_randomization:  # this process' own seed is drawn, too
        monkeypatch.setattr(sys, "path", [*sys.path])
        modules = set(sys.modules)
        swept = sweep(file, file.parent / "here", isolation="inline")
        forget_modules(modules, file.parent)
        inline = seen(file.parent / "here", "\n".join(swept.notices))
    else:
        inline = run(file, "inline", {"PYTHONHASHSEED": "random"})
    assert "start Python with PYTHONHASHSEED=0" in inline.output
    assert differing(forked.results, inline.results) == [0]
    assert inline.hashes != forked.hashes
