"""Callbacks that count batches, in a trial that is killed three times: it goes on at the exact batch.

The case of "Accurately resuming a training process": a schedule per batch that a callback holds starts
again at zero where only the model is resumed. The study is ``studies/sequence_vae.py``, a sequence
autoencoder with two such schedules.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sweeps import Swept, sweep

STUDY = Path(__file__).parents[2] / "studies" / "sequence_vae.py"
KILLS = (17, 40, 77)
"""The trial has 138 steps, 23 an epoch, and a checkpoint after every tenth."""

FILE = '''
import json
import os
import signal

import keras
import sequence_vae
from sweeper import Study

KILLS = {kills!r}


class Told(keras.callbacks.Callback):
    """Dies at each of the batches once, and tells at the end what the schedules have gone through."""

    def __init__(self, directory, rates):
        super().__init__()
        self.directory = directory
        self.schedule = rates
        self.at = 0

    def on_train_batch_end(self, batch, logs=None):
        self.at += 1
        mark = self.directory / f"killed-{{self.at}}"
        if self.at in KILLS and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, logs=None):
        told = {{
            "rates": self.schedule.rates,
            "batches": self.schedule.counter,
            "beta": float(self.model.training_step.beta.numpy()),
            "history": self.model.history.history,
        }}
        (self.directory / "told.json").write_text(json.dumps(told))


def callbacks(trial):
    annealing, rates = sequence_vae.build_callbacks(trial)
    {forget}
    return [annealing, rates, Told(trial.directory, rates)]


study = Study(
    name="{name}",
    model=sequence_vae.build_model,
    step=sequence_vae.VaeStep,
    data=sequence_vae.load_data,
    callbacks=callbacks,
    objective="val_bound",
    epochs=6,
    trials=1,
    sampler="random",
    checkpoint_every=sequence_vae.Every(steps=10),
    audit="off",
)
'''


def ran(directory: Path, name: str, kills: tuple[int, ...], forget: str = "") -> tuple[Swept, Any]:
    directory.mkdir(exist_ok=True)
    shutil.copy(STUDY, directory)
    file = directory / f"{name}.py"
    file.write_text(FILE.format(name=name, kills=kills, forget=forget))
    swept = sweep(file, directory / name, workers=1)
    (told,) = (directory / name).rglob("told.json")
    return swept, json.loads(told.read_text())


FORGETS = "rates.get_state, rates.set_state = (lambda: None), (lambda state: None)"
"""What leaves the schedule out of the checkpoints: it begins at zero in each attempt."""


def test_a_schedule_per_batch_goes_on_at_the_exact_batch_after_three_kills(tmp_path: Path) -> None:
    whole, undisturbed = ran(tmp_path, "whole", ())
    killed, told = ran(tmp_path, "killed", KILLS)
    (one,), (other,) = whole.trials, killed.trials
    assert [attempt.outcome for attempt in other.attempts] == ["crashed"] * 3 + ["complete"]
    assert [attempt.start_step for attempt in other.attempts] == [0, 10, 30, 70]
    assert undisturbed["batches"] == len(undisturbed["rates"]) == 138
    assert told == undisturbed
    assert (other.digest, other.value, other.epochs) == (one.digest, one.value, one.epochs)
    _, forgotten = ran(tmp_path, "forgetful", KILLS, FORGETS)
    assert forgotten["rates"] != undisturbed["rates"], "the negative control"
