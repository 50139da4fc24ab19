"""Where a data set's arrays are kept: on the GPU where they are small, else in the host's memory.

Gathering a batch inside the graph is fastest from the device that trains. But a GPU's memory is for
the model, and a data set that fills it ends the trial at its first step. Where the arrays lie
changes no bit: a gathered batch is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.training.sources.arrays import is_ragged

MOST_ON_GPU = 2**30
"""Bytes of one data set that are placed on a GPU at most."""

_SHARE = 4
"""Of a GPU whose memory is limited for this process, a data set takes this fraction at most."""

_HOST = "/device:CPU:0"


class ArrayPlacement:
    """Holds arrays as tensors where `put_arrays` put them, and gathers from them there.

    Args:
        arrays: A structure of arrays and Nones.
        device: TensorFlow's name of the device; None to leave it to TensorFlow.
    """

    def __init__(self, arrays: Any, device: str | None) -> None:
        self.device = device
        with self._there():
            self._tensors = tf.nest.map_structure(
                lambda array: array if array is None or is_ragged(array) else tf.constant(array),
                arrays,
            )

    def gather(self, indices: Any) -> Any:
        """The rows of those indices, of every array."""
        with self._there():
            return tf.nest.map_structure(
                lambda tensor: None if tensor is None else tf.gather(tensor, indices), self._tensors
            )

    def _there(self) -> AbstractContextManager[object]:
        return nullcontext() if self.device is None else tf.device(self.device)


def put_arrays(arrays: Any, name: str, notice: Callable[[str], None]) -> ArrayPlacement:
    """Keep ``arrays`` on the GPU where there is one and they are small, else where they are.

    Args:
        arrays: A structure of arrays and Nones.
        name: What the user calls the data.
        notice: Called with where they stay in the host's memory although there is a GPU.
    """
    room = _room_on_gpu()
    size = sum(_size(array) for array in tf.nest.flatten(arrays) if array is not None)
    if room is None or size <= room:
        return ArrayPlacement(arrays, None)
    notice(
        f"the {name} data are {size / 2**20:,.0f} MiB, of which at most {room / 2**20:,.0f} MiB are "
        "placed on a GPU; they stay in the host's memory, and each batch is copied from there"
    )
    return ArrayPlacement(arrays, _HOST)


def _size(array: Any) -> int:
    parts = tf.nest.flatten(array, expand_composites=True)
    return sum(int(np.prod(part.shape)) * tf.as_dtype(part.dtype).size for part in parts)


def _room_on_gpu() -> int | None:
    """Bytes that a data set may take of the first GPU; None where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    limits = tf.config.get_logical_device_configuration(gpus[0]) or ()
    megabytes = [each.memory_limit for each in limits if each.memory_limit is not None]
    return min([MOST_ON_GPU, *(int(each * 2**20) // _SHARE for each in megabytes)])
