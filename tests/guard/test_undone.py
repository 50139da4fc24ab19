"""What an inline trial changes in the objects of the file is undone: the next one trains as if it were the first.

Each file of `pitfalls/undone` shares an object that training changes. So the guard need not refuse it.
"""

import os
import sys
from contextlib import contextmanager

import pytest
from corpus import UNDONE, forget_modules
from plain_settings import plain_settings

from sweeper.definition.loading import load_definition
from sweeper.run.protocol.messages import Assignment, Failed, Finished
from sweeper.run.worker.inline import InlineTrials
from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything
from sweeper.train.userstate import walk


class Worker:
    """A worker in this process, which keeps what the trial ended with."""

    def __init__(self):
        self.end = None

    def handle(self, message):
        if isinstance(message, Finished | Failed):
            self.end = message

    def stop_requested(self, *, inside=False):
        del inside
        return False


def digest_of_trial(file, directory, numbers):
    """Import the study and run the trials in this process; return the digest of the last one."""
    before = set(sys.modules)
    seed_everything(IMPORT_SEED)
    trials = InlineTrials(load_definition(os.path.relpath(file)))
    try:
        for number in numbers:
            worker, place = Worker(), directory / f"{len(numbers)}-{number}"
            (place / "files").mkdir(parents=True)
            assignment = Assignment(
                plain_settings(epochs=2),
                number=number,
                attempt=1,
                checkpoints=(str(place / "checkpoints"),),
                files=str(place / "files"),
                log=str(place / "log.txt"),
            )
            trials(assignment, worker)
            assert isinstance(worker.end, Finished), worker.end
    finally:
        forget_modules(before, file.parent)
    return str(worker.end.digest)


BY_DEFAULT = {"shared_generator", "unbuilt_augmentation"}


@pytest.mark.parametrize(
    "file",
    [f if f.stem in BY_DEFAULT else pytest.param(f, marks=pytest.mark.whole) for f in UNDONE],
    ids=lambda file: file.stem,
)
def test_an_inline_trial_trains_as_in_a_process_without_the_ones_before(file, tmp_path):
    assert digest_of_trial(file, tmp_path, (0, 1)) == digest_of_trial(file, tmp_path, (1,))


@pytest.mark.whole
def test_control_where_nothing_is_undone_the_next_trial_trains_otherwise(tmp_path, monkeypatch):
    @contextmanager
    def nothing(*_arguments):
        yield

    monkeypatch.setattr(walk, "changes_undone", nothing)
    file = next(file for file in UNDONE if file.stem == "shared_generator")
    assert digest_of_trial(file, tmp_path, (0, 1)) != digest_of_trial(file, tmp_path, (1,))


DRAWS_IN_TRAINING = """
import keras
import numpy as np
from small_study import compiled, study_of


class Adds(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.layers[-1].bias.assign_add(np.random.random(2))


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]))


def warm_start(trial):
    np.random.random(DRAWN)


study = study_of(build_model, callbacks=lambda trial: [Adds()], warm_start=warm_start)
"""


def test_a_training_begins_with_its_own_seed_whatever_the_factories_drew(tmp_path):
    digests = set()
    for drawn in "12":
        file = tmp_path / drawn / "draws_in_training.py"
        file.parent.mkdir()
        file.write_text(DRAWS_IN_TRAINING.replace("DRAWN", drawn))
        digests.add(digest_of_trial(file, tmp_path / drawn, (0,)))
    assert len(digests) == 1
