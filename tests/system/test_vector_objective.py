"""A study whose metric is a vector: chosen by a component, shown by components, killed and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sweeps import Ended, database_url, sweep

STUDY = """\
import os
import signal

import keras
import numpy as np

from sweeper import Data, Every, Study


class KilledOnce(keras.callbacks.Callback):
    def __init__(self, mark):
        super().__init__()
        self.mark = str(mark)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 8 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    return model


def load_data(trial):
    numbers = np.random.default_rng(7)
    x = numbers.normal(size=(60, 8)).astype("float32")
    y = keras.utils.to_categorical(numbers.integers(0, 3, 60), 3)
    return Data(train=(x, y), validation=(x, y), batch_size=12)


def build_callbacks(trial):
    return [KilledOnce(trial.directory / "killed")] if {killed} else []


study = Study(
    name="vectors",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="val_f1_score[1]",
    direction="maximize",
    epochs=3,
    trials=1,
    checkpoint_every=Every(steps=3),
    audit="off",
)
"""


Command = Callable[..., Ended]


def ran(directory: Path, here: Command, *, killed: bool) -> dict[str, object]:
    directory.mkdir()
    text = STUDY.replace("{killed}", str(killed))
    (directory / "vectors.py").write_text(text)
    isolation = "auto" if killed else "inline"
    sweep(directory / "vectors.py", directory / "runs", workers=1, isolation=isolation)
    return shown(directory, here)


def shown(directory: Path, here: Command) -> dict[str, object]:
    flags = ("--storage", database_url(directory / "runs"), "--runs-dir", directory / "runs")
    answer = here("show", "vectors", 0, "--json", *flags, cwd=directory)
    found: dict[str, object] = json.loads(answer.out)
    return found


def test_a_killed_trial_with_a_vector_metric_shows_the_same_components(
    tmp_path: Path, here: Command
) -> None:
    whole = ran(tmp_path / "whole", here, killed=False)
    resumed = ran(tmp_path / "killed", here, killed=True)
    assert [attempt["outcome"] for attempt in resumed["attempts"]] == ["crashed", "complete"]
    assert resumed["epochs"] == whole["epochs"]
    assert (resumed["digest"], resumed["value"]) == (whole["digest"], whole["value"])
    last = whole["epochs"][-1]
    assert whole["value"] == last["val_f1_score[1]"]
    assert {n for n in last if n.startswith("f1")} == {f"f1_score[{i}]" for i in range(3)}
