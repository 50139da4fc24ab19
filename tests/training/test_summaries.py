"""``tf.summary`` in a model's own code, under the TensorBoard callback: the events are those of ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

import sweeper
from sweeper import Data

X = np.arange(50.0).reshape(10, 5) / 50

Events = list[tuple[str, str, int, float]]


class Summarised(keras.layers.Layer):
    """Writes the sum of each batch."""

    def call(self, x: Any) -> Any:
        tf.summary.scalar("own", tf.reduce_sum(x))
        return x


def build() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((5,)), Summarised(name="layer"), keras.layers.Dense(5)]
    model = keras.Sequential(layers, name="model")
    model.compile("sgd", "mse", jit_compile=False)
    return model


def own_events(logs: Path) -> Events:
    """Return what `Summarised` wrote: the directory, tag, step and value of each summary."""
    found = []
    for file in sorted(logs.glob("*/events*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = Event.FromString(record.numpy())
            found += [
                (file.parent.name, value.tag, event.step, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
                if value.tag.endswith("own")
            ]
    return found


@pytest.mark.parametrize(("frequency", "count"), [(1, 20), (2, 0), ("epoch", 0)])
def test_a_models_summaries_are_written_as_fit_writes_them(
    frequency: Any, count: int, tmp_path: Path
) -> None:
    def board(name: str) -> list[keras.callbacks.Callback]:
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
    theirs = own_events(tmp_path / "fit")
    assert len(theirs) == count
    assert own_events(tmp_path / "ours") == theirs


def test_a_resumed_training_goes_on_with_its_summaries(tmp_path: Path) -> None:
    for epochs in (1, 3):
        model = build()
        sweeper.fit(
            model,
            Data(train=(X, X), batch_size=2, shuffle=False),
            epochs=epochs,
            checkpoints=tmp_path / "checkpoints",
            callbacks=[keras.callbacks.TensorBoard(tmp_path / "logs", update_freq=1)],
        )
    assert len(own_events(tmp_path / "logs")) == 3 * 5
