"""``tf.summary`` in a model's own code, under the TensorBoard callback: the events are those of ``fit``."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from study_files import TWO_STEPS, StudyText
from sweeps import sweep
from tensorflow.core.util.event_pb2 import Event

import sweeper
from sweeper import Data

X = np.arange(50.0).reshape(10, 5) / 50


class Summarised(keras.layers.Layer):
    """Writes the sum of each batch."""

    def call(self, x):
        tf.summary.scalar("own", tf.reduce_sum(x))
        return x


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((5,)), Summarised(name="layer"), keras.layers.Dense(5)]
    model = keras.Sequential(layers, name="model")
    model.compile("sgd", "mse", jit_compile=False)
    return model


def events(logs):
    """Return the directory, tag, step and value of each scalar and, with value 0, each other summary."""
    scalars = []
    for file in sorted(logs.glob("*/events*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = Event.FromString(record.numpy())
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                number = float(array) if array.dtype == np.float32 and not array.shape else 0.0
                scalars.append((file.parent.name, value.tag, event.step, number))
    return scalars


def own_events(logs):
    """Return what `Summarised` wrote."""
    return [event for event in events(logs) if event[1].endswith("own")]


@pytest.mark.parametrize(
    ("frequency", "count"),
    [
        (1, 20),
        pytest.param(2, 0, marks=pytest.mark.whole),
        pytest.param("epoch", 0, marks=pytest.mark.whole),
    ],
)
def test_a_models_summaries_are_written_as_fit_writes_them(frequency, count, tmp_path):
    def board(name):
        return [keras.callbacks.TensorBoard(tmp_path / name, update_freq=frequency)]

    build().fit(
        X,
        X,
        batch_size=2,
        shuffle=False,
        epochs=2,
        validation_data=(X, X),
        validation_batch_size=2,
        callbacks=board("fit"),
        verbose=0,
    )
    data = Data(train=(X, X), validation=(X, X), batch_size=2, shuffle=False)
    sweeper.fit(
        build(), data, epochs=2, checkpoints=tmp_path / "checkpoints", callbacks=board("ours")
    )
    expected = own_events(tmp_path / "fit")
    assert len(expected) == count
    assert own_events(tmp_path / "ours") == expected


class LostError(RuntimeError):
    """An attempt dies."""


LOST = []
"""The events on disk when an attempt died, which an attribute of a callback would forget."""


class Dies(keras.callbacks.Callback):
    """Dies at the end of the third epoch, after the callbacks before it, once."""

    def __init__(self, logs):
        super().__init__()
        self.logs = logs

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2 and not LOST:
            LOST.append(events(self.logs))
            raise LostError


@pytest.mark.parametrize("frequency", [1, pytest.param("epoch", marks=pytest.mark.whole)])
def test_the_events_of_an_attempt_that_died_are_those_of_its_checkpoint(frequency, tmp_path):
    def run(name):
        logs = tmp_path / name / "logs"
        board = keras.callbacks.TensorBoard(logs, update_freq=frequency)
        data = Data(train=(X, X), validation=(X, X), batch_size=2, shuffle=False)
        checkpoints = tmp_path / name / "checkpoints"
        both = [board, Dies(logs)]
        try:
            sweeper.fit(build(), data, epochs=4, checkpoints=checkpoints, callbacks=both)
        finally:
            for writer in board._writers.values():  # as TensorFlow does, sooner or later
                writer.flush()
        return logs

    def found(logs):
        # Each attempt writes the model's graph once more.
        return sorted(event for event in events(logs) if event[1] != "keras")

    LOST[:] = [[]]
    whole = run("whole")
    LOST.clear()
    with pytest.raises(LostError):
        run("lost")
    epochs = [event[2] for event in LOST[0] if event[:2] == ("train", "epoch_loss")]
    assert epochs == [0, 1, 2], "control: events that stayed would be there twice"
    assert found(run("lost")) == found(whole)


def test_events_of_attempts_that_died_before_a_checkpoint_are_not_there_twice(tmp_path):
    study = StudyText(
        eager=True,
        head="""
        class Dies(keras.callbacks.Callback):
            "Kills attempts: the first and the third one before their own first checkpoints."

            def __init__(self, directory):
                super().__init__()
                self.directory = directory.parent

            def on_epoch_end(self, epoch, logs=None):
                died = len(list(self.directory.glob("died-*")))
                if died < KILLS and epoch == (1, 3, 4)[died]:
                    (self.directory / f"died-{died}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        """,
        data=TWO_STEPS,
        callbacks='keras.callbacks.TensorBoard(trial.directory / "logs", update_freq=1), Dies(trial.directory)',
        arguments="""objective="val_loss", epochs=6, trials=1, sampler="random", audit="off",
        checkpoint_every=Every(epochs=3)""",
    )
    found = {}
    for name, kills in (("whole", 0), ("killed", 3)):
        killed = replace(study, head=study.head.replace("KILLS", str(kills)))
        (tmp_path / name).mkdir()
        trials = sweep(killed.write(tmp_path / name / "small.py"), tmp_path / name / "runs").trials
        assert len(trials[0].attempts) == 1 + kills
        logs = tmp_path / name / "runs/small/trial-00000/files/logs"
        found[name] = sorted(event for event in events(logs) if event[1] != "keras")
    assert found["killed"] == found["whole"]
    assert found["whole"]
