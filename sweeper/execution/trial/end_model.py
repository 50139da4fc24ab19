"""Keeping a trial's model as training left it, once training has come to its end."""

from __future__ import annotations

from collections.abc import Callable

import keras

from sweeper.checkpoints.end import EndStore, write_end
from sweeper.checkpoints.format import Committed, Snapshot
from sweeper.training.encoding import Tensors
from sweeper.training.state.variables import Variables


def end_snapshot(model: keras.Model, step: int, epoch: int) -> tuple[Snapshot, list[str]]:
    """The model's variables, and their paths."""
    tensors: Tensors = {}
    variables = Variables("model", lambda: model.variables)
    paths = variables.capture(tensors)
    return Snapshot(step, epoch, tensors, {}, {}, tuple(tensors)), paths


def keep_end(
    model: keras.Model,
    last: Committed,
    store: EndStore,
    gather: Callable[[Snapshot], Snapshot],
) -> None:
    """Write the model's variables, or that they are those of its last checkpoint.

    Args:
        model: After ``on_train_end``.
        last: The trial's last checkpoint.
        store: Where it is kept.
        gather: Adds what other processes of the training have.

    Raises:
        CheckpointError: It cannot be written.
    """
    taken, paths = end_snapshot(model, last.step, last.epoch)
    write_end(store, last, gather(taken).tensors, {"model": paths})
