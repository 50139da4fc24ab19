"""Study files for the tests: one small study as text, changed in one place at a time."""

import textwrap
from dataclasses import dataclass

_FILE = """\
from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

{keras}
import numpy as np

from sweeper import Data, Every, Study

{head}

def build_model(trial):
{model}
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    rate = {rate}
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=[{metrics}]{eager})
    return model


def load_data(trial):
    numbers = np.random.default_rng(7)
    x = numbers.normal(size=(200, 16)).astype("float32")
    y = numbers.integers(0, 4, 200)
{data}
    return Data(train=(x[:160], y[:160]), validation=(x[160:], y[160:]), batch_size=8)


def build_callbacks(trial):
    return [{callbacks}]


study = Study(
    name="{name}",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    {arguments},
)
{tail}
"""


PACED = (
    "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: __import__('time').sleep(0.1))"
)
"""A callback for a study that trains until it is stopped: it leaves the processor to who stops it."""


DIES_ONCE = """
import os
import signal
import time
from pathlib import Path

class DiesOnce(keras.callbacks.Callback):
    "Kills its trial's first attempt at a step, once the checkpoint of another step is there."

    def __init__(self, trial, step, kept):
        super().__init__()
        self.mark = Path(__file__).with_name(f"died-{trial.number}")
        self.step = step
        self.kept = str(trial.directory.parent / "attempt-01" / "checkpoints" / f"step-{kept:09}")

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step and not self.mark.exists():
            self.mark.touch()
            while not os.path.exists(self.kept):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
"""
"""For a study's head: a callback."""


TWO_STEPS = "return Data(train=(x[:16], y[:16]), validation=(x[16:24], y[16:24]), batch_size=8)"
"""As data: so few that an ``eager`` study takes less time than its graph takes to trace."""


@dataclass(frozen=True)
class StudyText:
    """A study of a layer on 160 random samples: 20 steps an epoch, a fraction of a second."""

    name: str = "small"
    keras: str = "import keras"
    head: str = ""
    model: str = ""
    data: str = ""
    rate: str = 'trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)'
    metrics: str = ""
    eager: bool = False
    callbacks: str = ""
    arguments: str = 'objective="val_loss", epochs=2, trials=2, sampler="random", audit="off"'
    tail: str = ""

    def __str__(self):
        return _FILE.format(
            name=self.name,
            keras=self.keras,
            head=textwrap.dedent(self.head),
            model=_indented(self.model),
            data=_indented(self.data),
            rate=self.rate,
            metrics=self.metrics,
            eager=", run_eagerly=True" if self.eager else "",
            callbacks=self.callbacks,
            arguments=self.arguments,
            tail=textwrap.dedent(self.tail),
        )

    def write(self, path):
        path.write_text(str(self))
        return path


SHORT = StudyText(eager=True, data=TWO_STEPS)
"""For what is no matter of how a trial trains."""


def _indented(text):
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
