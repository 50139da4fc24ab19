"""Callbacks that count batches, in a trial that is killed: it goes on at the exact batch."""

import json
import shutil
from pathlib import Path

import pytest
from sweeps import sweep

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

    def __init__(self, directory, rates, forgetful):
        super().__init__()
        self.directory = directory
        self.schedule = rates
        self.forgetful = forgetful
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
            "forgetful": [self.forgetful.rates, self.forgetful.counter],
            "beta": float(self.model.training_step.beta.numpy()),
            "history": self.model.history.history,
        }}
        (self.directory / "told.json").write_text(json.dumps(told))


def callbacks(trial):
    annealing, rates = sequence_vae.build_callbacks(trial)
    # Left out of the checkpoints: it begins at zero in each attempt. The other one has the last word.
    forgetful = sequence_vae.LearningRatePerBatch(rates.first, rates.least, rates.factor)
    forgetful.get_state, forgetful.set_state = (lambda: None), (lambda state: None)
    return [annealing, forgetful, rates, Told(trial.directory, rates, forgetful)]


study = Study(
    name="{name}",
    model=sequence_vae.build_model,
    step=sequence_vae.VaeStep,
    data=sequence_vae.load_data,
    callbacks=callbacks,
    objective="val_bound",
    epochs={epochs},
    trials=1,
    threads=1,
    sampler="random",
    checkpoint_every=sequence_vae.Every(steps=10),
    audit="off",
)
'''


def ran(directory, name, kills, *, epochs, isolation="auto"):
    shutil.copy(STUDY, directory)
    file = directory / f"{name}.py"
    file.write_text(FILE.format(name=name, kills=kills, epochs=epochs))
    swept = sweep(file, directory / name, workers=1, isolation=isolation)
    [told] = (directory / name).rglob("told.json")
    return swept, json.loads(told.read_text())


@pytest.mark.whole
def test_a_schedule_per_batch_goes_on_at_the_exact_batch_after_a_kill(tmp_path):
    kills, resumed_at, epochs = (40,), [30], 2
    whole, undisturbed = ran(tmp_path, "whole", (), epochs=epochs, isolation="inline")
    killed, told = ran(tmp_path, "killed", kills, epochs=epochs)
    (one,), (other,) = whole.trials, killed.trials
    outcomes = [attempt.outcome for attempt in other.attempts]
    assert outcomes == ["crashed"] * len(kills) + ["complete"]
    assert [attempt.start_step for attempt in other.attempts] == [0, *resumed_at]
    assert undisturbed["batches"] == len(undisturbed["rates"]) == EPOCH * epochs
    forgotten, remembered = told.pop("forgetful"), undisturbed.pop("forgetful")
    assert remembered == [undisturbed["rates"], EPOCH * epochs]
    assert told == undisturbed
    assert (other.digest, other.value, other.epochs) == (one.digest, one.value, one.epochs)
    left = EPOCH * epochs - resumed_at[-1]
    assert forgotten == [undisturbed["rates"][:left], left], "the negative control"
