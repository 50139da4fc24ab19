"""Nodes of a ``tf.data.Dataset``: when their iterators are made, their seeds, and what is refused.

A reshuffling node draws a seed whenever an iterator of it is made. Under a ``repeat`` that is in
the course of a pass, and TensorFlow reads ahead: how many seeds were drawn when a pass is given up
depends on the clock. So the seeds are put back before each pass to where they were when the pass
before began, and each pass draws one of every node. How far any pass was read then changes nothing.

Datasets are nodes of a graph in Python, and functions that they call are graphs of ops. The names
of the nodes' classes are TensorFlow 2.21's own; one that is not known is taken to make the
iterators of its inputs at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import gen_dataset_ops

from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.randomness.tracing import STATEFUL_RANDOM

SEEDED = frozenset({"_RandomDataset", "_ShuffleDataset"})
"""Datasets that may draw a new seed for every iterator."""

_ONCE = frozenset(
    {
        "_BatchDataset",
        "_FilterDataset",
        "_FlatMapDataset",
        "_IgnoreErrorsDataset",
        "_InterleaveDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelInterleaveDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_RandomDataset",
        "_ScanDataset",
        "_ShardDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_TakeWhileDataset",
        "_UnbatchDataset",
        "_ZipDataset",
    }
)
"""Datasets whose iterator makes the iterators of its inputs once, when it is made itself."""

_INTERLEAVES = frozenset({"_InterleaveDataset", "_ParallelInterleaveDataset"})
_AUTOTUNE = -1
_RESHUFFLES = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_IGNORE_STATE = 1


def nodes(dataset: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The dataset and all that it is made of, each once."""
    seen = set() if seen is None else seen
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    yield dataset
    for part in dataset._inputs():
        yield from nodes(part, seen)


def made_within(dataset: Any, reshuffling: set[int]) -> bool:
    """Return whether an iterator of a reshuffling node may be made in the course of a pass."""
    if type(dataset).__name__ in _ONCE:
        return any(made_within(part, reshuffling) for part in dataset._inputs())
    return any(id(node) in reshuffling for node in nodes(dataset))


def made_when_read(dataset: Any) -> Iterator[Any]:
    """Yield the inputs whose iterator a shuffle makes when it is first read, if that draws seeds."""
    for part in dataset._inputs():
        if type(dataset).__name__ == "_ShuffleDataset" and any(
            type(node).__name__ in SEEDED for node in nodes(part)
        ):
            yield part
        yield from made_when_read(part)


def cached_order(dataset: Any, reshuffling: set[int]) -> bool:
    """Return whether a cache keeps what a reshuffling node before it gave first."""
    return any(
        type(node).__name__ == "CacheDataset"
        and any(id(part) in reshuffling for part in nodes(node))
        for node in nodes(dataset)
    )


def captured_shuffle(node: Any) -> str | None:
    """Return the op of a dataset that draws new seeds and is read, but not made, by a function of ``node``.

    It is no part that could be walked to: only TensorFlow's own graph of it tells.
    """
    for function in node._functions():
        for captured in function.function.captured_inputs:
            if captured.dtype != tf.variant:
                continue
            serialized = gen_dataset_ops.dataset_to_graph_v2(
                captured, external_state_policy=_IGNORE_STATE
            )
            for op in ops(graph_pb2.GraphDef.FromString(serialized.numpy())):
                if any(op.attr[name].b for name in _RESHUFFLES):
                    return str(op.op)
    return None


def repeats_for_ever(dataset: Any) -> bool:
    """Return whether something in it is repeated without end, whatever its length is said to be."""
    return any(
        type(node).__name__ == "_RepeatDataset" and int(node._count) < 0 for node in nodes(dataset)
    )


def sized_by_processors(node: Any) -> bool:
    """Return whether it reads as many inputs side by side as the machine has processors, in their order."""
    return type(node).__name__ in _INTERLEAVES and int(node._cycle_length) == _AUTOTUNE


def ops(graph: Any) -> Iterator[Any]:
    """The ops of a ``GraphDef``, those of its functions included."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


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
            f"Data({name}=…): the function of {type(node).__name__.strip('_')} reads a dataset "
            f"made outside it, with a {op} that draws a new seed at each iteration; the number of "
            "draws cannot be saved. Make that dataset inside the function, or give its shuffle "
            "reshuffle_each_iteration=False"
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
            f"Data({name}=…): the function of {type(node).__name__.strip('_')} contains the "
            f"random op {op.op} ({op.name}), which has no seed: TensorFlow draws one that cannot "
            "be saved; make the dataset inside the data factory, where the trial's seed is set, "
            "or give the op a seed"
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
    """Return what rewinds ``dataset``; None where each pass has to be read to its end after all.

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
            f"Data({name}=…): validation_steps reads a part of an endless dataset with a shuffle "
            "before its cache(), so the content of the cache depends on how far TensorFlow has "
            "read ahead; call cache() before shuffle(…), give that shuffle "
            "reshuffle_each_iteration=False, or leave out the repeat()"
        )
        raise DataError(msg)
    return None


def serialized(iterator: Any) -> Any:
    """Return the state of an iterator, as a tensor of variants."""
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
