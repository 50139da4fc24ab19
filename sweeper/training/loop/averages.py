"""Averaged weights that ``SwapEMAWeights(swap_on_epoch=True)`` leaves in the model after the last epoch.

At the end of every epoch the callback exchanges weights and averages, and at the beginning of the next
one it exchanges them again. A checkpoint between the two holds both, bit for bit. After the last epoch
the callback also overwrites the weights, which it then has in the optimizer, with the averages: a
checkpoint after that could not be trained on from, to more epochs. So the last one holds the
optimizer as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from sweeper.training.encoding import Tensors, assign_replicas, hold_replicas

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
