"""Keeping a trial's model as training left it, once training has come to its end."""

from __future__ import annotations

import keras

from sweeper.checkpoints.end import EndStore, write_end
from sweeper.checkpoints.format import Committed, Snapshot
from sweeper.training.encoding import Tensors
from sweeper.training.state.variables import Variables


def keep_end(model: keras.Model, last: Committed, store: EndStore) -> None:
    """Write the model's variables, or that they are those of its last checkpoint.

    Args:
        model: After ``on_train_end``.
        last: The trial's last checkpoint.
        store: Where it is kept.

    Raises:
        CheckpointError: It cannot be written.
    """
    tensors: Tensors = {}
    paths = Variables("model", lambda: model.variables).capture(tensors)
    taken = Snapshot(last.step, last.epoch, tensors, {}, {}, tuple(tensors))
    write_end(store, last, taken.tensors, {"model": paths})
