"""Callbacks that write: no row of a CSV file is lost or doubled. Of TensorBoard see ``test_summaries.py``."""

import keras
import pytest
from trainings import one_layer, unvalidated

import sweeper
from sweeper import Every
from sweeper.errors import RestoreError


class LostError(RuntimeError):
    """An attempt dies."""


DEATHS = {}
"""When the next attempt dies: no attribute of the callback, which a resume would bring back."""


class Dies(keras.callbacks.Callback):
    """Dies inside an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and len(self.model.history.epoch) == DEATHS["epoch"]:
            raise LostError


def attempt(csv, checkpoints, *, dies_in=None, append=False):
    """One attempt of three epochs, with a checkpoint after the second and at the end."""
    logger = keras.callbacks.CSVLogger(csv, append=append)
    DEATHS["epoch"] = dies_in
    keras.utils.set_random_seed(0)
    try:
        sweeper.fit(
            one_layer(),
            unvalidated(),
            epochs=3,
            checkpoints=checkpoints,
            checkpoint_every=Every(epochs=2),
            callbacks=[logger, Dies()],
        )
    except LostError:
        assert dies_in is not None
    finally:
        if logger.csv_file is not None:
            logger.csv_file.close()


def rows(csv):
    return [line.split(",")[0] for line in csv.read_text().splitlines()]


@pytest.mark.parametrize("append", [pytest.param(False, marks=pytest.mark.whole), True])
def test_rows_of_attempts_that_were_lost_before_any_checkpoint_are_not_doubled(
    append, tmp_path, tmp_path_factory
):
    def attempts(*deaths):
        for dies_in in deaths:
            lost = tmp_path_factory.mktemp("checkpoints")
            attempt(csv, lost, dies_in=dies_in, append=append)

    csv = tmp_path / "epochs.csv"
    csv.write_text("epoch,mine\n41,1.0\n")
    first_rows = rows(csv) if append else ["epoch"]
    attempts(1, 1, None)
    assert rows(csv) == [*first_rows, "0", "1", "2"]
    attempts(None)
    last_rows = rows(csv)[-3:] if append else []
    assert rows(csv) == [*first_rows, *last_rows, "0", "1", "2"], "a training of its own"
    assert [path.name for path in tmp_path.iterdir()] == ["epochs.csv"], "nothing is left beside it"


@pytest.mark.parametrize("append", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_rows_after_the_checkpoint_are_not_doubled(append, tmp_path):
    csv = tmp_path / "epochs.csv"
    whole = tmp_path / "whole.csv"
    attempt(csv, tmp_path / "kept", dies_in=2, append=append)
    assert rows(csv) == ["epoch", "0", "1"]
    with csv.open("a") as stream:
        stream.write("2,a row of an epoch that the checkpoint does not know\n3,one of which a par")
    attempt(csv, tmp_path / "kept", append=append)
    attempt(whole, tmp_path / "other", append=append)
    assert csv.read_bytes() == whole.read_bytes()


def test_a_csv_file_that_lost_rows_is_refused(tmp_path):
    csv = tmp_path / "epochs.csv"
    attempt(csv, tmp_path / "kept", dies_in=2)
    csv.write_text("epoch\n")
    with pytest.raises(RestoreError, match=r"has 6 bytes, and had \d+ at the checkpoint"):
        attempt(csv, tmp_path / "kept")


class Killed(keras.callbacks.Callback):
    """Dies at the end of an epoch, after its row was written."""

    def on_epoch_end(self, epoch, logs=None):
        if (self.params.get("epochs"), epoch) == DEATHS["epoch"]:
            raise LostError


def folds(directory, *, dies_in=None, every=1):
    """Trainings of three, four and five epochs, one after another, which append to one file."""
    DEATHS["epoch"] = dies_in
    csv = directory / "log.csv"
    for epochs in (3, 4, 5):
        keras.utils.set_random_seed(epochs)
        logger = keras.callbacks.CSVLogger(csv, append=True)
        try:
            sweeper.fit(
                one_layer(),
                unvalidated(),
                epochs=epochs,
                verbose=0,
                checkpoints=directory / str(epochs),
                checkpoint_every=Every(epochs=every),
                callbacks=[logger, Killed()],
                notice=lambda _message: None,
            )
        except LostError:
            logger.csv_file.close()
            return csv
    return csv


@pytest.mark.parametrize(("dies_in", "every"), [((5, 2), 1), ((5, 2), 3), ((4, 3), 2)])
def test_trainings_that_append_to_one_file_keep_the_rows_of_each_other(dies_in, every, tmp_path):
    """Killed between a row and its checkpoint, and run again, twice."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = folds(tmp_path / "whole").read_bytes()
    first = folds(tmp_path / "killed", dies_in=dies_in, every=every)
    assert first.read_bytes() != whole
    for _ in range(2):
        assert folds(tmp_path / "killed", every=every).read_bytes() == whole
    assert [path.name for path in (tmp_path / "killed").glob("*.before")] == []


def test_a_loop_of_calls_leaves_the_rows_that_others_have_written_meanwhile(tmp_path):
    csv = tmp_path / "log.csv"
    models = {name: one_layer() for name in "ab"}
    for epoch in range(3):
        for name, model in models.items():
            # The second one is always an epoch ahead: its rows look like the lost ones of the first.
            sweeper.fit(
                model,
                unvalidated(),
                epochs=epoch + 1 + (name == "b"),
                verbose=0,
                checkpoints=tmp_path / name,
                callbacks=[keras.callbacks.CSVLogger(csv, append=True)],
            )
    assert rows(csv) == ["epoch", "0", "0", "1", "1", "2", "2", "3"]
