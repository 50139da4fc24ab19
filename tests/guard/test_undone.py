"""What an inline trial changes in the objects of the file is undone: the next one trains as if it were the first.

Each file of `corpus/pitfalls/undone` shares objects that training changes. So the guard need not refuse them.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from corpus import UNDONE, swept
from study_files import SHORT
from sweeps import sweep_inline


def digests(file, directory, isolation):
    return [trial.digest for trial in swept(file, directory / isolation, isolation).trials]


@pytest.mark.parametrize("file", UNDONE, ids=lambda file: file.stem)
def test_inline_trials_train_as_in_processes_of_their_own(file, tmp_path):
    assert digests(file, tmp_path, "inline") == digests(file, tmp_path, "auto")


def test_control_where_nothing_is_undone_the_next_trial_trains_otherwise(tmp_path, monkeypatch):
    @contextmanager
    def nothing(*_arguments):
        yield

    monkeypatch.setattr("sweeper.train.userstate.walk.changes_undone", nothing)
    file = next(file for file in UNDONE if file.stem == "objects_of_data")
    inline = digests(file, tmp_path, "inline")
    alone = digests(file, tmp_path, "auto")
    assert inline[0] == alone[0]
    assert inline[1] != alone[1]


DRAWS_IN_TRAINING = """
class Adds(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.layers[-1].bias.assign_add(np.random.random(1))

def warm_start(trial):
    np.random.random(DRAWN)
"""


def test_a_training_begins_with_its_own_seed_whatever_the_factories_drew(tmp_path):
    digests = set()
    for drawn in "12":
        study = replace(
            SHORT,
            head=DRAWS_IN_TRAINING.replace("DRAWN", drawn),
            callbacks="Adds()",
            arguments='objective="loss", epochs=1, trials=1, audit="off", warm_start=warm_start',
        )
        (tmp_path / drawn).mkdir()
        digests |= {trial.digest for trial in sweep_inline(study, tmp_path / drawn).trials}
    assert len(digests) == 1
