"""What a ``tf.data.Dataset`` is made of, and when an iterator of it makes those of its parts.

Datasets are nodes of a graph in Python, and functions that they call are graphs of ops. The names
of the nodes' classes are TensorFlow 2.21's own; one that is not known is taken to make the
iterators of its inputs at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import gen_dataset_ops

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
    """Whether an iterator of a reshuffling node may be made in the course of a pass."""
    if type(dataset).__name__ in _ONCE:
        return any(made_within(part, reshuffling) for part in dataset._inputs())
    return any(id(node) in reshuffling for node in nodes(dataset))


def made_when_read(dataset: Any) -> Iterator[Any]:
    """What a shuffle makes an iterator of when it is first read, where that draws seeds."""
    for part in dataset._inputs():
        if type(dataset).__name__ == "_ShuffleDataset" and any(
            type(node).__name__ in SEEDED for node in nodes(part)
        ):
            yield part
        yield from made_when_read(part)


def cached_order(dataset: Any, reshuffling: set[int]) -> bool:
    """Whether a cache keeps what a reshuffling node before it gave first."""
    return any(
        type(node).__name__ == "CacheDataset"
        and any(id(part) in reshuffling for part in nodes(node))
        for node in nodes(dataset)
    )


def captured_shuffle(node: Any) -> str | None:
    """A dataset that draws new seeds, made outside a function of ``node`` that reads it; its op.

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
    """Whether something in it is repeated without end, whatever its length is said to be."""
    return any(
        type(node).__name__ == "_RepeatDataset" and int(node._count) < 0 for node in nodes(dataset)
    )


def sized_by_processors(node: Any) -> bool:
    """Whether it reads as many inputs side by side as the machine has processors, in their order."""
    return type(node).__name__ in _INTERLEAVES and int(node._cycle_length) == _AUTOTUNE


def ops(graph: Any) -> Iterator[Any]:
    """The ops of a ``GraphDef``, those of its functions included."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
