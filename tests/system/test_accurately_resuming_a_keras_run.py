"""Callbacks that count batches, in a trial that is killed: it goes on at the exact batch.

The case of "Accurately resuming a training process": a schedule per batch that a callback holds starts
again at zero where only the model is resumed. The study is ``studies/sequence_vae.py``, a sequence
autoencoder with two such schedules.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sweeps import Swept, sweep

UNWATCHED = True

STUDY = Path(__file__).parents[2] / "studies" / "sequence_vae.py"
EPOCH = 23
"""Steps of one; there is a checkpoint after every tenth."""

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
    if trial.number == 1:
        # The schedule is left out of the checkpoints: it begins at zero in each attempt.
        rates.get_state, rates.set_state = (lambda: None), (lambda state: None)
    return [annealing, rates, Told(trial.directory, rates)]


study = Study(
    name="{name}",
    model=sequence_vae.build_model,
    step=sequence_vae.VaeStep,
    data=sequence_vae.load_data,
    callbacks=callbacks,
    objective="val_bound",
    epochs={epochs},
    trials=2,
    threads=1,
    sampler="random",
    checkpoint_every=sequence_vae.Every(steps=10),
    audit="off",
)
'''


def ran(
    directory: Path,
    name: str,
    kills: tuple[int, ...],
    *,
    epochs: int,
    trials: int,
    isolation: str = "auto",
) -> tuple[Swept, list[Any]]:
    shutil.copy(STUDY, directory)
    file = directory / f"{name}.py"
    file.write_text(FILE.format(name=name, kills=kills, epochs=epochs))
    swept = sweep(file, directory / name, workers=1, trials=trials, isolation=isolation)
    told = [json.loads(each.read_text()) for each in sorted((directory / name).rglob("told.json"))]
    assert len(told) == trials
    return swept, told


@pytest.mark.parametrize(
    ("kills", "resumed_at", "epochs"),
    [
        ((40,), [30], 2),
        pytest.param((17, 40, 77), [10, 30, 70], 6, marks=pytest.mark.whole),
    ],
    ids=["one kill", "three kills"],
)
def test_a_schedule_per_batch_goes_on_at_the_exact_batch_after_kills(
    tmp_path: Path, kills: tuple[int, ...], resumed_at: list[int], epochs: int
) -> None:
    whole, [undisturbed] = ran(tmp_path, "whole", (), epochs=epochs, trials=1, isolation="inline")
    killed, [told, forgotten] = ran(tmp_path, "killed", kills, epochs=epochs, trials=2)
    (one,), (other, forgetful) = whole.trials, killed.trials
    for trial in (other, forgetful):
        outcomes = [attempt.outcome for attempt in trial.attempts]
        assert outcomes == ["crashed"] * len(kills) + ["complete"]
        assert [attempt.start_step for attempt in trial.attempts] == [0, *resumed_at]
    assert undisturbed["batches"] == len(undisturbed["rates"]) == EPOCH * epochs
    assert told == undisturbed
    assert (other.digest, other.value, other.epochs) == (one.digest, one.value, one.epochs)
    left = EPOCH * epochs - resumed_at[-1]
    assert forgotten["batches"] == len(forgotten["rates"]) == left, "the negative control"
