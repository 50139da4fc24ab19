"""The seeds of a ``tf.data`` pipeline, pass by pass, where passes are not read to their end.

A reshuffling node draws a seed whenever an iterator of it is made. Under a ``repeat`` that is in
the course of a pass, and TensorFlow reads ahead: how many seeds were drawn when a pass is given up
depends on the clock. So the seeds are put back before each pass to where they were when the pass
before began, and each pass draws one of every node. How far any pass was read then changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

from sweeper.errors import DataError, RestoreError
from sweeper.training.sources.tfnodes import cached_order, repeats_for_ever

_EXTERNAL_STATE_FAILS = 2


class Rewinding:
    """Puts the seeds of reshuffling nodes where a pass that begins needs them.

    Args:
        parts: The reshuffling nodes.
        name: What the user calls these data, for errors.
    """

    def __init__(self, parts: Iterable[Any], name: str) -> None:
        self._parts = tuple(parts)
        self._name = name
        self._states: list[Any] = []

    def begin_pass(self) -> None:
        """Take the seeds on to the next pass, wherever reading has left them."""
        for part, state in zip(self._parts, self._states, strict=False):
            deserialize(iter(part), state, self._name)
        self._states = [serialized(iter(part)) for part in self._parts]


def rewinding_for(dataset: Any, parts: Mapping[int, Any], name: str) -> Rewinding | None:
    """What rewinds ``dataset``; None where each pass has to be read to its end after all.

    Args:
        dataset: What is read, of which iterators of ``parts`` are made in the course of a pass.
        parts: Its reshuffling nodes, by identity.
        name: What the user calls these data, for errors.

    Raises:
        DataError: A cache keeps the order of the first pass, which has no end.
    """
    if not cached_order(dataset, set(parts)):
        return Rewinding(parts.values(), name)
    if repeats_for_ever(dataset):
        msg = (
            f"Data({name}=…): validation_steps reads a part of an endless dataset whose shuffle "
            "stands before its cache(), so what the cache holds depends on how far TensorFlow has "
            "read ahead; call cache() before shuffle(…), give that shuffle "
            "reshuffle_each_iteration=False, or leave out the repeat()"
        )
        raise DataError(msg)
    return None


def serialized(iterator: Any) -> Any:
    """The state of an iterator, as a tensor of variants."""
    return gen_dataset_ops.serialize_iterator(
        iterator._iterator_resource, external_state_policy=_EXTERNAL_STATE_FAILS
    )


def deserialize(iterator: Any, state: Any, name: str) -> None:
    """Put an iterator into ``state``: what `serialized` gave, or the bytes of it.

    Raises:
        RestoreError: It is of another dataset.
    """
    try:
        if isinstance(state, bytes):
            state = tf.io.parse_tensor(state, tf.variant)
        gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state)
    except tf.errors.OpError as error:
        msg = (
            f"Data({name}=…): the position in the checkpoint does not fit the dataset: "
            f"{error.message}; undo the change of the dataset"
        )
        raise RestoreError(msg) from None
