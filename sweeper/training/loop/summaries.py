"""Summaries that a model's own code writes (``tf.summary``), under Keras's ``TensorBoard`` callback.

A call of ``tf.summary`` in a graph writes where the default writer was when the graph was traced.
``fit`` traces in the first batch, when ``TensorBoard(update_freq=…)`` has made its writer the default.
Here everything is traced before, so the writer is made the default for the trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Literal

import keras
import tensorflow as tf

_FIRST_BATCH = 1
"""Number of the batch in which ``fit`` traces; the graph keeps it as the step of each summary."""


def writing_by_batch(
    callbacks: Iterable[keras.callbacks.Callback],
) -> keras.callbacks.TensorBoard | None:
    """Return the ``TensorBoard`` whose writers are the default in a batch; None where there is none."""
    boards = [each for each in callbacks if isinstance(each, keras.callbacks.TensorBoard)]
    return next((each for each in reversed(boards) if each.update_freq != "epoch"), None)


def summaries_to(
    board: keras.callbacks.TensorBoard, use: Literal["train", "validation"]
) -> AbstractContextManager[object]:
    """Context manager for a trace: the model's summaries go where they go in ``fit``."""
    writer = board._train_writer if use == "train" else board._val_writer
    opened = ExitStack()
    opened.enter_context(writer.as_default(_FIRST_BATCH))
    opened.enter_context(tf.summary.record_if(_FIRST_BATCH % board.update_freq == 0))
    return opened
