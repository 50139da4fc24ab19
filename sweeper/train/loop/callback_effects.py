"""Effects of two Keras callbacks on the loop: averaged weights, and summaries in a model's code.

A call of ``tf.summary`` in a graph writes where the default writer was when the graph was traced.
``fit`` traces in the first batch, when ``TensorBoard(update_freq=…)`` has made its writer the default.
Here everything is traced before, so the writer is made the default for the trace.

At the end of every epoch ``SwapEMAWeights`` exchanges weights and averages, and at the beginning of the next
one it exchanges them again. A checkpoint between the two holds both, bit for bit. After the last epoch
the callback also overwrites the weights, which it then has in the optimizer, with the averages: a
checkpoint after that could not be trained on from, to more epochs. So the last one holds the
optimizer as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from sweeper.train.codec import Tensors, assign_replicas, hold_replicas

_KEY = "value"


class FinalAverages:
    """The weights in the optimizer before ``SwapEMAWeights`` overwrites them after the last epoch.

    Args:
        model: A compiled model.
        callbacks: The user's callbacks.
    """

    def __init__(self, model: keras.Model, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._model = model
        self._swapping = [
            each
            for each in callbacks
            if isinstance(each, keras.callbacks.SwapEMAWeights) and each.swap_on_epoch
        ]
        self._before: dict[int, Tensors] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context manager for the callbacks' ``on_epoch_end``; holds what one overwrites in it."""
        self._before = {}
        for callback in self._swapping:
            callback._finalize_ema_values = self._holding(callback._finalize_ema_values)
        try:
            yield
        finally:
            for callback in self._swapping:
                del callback._finalize_ema_values

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Context manager for a capture: the optimizer is as it was before it was overwritten."""
        after = self._read(self._before)
        self._assign(self._before)
        try:
            yield
        finally:
            self._assign(after)

    def finalize(self) -> None:
        """Overwrite the weights in the optimizer again, after the last epoch was restored."""
        for callback in self._swapping:
            if callback._ema_weights_in_model:
                self._holding(callback._finalize_ema_values)()

    def _holding(self, finalize: Callable[[], None]) -> Callable[[], None]:
        def hold() -> None:
            indices = range(len(self._model.optimizer.variables))
            before = self._read(indices)
            finalize()
            for index, after in self._read(indices).items():
                if any(
                    _bytes(after[name]) != _bytes(value) for name, value in before[index].items()
                ):
                    self._before.setdefault(index, before[index])

        return hold

    def _read(self, indices: Iterable[int]) -> dict[int, Tensors]:
        found: dict[int, Tensors] = {index: {} for index in indices}
        for index, tensors in found.items():
            hold_replicas(self._model.optimizer.variables[index], _KEY, tensors)
        return found

    def _assign(self, values: Mapping[int, Tensors]) -> None:
        for index, tensors in values.items():
            assign_replicas(self._model.optimizer.variables[index], _KEY, tensors)


def _bytes(value: Any) -> bytes:
    return np.asarray(value).tobytes()


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
