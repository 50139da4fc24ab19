"""``sweeper.fit``: one training, no study, resumed exactly in a new process after anything."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from disk_contents import contents
from forked_programs import PROGRAM
from trainings import digits, dropping, one_layer

import sweeper
from sweeper.errors import (
    FactoryError,
    ForeignCheckpointError,
    UncapturableError,
    UsageError,
    WarmStartError,
)

SCRIPT = '''
"""A training as a user writes it: the same lines in every process."""
import json, os, signal, sys
import keras, numpy as np
import sweeper

sys.path.insert(0, sys.argv[2])
from trainings import digits, dropping

kill_at = int(sys.argv[3])
how = sys.argv[4]


class Killer(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == kill_at:
            os.kill(os.getpid(), getattr(signal, how))


keras.utils.set_random_seed(int(sys.argv[5]))
model = dropping()
x, y = digits()
data = sweeper.Data(train=(x, y), batch_size=16)
try:
    history = sweeper.fit(
        model, data, epochs=3, checkpoints=sys.argv[1], callbacks=[Killer()],
        checkpoint_every=sweeper.Every(steps=2), seed=5,
    )
except sweeper.Interrupted as stopped:
    print(stopped)
    sys.exit(stopped.exit_code)
import hashlib
digest = hashlib.sha256(b"".join(v.value.numpy().tobytes() for v in model.variables)).hexdigest()
print(json.dumps({"weights": digest, "history": history.history}))
'''


def command(directory, kill_at, ending, seed):
    script = directory.parent / "training.py"
    script.write_text(SCRIPT)
    tests_directory = str(Path(__file__).parents[1] / "harness")
    return [str(script), str(directory), tests_directory, str(kill_at), ending, str(seed)]


def ended(program, directory, kill_at, ending, seed):
    process = subprocess.run(
        [sys.executable, *program, *command(directory, kill_at, ending, seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode or process.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def run():
    """The script's last line, or minus the signal or the exit code that ended it."""

    def forked(directory, *, kill_at=0, how="SIGKILL", seed=1):
        return ended(PROGRAM, directory, kill_at, how, seed)

    return forked


def run_fresh(directory, *, kill_at=0, how="SIGKILL", seed=1):
    """As `run`, in a process that imports everything itself."""
    return ended((), directory, kill_at, how, seed)


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "checkpoints")


def check_killed_twice(run, whole, checkpoints):
    assert isinstance(whole, str)
    assert run(checkpoints, kill_at=9) == -signal.SIGKILL
    assert run(checkpoints, kill_at=17, seed=2) == -signal.SIGKILL
    assert run(checkpoints, seed=3) == whole
    assert len(json.loads(whole)["history"]["loss"]) == 3


def test_a_training_killed_twice_ends_as_one_that_never_was(run, whole, tmp_path):
    check_killed_twice(run, whole, tmp_path / "killed")


@pytest.mark.whole
def test_a_training_killed_twice_ends_alike_in_processes_that_share_nothing(whole, tmp_path):
    check_killed_twice(run_fresh, whole, tmp_path / "killed")


def test_a_training_that_is_asked_to_stop_stops_at_the_step_and_goes_on(run, whole, tmp_path):
    checkpoints = tmp_path / "stopped"
    assert run(checkpoints, kill_at=5, how="SIGTERM") == 130
    assert [path.name for path in sorted(checkpoints.iterdir())][-1] == "step-000000005"
    assert run(checkpoints, seed=2) == whole


def test_a_fresh_start_with_other_weights_ends_elsewhere(run, whole, tmp_path):
    """Negative control: the equality above is not for free."""
    other = run(tmp_path / "b", seed=2)
    assert isinstance(other, str)
    assert other != whole


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The checkpoints of a training of one epoch with seed 1, which no test changes; its history."""
    directory = tmp_path_factory.mktemp("finished")
    keras.utils.set_random_seed(0)
    history = sweeper.fit(one_layer(), digits(), epochs=1, checkpoints=directory, seed=1)
    return directory, history


def copied(finished, directory):
    return shutil.copytree(finished[0], directory / "checkpoints")


def test_a_finished_training_is_given_back_and_not_run_again(finished, tmp_path):
    model = one_layer()
    checkpoints = copied(finished, tmp_path)
    notices = []
    repeated = sweeper.fit(
        model, digits(), epochs=1, checkpoints=checkpoints, seed=1, notice=notices.append
    )
    assert [line.partition(" has ")[2] for line in notices] == [
        "finished, with 1 epoch: nothing is trained, and its newest checkpoint is restored"
    ]
    assert repeated.history == finished[1].history
    assert int(model.optimizer.iterations) == 4


def test_more_epochs_go_on_from_the_end(tmp_path):
    x, y = digits()
    keras.utils.set_random_seed(0)
    whole = sweeper.fit(dropping(), (x, y), epochs=3, checkpoints=tmp_path / "whole")
    keras.utils.set_random_seed(0)
    sweeper.fit(dropping(), (x, y), epochs=2, checkpoints=tmp_path / "parts")
    more = sweeper.fit(dropping(), (x, y), epochs=3, checkpoints=tmp_path / "parts")
    assert more.history == whole.history


def test_the_checkpoints_of_another_training_are_refused_and_left_as_they_are(finished, tmp_path):
    """The attack: the same directory and model, and one thing that makes it another training."""
    x, y = digits()
    checkpoints = copied(finished, tmp_path)
    contents = {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}
    other = x.copy()
    other[-1, -1] += 1
    for data, seed, message in (
        (sweeper.Data(train=(other, y)), 1, "other data"),
        (sweeper.Data(train=(x, y)), 2, "its seed was 1"),
        (sweeper.Data(train=(x, y), batch_size=16), 1, "batch_size was 32"),
    ):
        with pytest.raises(ForeignCheckpointError, match=message):
            sweeper.fit(one_layer(), data, epochs=2, checkpoints=checkpoints, seed=seed)
        assert {p: p.read_bytes() for p in checkpoints.rglob("*") if p.is_file()} == contents


def test_the_directory_of_a_study_is_refused_for_a_training(finished, tmp_path):
    owner = copied(finished, tmp_path) / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "study": "digits"}))
    for step in owner.parent.glob("step-*"):
        shutil.rmtree(step)
    present = contents(owner.parent)
    with pytest.raises(ForeignCheckpointError, match="belongs to study 'digits'"):
        sweeper.fit(one_layer(), digits(), epochs=1, checkpoints=owner.parent)
    assert contents(owner.parent) == present


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    """The second one's call is an error while the first one trains, and not after it was killed."""
    program = f"""
import fcntl, os, sys, time
sys.path[:0] = {[*sys.path]!r}
from pathlib import Path
from sweeper.checkpoint.identity import hold_directory
with hold_directory(Path({str(tmp_path)!r})):
    if os.fork() == 0:
        time.sleep(60)
    print(flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        first.stdout.readline()
        with pytest.raises(UsageError, match=f"process {first.pid} on .* is training in"):
            sweeper.fit(one_layer(), digits(), epochs=1, checkpoints=tmp_path)
        first.kill()
        first.wait()
        # A program that it has started lives on.
        sweeper.fit(one_layer(), digits(), epochs=1, checkpoints=tmp_path)
        os.killpg(first.pid, signal.SIGKILL)


def uncompiled():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])


@pytest.mark.parametrize(
    ("model", "where", "message"),
    [
        (object, ".", "expected a compiled"),
        (uncompiled, ".", "not compiled"),
        (object, "s3://bucket/x", "in a directory"),
    ],
)
def test_what_cannot_be_trained_is_refused(model, where, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FactoryError, UsageError), match=message):
        sweeper.fit(model(), digits(), epochs=1, checkpoints=where)


def test_a_refusal_advises_nothing_that_only_a_trial_has(tmp_path):
    class Writes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.stream = io.StringIO()

        def on_train_batch_end(self, batch, logs=None):
            self.stream.write("x")

    with pytest.raises(UncapturableError, match="keep the texts in a list") as caught:
        sweeper.fit(
            one_layer(), digits(), epochs=1, checkpoints=tmp_path / "own", callbacks=[Writes()]
        )
    assert "output_only" not in str(caught.value)


@pytest.mark.whole
def test_a_training_begins_from_a_file_and_goes_on_from_its_own_checkpoint(tmp_path):
    file = tmp_path / "base.weights.h5"

    def trained(name, *, epochs=1, load=False, **options):
        keras.utils.set_random_seed(3)
        model = one_layer()
        if load:
            model.load_weights(file)
        sweeper.fit(model, digits(), epochs=epochs, checkpoints=tmp_path / name, **options)
        return [variable.numpy().tobytes() for variable in model.variables]

    one_layer().save_weights(file)
    notices = []
    weights = trained("begun", warm_start=file, notice=notices.append)
    assert weights == trained("loaded", load=True)
    assert weights != trained("drawn"), "negative control"
    [message] = notices
    assert message.startswith(f"begins from {file} (Keras weights")
    file.unlink()
    assert trained("begun", epochs=2, warm_start=file) == trained("loaded", epochs=2)
    with pytest.raises(WarmStartError, match=r"base\.weights\.h5 does not exist"):
        trained("nowhere", warm_start=file)
    with pytest.raises(UsageError, match="fit has no trials"):
        trained("nowhere", warm_start=print)
