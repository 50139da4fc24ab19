"""Callbacks that write: no row of a CSV file is lost or doubled, and TensorBoard's steps go on."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
from trainings import Watcher, one_layer, plan, train, unvalidated

from sweeper.checkpoint.reading import load_newest
from sweeper.errors import RestoreError


class LostError(RuntimeError):
    """An attempt dies."""


DEATHS = {}
"""When the next attempt dies: no attribute of the callback, which a resume would bring back."""


class Dies(keras.callbacks.Callback):
    """Dies inside an epoch."""

    def __init__(self):
        super().__init__()
        self.now = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now == DEATHS["epoch"] and batch == 2:
            raise LostError


def attempt(csv, directory, *, dies_in=None, append=False):
    """One attempt of three epochs, keeping a checkpoint at every epoch's end but the first's."""

    logger = keras.callbacks.CSVLogger(csv, append=append)
    DEATHS["epoch"] = dies_in
    keeps = directory is not None
    watcher = Watcher(directory, block=1, snapshot_at=lambda at: keeps and at.epoch == 2)
    loaded = None if directory is None else load_newest([directory], pytest.fail)
    planned = plan(model=one_layer, data=unvalidated, callbacks=lambda: [logger, Dies()])
    try:
        train(planned, watcher, loaded)
    except LostError:
        assert dies_in is not None
    finally:
        if logger.csv_file is not None:
            logger.csv_file.close()


def rows(csv):
    return [line.split(",")[0] for line in csv.read_text().splitlines()]


@pytest.mark.parametrize("append", [pytest.param(False, marks=pytest.mark.whole), True])
def test_rows_of_attempts_that_were_lost_before_any_checkpoint_are_not_doubled(tmp_path, append):
    csv = tmp_path / "epochs.csv"
    for dies_in in (1, 2, None):
        attempt(csv, tmp_path / "none-kept" / str(dies_in), dies_in=dies_in, append=append)
    assert rows(csv) == ["epoch", "0", "1", "2"]


# Rows of a file that goes on are above and below.
@pytest.mark.parametrize("append", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_rows_after_the_checkpoint_are_not_doubled(tmp_path, append):
    csv, whole = tmp_path / "epochs.csv", tmp_path / "whole.csv"
    attempt(csv, tmp_path / "kept", dies_in=2, append=append)
    assert rows(csv) == ["epoch", "0", "1"]
    with csv.open("a") as stream:
        stream.write("2,a row of an epoch that the checkpoint does not know\n")
    attempt(csv, tmp_path / "kept", append=append)
    attempt(whole, tmp_path / "other", append=append)
    assert csv.read_bytes() == whole.read_bytes()


def test_rows_that_were_there_before_the_trial_stay(tmp_path):
    csv = tmp_path / "epochs.csv"
    csv.write_text("epoch,mine\n41,1.0\n")
    for dies_in in (1, 2, None):
        attempt(csv, None, dies_in=dies_in, append=True)
    assert rows(csv) == ["epoch", "41", "0", "1", "2"]
    attempt(csv, None, append=True)
    assert rows(csv) == ["epoch", "41", "0", "1", "2", "0", "1", "2"], "a training of its own"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epochs.csv"], "nothing is left beside it"


def test_a_csv_file_that_lost_rows_is_refused(tmp_path):
    csv = tmp_path / "epochs.csv"
    attempt(csv, tmp_path / "kept", dies_in=2)
    csv.write_text("epoch\n")
    with pytest.raises(RestoreError, match=r"has 6 bytes, and had \d+ at the checkpoint"):
        attempt(csv, tmp_path / "kept")


class Summary(SimpleNamespace):
    """What TensorBoard's callback needs of ``tf.summary``, recording what is written."""

    def __init__(self):
        super().__init__(written=[], steps=[], writers=[])

    def create_file_writer(self, directory):
        summary = self

        class Writer:
            @contextmanager
            def as_default(self, step=None):
                summary.writers.append(Path(directory).name)
                summary.steps.append(step)
                yield
                summary.writers.pop()
                summary.steps.pop()

            def flush(self):
                return

            def close(self):
                return

        return Writer()

    @contextmanager
    def record_if(self, should):
        yield

    def scalar(self, name, value, step):
        if "per_second" not in name and self.writers:
            self.written.append((self.writers[-1], self.steps[-1], name, int(step), float(value)))


@pytest.mark.whole
def test_tensorboards_steps_go_on(tmp_path):
    """Through a recording stand-in: the package ``tensorboard`` is no dependency of this one."""

    def board(summary):
        made = keras.callbacks.TensorBoard(
            tmp_path / "logs", write_graph=False, update_freq=1, write_steps_per_second=True
        )
        made._summary_module = summary
        return made

    whole = Summary()
    train(plan(model=one_layer, callbacks=lambda: [board(whole)]), Watcher())
    written = []
    for stop in (10, None):
        part = Summary()
        planned = plan(model=one_layer, callbacks=lambda part=part: [board(part)])
        watcher = Watcher(tmp_path / "kept", block=1, stop_at=stop)
        train(planned, watcher, load_newest([tmp_path / "kept"], pytest.fail))
        written += part.written
    assert written == whole.written
    assert {entry[0] for entry in written} == {"train", "validation"}
    assert max(entry[1] or 0 for entry in written if entry[0] == "train") == 21
