"""What an inline trial changes in the study's own objects, the next one of the process does not see."""

import importlib.util
import os
import sys

from sweeps import notices_of

STUDY = """
import functools
import itertools
import os

import keras
import numpy as np

from sweeper import Data, Study

seen, total, count, small, made = [], {"n": 0}, 0, np.zeros(2), 0
numbers = itertools.count()


class Registry:
    calls = 0


class Tally:
    count = 0


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
    def on_epoch_end(self, epoch, logs=None):
        global count
        count += 1
        total["n"] += 1
        Registry.calls += 1
        small[0] += 1
        tally().count += 1
        os.environ["SWEEPER_TEST_SEEN"] = os.environ.get("SWEEPER_TEST_SEEN", "") + "x"
        found = {
            "made": made, "cached": tally().count, "seen": through_a_name(), "total": total["n"],
            "count": count, "class": Registry.calls, "array": small[0], "closure": increase(),
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


def load(tmp_path, *, numbers=False):
    file = tmp_path / "changing_study.py"
    file.write_text(STUDY.replace("TAKES_NUMBERS = False", f"TAKES_NUMBERS = {numbers}"))
    spec = importlib.util.spec_from_file_location("changing_study", file)
    module = sys.modules["changing_study"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module, tmp_path):
    """Run the study inline; return the results and the notices."""
    events = []
    results = module.study.run(
        isolation="inline", workers=1, runs_dir=tmp_path / "runs", listener=events.append
    )
    return results, notices_of(events)


def test_an_inline_trial_begins_with_what_the_import_has_left(tmp_path):
    module = load(tmp_path)
    results, notices = run(module, tmp_path)
    first, second = (
        [{**epoch.metrics, "loss": None} for epoch in trial.epochs] for trial in results
    )
    assert first == second
    assert first[-1]["count"] == 2.0
    assert (module.count, module.seen, module.made) == (0, [], 0)
    assert "SWEEPER_TEST_SEEN" not in os.environ
    assert not any("cannot be restored" in notice for notice in notices)


def test_control_in_plain_keras_the_second_training_goes_on_with_the_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_TEST_SEEN", "")
    module = load(tmp_path)
    first, second = (
        module.build(None).fit(*module.arrays(), callbacks=[module.Counting()]).history
        for _ in range(2)
    )
    del first["loss"]
    assert all(second[name] > value for name, value in first.items())


def test_what_cannot_be_restored_is_said(tmp_path):
    _, notices = run(load(tmp_path, numbers=True), tmp_path)
    warnings = [text for text in notices if "cannot be restored" in text]
    assert any("this trial may have changed module changing_study.numbers" in t for t in warnings)
