"""Datasets that no checkpoint can hold a position in, refused by name with what to write instead."""

from __future__ import annotations

from typing import Any

from sweeper.errors import UncapturableError
from sweeper.training.randomness.ops import STATEFUL_RANDOM
from sweeper.training.sources.tfnodes import captured_shuffle, ops

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


def refuse_unseeded(op: Any, node: Any, name: str) -> None:
    """Refuse a random op without a seed, which draws other numbers in another process.

    Args:
        op: An op of a function of the dataset ``node``.
        node: A dataset that the source consists of.
        name: The argument of `Data` that the source was given as.

    Raises:
        UncapturableError: It is such an op.
    """
    if op.op in STATEFUL_RANDOM and not (op.attr["seed"].i or op.attr["seed2"].i):
        msg = (
            f"Data({name}=…): the function of {type(node).__name__.strip('_')} holds the random op "
            f"{op.op} ({op.name}), which has no seed: TensorFlow draws one that no checkpoint can "
            "hold; make the dataset inside the data factory, where the trial's seed is set, or give "
            "the op a seed"
        )
        raise UncapturableError(msg)


def written_by(node: Any) -> dict[int, Any]:
    """Return the TensorFlow variables that the functions of ``node`` may write, by identity."""
    return {
        id(variable): variable
        for function in node._functions()
        if any(map(_writes, ops(function.function.graph.as_graph_def())))
        for variable in function.function.graph.variables
    }


def _writes(op: Any) -> bool:
    return (op.op.startswith("Stateful") and "Call" not in op.op) or any(
        part in op.op for part in _WRITES
    )
