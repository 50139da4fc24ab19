"""Callbacks that count batches, in a trial that is killed: it goes on at the exact batch."""

import json
import shutil
from pathlib import Path

import pytest
from sweeps import sweep

STUDY = Path(__file__).parents[2] / "studies" / "sequence_vae.py"
STEPS = 46
"""Of two epochs; there is a checkpoint after every tenth."""

FILE = '''
import json
import os
import signal

import keras
import sequence_vae
from sweeper import Study

KILLED_AT = {killed_at!r}


class Told(keras.callbacks.Callback):
    """Dies at a batch once, and tells at the end what the schedules have gone through."""

    def __init__(self, directory, rates, forgetful):
        super().__init__()
        self.directory = directory
        self.schedule = rates
        self.forgetful = forgetful
        self.at = 0

    def on_train_batch_end(self, batch, logs=None):
        self.at += 1
        mark = self.directory / "killed"
        if self.at == KILLED_AT and not mark.exists():
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
    direction="minimize",
    epochs=2,
    trials=1,
    threads=1,
    sampler="random",
    checkpoint_every=sequence_vae.Every(steps=10),
    audit="off",
)
'''


def ran(directory, name, killed_at, *, isolation="auto"):
    shutil.copy(STUDY, directory)
    file = directory / f"{name}.py"
    file.write_text(FILE.format(name=name, killed_at=killed_at))
    swept = sweep(file, directory / name, workers=1, isolation=isolation)
    [told] = (directory / name).rglob("told.json")
    return swept, json.loads(told.read_text())


@pytest.mark.whole
def test_a_schedule_per_batch_goes_on_at_the_exact_batch_after_a_kill(tmp_path):
    whole, undisturbed = ran(tmp_path, "whole", None, isolation="inline")
    killed, told = ran(tmp_path, "killed", 40)
    (one,) = whole.trials
    (other,) = killed.trials
    assert [attempt.outcome for attempt in other.attempts] == ["crashed", "complete"]
    assert [attempt.start_step for attempt in other.attempts] == [0, 30]
    assert undisturbed["batches"] == len(undisturbed["rates"]) == STEPS
    forgotten = told.pop("forgetful")
    remembered = undisturbed.pop("forgetful")
    assert remembered == [undisturbed["rates"], STEPS]
    assert told == undisturbed
    assert (other.digest, other.value, other.epochs) == (one.digest, one.value, one.epochs)
    remaining = STEPS - 30
    assert forgotten == [undisturbed["rates"][:remaining], remaining], "the negative control"
