"""A log that a training writes ends as that of a training that nobody stopped."""

import json

import keras
import pytest
from fitted import fitted, fitted_in_parts
from trainings import one_layer

from sweeper.errors import UncapturableError
from sweeper.train.userstate import files


class Log(keras.callbacks.Callback):
    """Writes a line an epoch to a file that it opens at once, and leaves it open."""

    def __init__(self, path, mode="w", **options):
        super().__init__()
        self.file = path.open(mode, **options)

    def on_epoch_end(self, epoch, logs=None):
        self.file.write(f"{epoch} {logs['loss']!r}\n")


class Table(Log):
    """Opens it with a header when training begins, as Keras's own log does, and closes it at the end."""

    def __init__(self, path):
        keras.callbacks.Callback.__init__(self)
        self.path = path

    def on_train_begin(self, logs=None):
        self.file = self.path.open("w")
        self.file.write("epoch loss\n")

    def on_train_end(self, logs=None):
        self.file.close()


class State(Log):
    """Writes one line of one length over the last one."""

    def on_epoch_end(self, epoch, logs=None):
        self.file.seek(0)
        self.file.write(f"{epoch} {logs['loss']:.6f}")


class Bytes(Log):
    def on_epoch_end(self, epoch, logs=None):
        self.file.write(f"{epoch} {logs['loss']!r}\n".encode())


def example_of_keras(path):
    """The log of the documentation of `LambdaCallback`."""
    log = path.open("wt", buffering=1)
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: log.write(json.dumps({"epoch": epoch, **logs}) + "\n"),
        on_train_end=lambda logs: log.close(),
    )
    callback.file = log
    return callback


LOGS = {
    "as in Keras's documentation": example_of_keras,
    "left open": Log,
    "with a mark of the byte order": lambda path: Log(path, encoding="utf-16"),
    "opened when training begins": Table,
    "one line": State,
    "binary": lambda path: Bytes(path, "wb"),
    "binary, unbuffered": lambda path: Bytes(path, "wb", buffering=0),
}


@pytest.fixture
def made(tmp_path):
    """A function that makes a callback and keeps it, so that nothing is written by its deletion."""
    callbacks = []

    def make(log, name):
        callbacks.append(log(tmp_path / name))
        return [callbacks[-1]]

    yield make
    for callback in callbacks:
        callback.file.close()


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_file_that_is_emptied_when_it_is_opened_has_all_of_it_again(log, made, tmp_path):
    fitted(one_layer, callbacks=lambda: made(log, "whole"), epochs=4)
    whole = (tmp_path / "whole").read_bytes()
    assert whole
    directory = tmp_path / "checkpoints"
    fitted_in_parts(
        (3, 10, 17), directory, one_layer, callbacks=lambda: made(log, "parts"), epochs=4
    )
    assert (tmp_path / "parts").read_bytes() == whole
    # The script, run once more, empties it once more.
    again = {"callbacks": lambda: made(log, "parts"), "epochs": 4, "notice": print}
    fitted_in_parts((), directory, one_layer, **again)
    assert (tmp_path / "parts").read_bytes() == whole


def test_what_is_appended_is_on_the_disk_with_the_checkpoint_and_stays(made, tmp_path):
    (tmp_path / "log").write_text("of another training\n")

    def callbacks():
        return made(lambda path: Log(path, "a"), "log")

    fitted_in_parts((3, 10, 17), tmp_path / "checkpoints", one_layer, callbacks=callbacks, epochs=4)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["of", "0", "1", "2", "3"]


def test_a_file_that_is_too_large_or_read_as_well_is_refused_by_name(made, tmp_path, monkeypatch):
    with pytest.raises(UncapturableError, match=r"callback Log\.file .* is an open file that was"):
        fitted(one_layer, callbacks=lambda: made(lambda path: Log(path, "w+"), "both"))
    monkeypatch.setattr(files, "MOST_WRITTEN", 8)
    with pytest.raises(UncapturableError, match=r"more than .* open it for appending \(mode 'a'\)"):
        fitted(one_layer, callbacks=lambda: made(Log, "large"))
