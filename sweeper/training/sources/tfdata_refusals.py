"""Datasets that no checkpoint can hold a position in, refused by name with what to write instead."""

from __future__ import annotations

from typing import Any

from sweeper.errors import UncapturableError
from sweeper.training.randomness.ops import STATEFUL_RANDOM
from sweeper.training.sources.tfnodes import captured_shuffle

_WRITES = ("Assign", "ScatterAdd", "ScatterUpdate", "RngReadAndSkip", "RngSkip", "TableInsert")


def refuse_captured_shuffle(node: Any, name: str) -> None:
    """Refuse a function of a dataset that reads another, reshuffling one from outside it.

    Args:
        node: A dataset that the source consists of.
        name: The argument of `Data` that the source was given as.

    Raises:
        UncapturableError: It reads such a dataset.
    """
    op = captured_shuffle(node)
    if op is not None:
        msg = (
            f"Data({name}=…): the function of {type(node).__name__.strip('_')} reads a "
            f"dataset made outside it, with a {op} that draws a new seed whenever it is read; "
            "how many it has drawn no checkpoint can hold. Make that dataset inside the "
            "function, or give its shuffle reshuffle_each_iteration=False"
        )
        raise UncapturableError(msg)


def refuse_hidden_state(op: Any, node: Any, name: str) -> None:
    """Refuse an op that keeps its state in its kernel, or writes a variable ahead of the training.

    Args:
        op: An op of a function of the dataset ``node``.
        node: A dataset that the source consists of.
        name: The argument of `Data` that the source was given as.

    Raises:
        UncapturableError: It is such an op.
    """
    where = f"Data({name}=…): the function of {type(node).__name__.strip('_')}"
    if op.op in STATEFUL_RANDOM:
        msg = (
            f"{where} holds the random op {op.op} ({op.name}), whose state lives in "
            "TensorFlow's kernel where no checkpoint can reach it; use tf.random.stateless_* "
            "(tf.image.stateless_random_*) with a seed from the element, such as one that "
            "dataset.enumerate() or a zipped tf.data.Dataset.random(seed=…) gives, or put the "
            "augmentation into the model"
        )
        raise UncapturableError(msg)
    if (op.op.startswith("Stateful") and "Call" not in op.op) or any(
        part in op.op for part in _WRITES
    ):
        msg = (
            f"{where} holds the op {op.op} ({op.name}), which writes a variable while the "
            "dataset reads ahead of the training (a Keras layer or generator with random "
            "state, say), so its value at a checkpoint belongs to no position; use "
            "tf.random.stateless_* with a seed from the element, or put the layer into the "
            "model"
        )
        raise UncapturableError(msg)
