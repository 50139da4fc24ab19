"""What an inline trial changes in the study's own objects, the next one of the process does not see."""

import importlib.util
import os
import sys
from contextlib import contextmanager

from sweeps import notices_of

from sweeper.train.userstate import walk

STUDY = """
import functools
import itertools
import os

import keras
import numpy as np

from sweeper import Data, Study

seen = []
total = {"n": 0}
count = 0
small = np.zeros(2)
made = 0
numbers = itertools.count()


class Registry:
    calls = 0


class Tally:
    def __init__(self):
        self.count = 0


@functools.cache
def tally():
    return Tally()


def enclosing():
    inside = 0

    def increase():
        nonlocal inside
        inside += 1
        return inside

    return increase


increase = enclosing()


def through_a_name():
    other = seen
    other.append(1)
    return len(other)


class Counting(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        total["n"] += 1

    def on_epoch_end(self, epoch, logs=None):
        global count
        count += 1
        Registry.calls += 1
        small[0] += 1
        tally().count += 1
        os.environ["SWEEPER_TEST_SEEN"] = os.environ.get("SWEEPER_TEST_SEEN", "") + "x"
        found = {
            "made": made, "cached": tally().count, "seen": through_a_name(), "total": total["n"], "count": count,
            "class": Registry.calls, "array": small[0], "closure": increase(),
            "environment": len(os.environ["SWEEPER_TEST_SEEN"]),
        }
        logs.update({name: float(value) for name, value in found.items()})


def build(trial):
    global made
    made += 1
    tally()
    if TAKES_NUMBERS:
        next(numbers)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


@functools.cache
def arrays():
    return np.ones((4, 1), "float32"), np.ones((4, 1), "float32")


TAKES_NUMBERS = False

study = Study(
    name="changes", model=build, data=lambda trial: Data(train=arrays()), objective="loss", epochs=2,
    callbacks=lambda trial: [Counting()], trials=2, threads=1,
)
"""


def run(tmp_path, *, numbers=False):
    """Run the study inline; return the metrics of each trial's epochs, the notices, and the module."""
    file = tmp_path / "changing_study.py"
    file.write_text(STUDY.replace("TAKES_NUMBERS = False", f"TAKES_NUMBERS = {numbers}"))
    spec = importlib.util.spec_from_file_location("changing_study", file)
    module = sys.modules["changing_study"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = []
    results = module.study.run(
        isolation="inline", workers=1, runs_dir=tmp_path / "runs", listener=said.append
    )
    found = [[dict(epoch.metrics) for epoch in trial.epochs] for trial in results]
    for epochs in found:
        for metrics in epochs:
            del metrics["loss"]
    return found, notices_of(said), module


def test_an_inline_trial_begins_with_what_the_import_has_left(tmp_path):
    [first, second], notices, module = run(tmp_path)
    assert first == second
    assert first[-1]["count"] == 2.0
    assert (module.count, module.seen, module.made) == (0, [], 0)
    assert "SWEEPER_TEST_SEEN" not in os.environ
    assert not any("cannot be restored" in each for each in notices)


def test_control_without_it_the_next_trial_goes_on_with_the_changes(tmp_path, monkeypatch):
    @contextmanager
    def nothing(*_arguments):
        yield

    monkeypatch.setattr(walk, "changes_undone", nothing)
    monkeypatch.setenv("SWEEPER_TEST_SEEN", "")
    [first, second], _, _ = run(tmp_path)
    assert all(second[-1][name] > value for name, value in first[-1].items())


def test_what_cannot_be_restored_is_said(tmp_path):
    _, notices, _ = run(tmp_path, numbers=True)
    said = [text for text in notices if "cannot be restored" in text]
    assert any("this trial may have changed module changing_study.numbers" in t for t in said)
