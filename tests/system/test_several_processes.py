"""Trials of two processes each: killed, stopped and resumed they are the same, replica by replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import leaving
import numpy as np
import pytest
from sweeps import Ended, Swept, database_url, sweep

from sweeper.checkpoints.reading import load_checkpoint
from sweeper.preflight.checking import check_study
from sweeper.results import TrialRecord

UNWATCHED = True

STUDY = '''
import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

from sweeper import Data, Every, MultiWorker, Study

KILLS = []
"""After which step, which process, which signal; each once."""


class Drifts(keras.layers.Layer):
    """A variable of each replica's own, which readers get the sum of."""

    def __init__(self):
        super().__init__()
        self.seen = keras.Variable(
            0.0, trainable=False, aggregation="sum", synchronization="on_read", name="seen"
        )

    def call(self, x, training=False):
        if training:
            self.seen.value.assign_add(tf.reduce_mean(x) * 0.1)
            return x + 0.01 * tf.stop_gradient(self.seen.value)
        return x


def drifting(trial):
    return [Drifts(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]


def build_model(trial):
    own = drifting(trial) if trial.number == 0 else []
    layers = [*own, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=0.5), "mse", metrics=["mae"])
    return model


def load_data(trial):
    """Batches of 15, shared as 8 and 7, and a last one of 10."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(100, 8)).astype("float32"), generator.integers(0, 4, 100)
    return Data(train=(x, y), validation=(x[:30], y[:30]), batch_size=15)


class Killed(keras.callbacks.Callback):
    def __init__(self, directory):
        super().__init__()
        self.directory = str(directory)
        self.drawn = 0.0

    def on_train_batch_end(self, batch, logs=None):
        task = getattr(self.model.distribute_strategy, "cluster_resolver", None)
        self.drawn = float(np.random.random()) + (task.task_id if task else 0)
        step = int(self.model.optimizer.iterations.numpy())
        for at, process, number in KILLS:
            mark = os.path.join(self.directory, f"killed-{at}")
            if step == at and task.task_id == process and not os.path.exists(mark):
                open(mark, "w").close()
                time.sleep(0.3)  # for the checkpoint that is being written
                os.kill(os.getpid(), number)


class EndsInOneProcess(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.distribute_strategy.cluster_resolver.task_id == 1:
            self.model.stop_training = True


def build_callbacks(trial):
    return [Killed(trial.directory)]


study = Study(
    name="several",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    strategy=MultiWorker(processes=2),
    objective="val_loss",
    epochs=3,
    trials=1,
    sampler="random",
    concurrency=2,
    checkpoint_every=Every(epochs=1, steps=3),
    audit="off",
    threads=1,
    retries={"error": 0},
)
'''
"""7 steps an epoch. Trial 0 has what each replica writes for itself; trial 1 has not."""


PLAIN = (
    ("drifting(trial) if trial.number == 0 else []", "[]"),
    ("keras.optimizers.Adam(rate, global_clipnorm=0.5)", "keras.optimizers.SGD(rate)"),
    (', metrics=["mae"]', ""),
    (", validation=(x[:30], y[:30])", ""),
    ('objective="val_loss"', 'objective="loss"'),
)
"""A model with little to trace, where nothing looks at what a replica has for itself."""


def write(directory: Path, *changes: tuple[str, str]) -> Path:
    text = STUDY
    for was, now in changes:
        assert text.count(was) == 1
        text = text.replace(was, now)
    file = directory / "several.py"
    file.write_text(text)
    return file


def run(directory: Path, *changes: tuple[str, str], isolation: str = "auto") -> Swept:
    file = write(directory, *changes)
    workers = 1 if isolation == "inline" else 2
    return sweep(file, directory / "runs", workers=workers, isolation=isolation)


def last_checkpoint(trial: TrialRecord) -> dict[str, np.ndarray]:
    newest = max(trial.checkpoints, key=lambda checkpoint: checkpoint.step)
    loaded = load_checkpoint(Path(newest.path))
    return {n: t for n, t in loaded.tensors.items() if not n.startswith("processes/1/callbacks")}


def alike(one: TrialRecord, other: TrialRecord) -> bool:
    ours, theirs = last_checkpoint(one), last_checkpoint(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].tobytes() == theirs[name].tobytes() for name in ours
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the undisturbed study and its runs are."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(directory: Path) -> tuple[TrialRecord, ...]:
    """Two trials that nobody disturbed."""
    swept = run(directory, ("trials=1", "trials=2"))
    assert [trial.state for trial in swept.trials] == ["complete", "complete"]
    return swept.trials


@pytest.mark.parametrize(
    "first",
    # That process 0 can be killed is in the control below, too.
    [
        pytest.param("", id="process 1"),
        pytest.param("(5, 0, signal.SIGKILL), ", id="either", marks=pytest.mark.whole),
    ],
)
def test_a_trial_that_is_killed_and_stopped_ends_on_each_replica_as_one_that_was_not(
    whole: tuple[TrialRecord, ...], tmp_path: Path, first: str
) -> None:
    kills = f"[{first}(10, 1, signal.SIGKILL), (16, 0, signal.SIGTERM)]"
    trials = run(tmp_path, ("KILLS = []", f"KILLS = {kills}")).trials
    if trials[0].state != "complete":
        trials = sweep(tmp_path / "several.py", tmp_path / "runs").trials
    [trial] = trials
    *crashed, stopped, last = trial.attempts
    assert [a.outcome for a in crashed] == ["crashed"] * (2 if first else 1)
    assert "process 1 of the trial's 2 was killed by SIGKILL" in (crashed[-1].error or "")
    assert [stopped.outcome, last.outcome] == ["interrupted", "complete"]
    assert stopped.end_step == last.start_step == 16
    assert any(attempt.start_step % 7 for attempt in trial.attempts)
    assert trial.digest == whole[0].digest
    assert trial.epochs == whole[0].epochs
    assert alike(trial, whole[0])
    replicas = [n for n in last_checkpoint(trial) if n.endswith("/replica-1")]
    assert sum(n.startswith("model/") for n in replicas) >= 3


FORGETTING = """
from sweeper.execution.trial.peers import states


def without_peers(own, peers, merged=states.merged):
    return merged(own, [states.PeerState(p.state, p.names, {}, p.repeated, p.digested) for p in peers])


from sweeper.execution.trial.peers import leading

leading.merged = without_peers

KILLS = [(4, 0, signal.SIGKILL)]
"""
"""As if every process had the state of the first one."""


def test_without_the_other_processes_state_the_resumed_trial_ends_elsewhere(
    whole: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    [trial] = run(tmp_path, ("KILLS = []\n", FORGETTING)).trials
    assert [a.outcome for a in trial.attempts] == ["crashed", "complete"]
    values = {n: t for n, t in last_checkpoint(whole[0]).items() if n.startswith("model/")}
    theirs = last_checkpoint(trial)
    first = [n for n in values if not n.endswith("/replica-1")]
    assert any(values[name].tobytes() != theirs[name].tobytes() for name in first)


def test_two_processes_train_as_one_does_on_the_same_batches(
    whole: tuple[TrialRecord, ...], tmp_path: Path
) -> None:
    """Trial 1, which has nothing of a replica's own; trial 0 fails before it trains alone."""
    changes = [("strategy=MultiWorker(processes=2),", ""), ("trials=1", "trials=2")]
    changes.append(("    own = drifting", "    assert trial.number\n    own = drifting"))
    alone = run(tmp_path, *changes, isolation="inline").trials
    assert [trial.state for trial in alone] == ["failed", "complete"]
    one, two = last_checkpoint(alone[1]), last_checkpoint(whole[1])
    names = [n for n in one if n.startswith(("model/", "optimizer/"))]
    assert len(names) >= 8
    for name in names:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5)
    assert alone[1].value == pytest.approx(whole[1].value, rel=1e-4)


def test_models_of_two_processes_are_measured_in_one_and_leave(
    whole: tuple[TrialRecord, ...],
    directory: Path,
    tmp_path: Path,
    here: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "command", here)
    runs = directory / "runs"
    leaving.check_leaving(directory / "several.py", runs, whole[1:], tmp_path, rel=1e-4)
    # What each process writes for itself leaves as TensorFlow's own readers have it.
    words = ("export", "several", "--trial", 0, "--output", tmp_path / "model.weights.h5")
    flags = ("--format", "weights", "--storage", database_url(runs), "--runs-dir", runs)
    left = here(*words, *flags, cwd=tmp_path)
    assert left.code == 0, left.out + left.err
    assert "predictions agree" in left.out


def test_a_check_says_that_it_tries_one_process(tmp_path: Path) -> None:
    report = check_study(str(write(tmp_path, *PLAIN)))
    assert [f.message for f in report.findings if f.level == "error"] == []
    assert [f.message.partition(",")[0] for f in report.findings if "processes" in f.message] == [
        "a trial trains in 2 processes"
    ]


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=pytest.mark.whole)])
def test_a_process_that_goes_its_own_way_ends_the_trial_with_a_reason(
    tmp_path: Path, isolation: str
) -> None:
    ends = ("[Killed(trial.directory)]", "[EndsInOneProcess()]")
    [trial] = run(tmp_path, *PLAIN, ends, isolation=isolation).trials
    assert trial.state == "failed"
    error = (trial.attempts[0].error or "").splitlines()[-1]
    assert error.startswith(
        "FactoryError: the processes of the trial went apart: process 1 of 2 has come to the end of an "
        "epoch at step 1, and process 0 to "
    )
    assert error.endswith(" (in process 1 of the trial's 2)")
