"""Source of a ``tf.data.Dataset``: a resumed pass is read again, up to the training's position.

TensorFlow can serialize an iterator, but not one whose functions have state or call Python, and not the
seeds of a shuffle that is exhausted; and the result contains all shuffle buffers. So no iterator is
serialized, and the position is the number of the pass. Behaviour of TensorFlow 2.21, as measured, and
the consequences:

- A reshuffling ``shuffle`` draws a new seed from a generator in the dataset for each iterator. Where iterators
  are created during a pass (a shuffle before another, before a ``repeat`` or a ``cache``, in a
  ``concatenate``), the number of drawn seeds depends on how far TensorFlow has read. And the user's code may
  iterate over the dataset, too. So the seeds are set before each pass, by the state of an iterator of the
  shuffle alone, and the order is a function of the dataset's seed and the number of the pass.
- If several parts of a dataset read one shuffle, as in a ``rejection_resample``, threads draw from its generator in any
  order. Such a dataset is read without threads.
- The order of an ``interleave`` without ``cycle_length`` depends on the number of processors.

A random op in a function restarts with each iterator and draws in order, because TensorFlow's determinism
runs stateful functions one by one. Variables that functions write, and the state of Python functions, are
restored to their values at the opening of the pass.

Datasets are nodes of a graph in Python, and their functions are graphs of ops. The names of the nodes'
classes are those of TensorFlow 2.21.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

# Whether an op is stateful is in its definition, which has no public name.
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops import gen_dataset_ops

from sweeper.declarations.arguments import usable_cores
from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.codec import Json, Tensors
from sweeper.train.data import DataSource, PartName, SourceOptions
from sweeper.train.randomness.interception import STATEFUL_RANDOM
from sweeper.train.sources.batches import BatchSpec, weigh_classes_of

SEEDED = frozenset({"_RandomDataset", "_ShuffleDataset"})
"""Datasets that may draw a new seed for every iterator."""

_INTERLEAVES = frozenset({"_InterleaveDataset", "_ParallelInterleaveDataset"})
_RESHUFFLES = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_IGNORE_STATE = 1


def nodes(dataset: Any, visited: set[int] | None = None) -> Iterator[Any]:
    visited = set() if visited is None else visited
    if id(dataset) in visited:
        return
    visited.add(id(dataset))
    yield dataset
    for part in dataset._inputs():
        yield from nodes(part, visited)


def draws_new_seeds(node: Any) -> bool:
    """Return whether ``node``, of a dataset, draws a new seed for every iterator."""
    kind = type(node).__name__
    return kind == "_RandomDataset" or (
        kind == "_ShuffleDataset" and bool(node._reshuffle_each_iteration)
    )


def cached(dataset: Any) -> set[int]:
    """Return the ids of all nodes before a cache."""
    caches = (node for node in nodes(dataset) if type(node).__name__ == "CacheDataset")
    return {id(part) for cache in caches for part in nodes(cache)}


_OPEN_LATER = frozenset(
    {"_ConcatenateDataset", "_CopyToDeviceDataset", "_RepeatDataset", "_ShuffleDataset"}
)
"""Datasets that create iterators of their inputs while they are read; all others do so when they are opened themselves."""


def draws_seeds_in_any_order(dataset: Any, reshuffling: Iterable[Any]) -> bool:
    """Return whether threads of ``dataset`` may draw the seeds of a node of ``reshuffling`` in any order.

    They may where a thread opens the node while the dataset is read, and not every opening is that thread's.
    """
    parts = list(nodes(dataset))
    ahead = [part for part in parts if type(part).__name__.startswith(("_Parallel", "_Prefetch"))]
    later = [part for part in parts if type(part).__name__ in _OPEN_LATER]
    return any(
        _paths(thread, node) < _paths(dataset, node)
        and any(part is not node and _paths(thread, part) and _paths(part, node) for part in later)
        for node in reshuffling
        for thread in ahead
    )


def _paths(dataset: Any, node: Any, counted: dict[int, int] | None = None) -> int:
    """Return by how many ways ``dataset`` reads ``node``, each of which has an iterator of its own."""
    if dataset is node:
        return 1
    counted = {} if counted is None else counted
    if id(dataset) not in counted:
        counted[id(dataset)] = sum(_paths(part, node, counted) for part in dataset._inputs())
    return counted[id(dataset)]


def _read_without_threads(*batch: Any) -> Any:
    """Return ``batch``; an op that has an effect, if none that matters, makes TensorFlow's determinism read without threads."""
    with tf.control_dependencies([tf.raw_ops.DummyIterationCounter().op]):
        unchanged = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
    return unchanged if len(batch) > 1 else unchanged[0]


def fills_cache_in_any_order(dataset: Any) -> bool:
    """Return whether a cache of ``dataset`` has other elements at each filling, unless kernels are deterministic."""
    before_cache = cached(dataset)
    return any(_is_unordered(node) for node in nodes(dataset) if id(node) in before_cache)


def _is_unordered(node: Any) -> bool:
    """Return whether ``node`` calls its functions at once and its elements depend on the order of the calls."""
    if not type(node).__name__.startswith("_Parallel"):
        return False
    if getattr(node, "_deterministic", "default") == "false":
        return True
    graphs = (function.function.graph.as_graph_def() for function in node._functions())
    return any(op.op in STATEFUL_RANDOM for graph in graphs for op in ops(graph))


def set_generators(dataset: Any, seed: int) -> None:
    """Set Keras's generators in functions of ``dataset``, whatever was drawn from them outside of a training.

    An iterator that a script has abandoned, such as that of ``next(iter(dataset))``, has read ahead as far as its
    threads came, so the number of draws is another one in each process. A generator goes on from where the last
    training in this process left it. The others are all seeded if one of them was drawn from, because how many were
    depends on the threads, too.
    """
    new = []
    for variable in _generators(dataset):
        if id(variable) in _LEFT_GENERATORS:
            variable.assign(_LEFT_GENERATORS[id(variable)][1])
        else:
            new.append(variable)
    # The second number is 0 until the first draw.
    if any(int(variable[1]) for variable in new):
        for index, variable in enumerate(new):
            variable.assign([seed + index, 0])


def remember_generators(dataset: Any) -> None:
    """Remember the generators of ``dataset`` as they are at the end of a training."""
    for variable in _generators(dataset):
        _LEFT_GENERATORS[id(variable)] = (variable, variable.numpy())


def _generators(dataset: Any) -> Iterator[Any]:
    """Yield the variables of Keras's generators in functions of ``dataset``, each once."""
    functions = (function.function for node in nodes(dataset) for function in node._functions())
    variables = {id(variable): variable for f in functions for variable in f.graph.variables}
    for variable in variables.values():
        if variable.name.partition(":")[0].endswith("seed_generator_state"):
            yield variable


_LEFT_GENERATORS: dict[int, tuple[Any, Any]] = {}
"""Generators of earlier trainings in this process, with their states at the end of the last one, by identity."""


def ops(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


_WRITES = ("Assign", "ScatterAdd", "ScatterUpdate", "RngReadAndSkip", "RngSkip", "TableInsert")


def refuse_captured_shuffle(node: Any, name: PartName) -> None:
    """Refuse a function of ``node`` that reads a reshuffling dataset made outside of it.

    Such a dataset is not an input of ``node``; it is found in TensorFlow's graph of the dataset.
    """
    captured = (tensor for f in node._functions() for tensor in f.function.captured_inputs)
    for dataset in captured:
        if dataset.dtype != tf.variant:
            continue
        graph = gen_dataset_ops.dataset_to_graph_v2(dataset, external_state_policy=_IGNORE_STATE)
        for op in ops(graph_pb2.GraphDef.FromString(graph.numpy())):
            if any(op.attr[attribute].b for attribute in _RESHUFFLES):
                raise UncapturableError(
                    f"{name}: the function of {type(node).__name__.strip('_')} reads a "
                    f"dataset made outside it, with a {op.op} that draws a new seed at each "
                    "iteration; the number of draws cannot be saved. Make that dataset inside the "
                    "function, or give its shuffle reshuffle_each_iteration=False"
                )


def refuse_unseeded(op: Any, node: Any, name: PartName) -> None:
    """Raise UncapturableError for an op of a function of ``node`` that is random and has no seed."""
    if op.op in STATEFUL_RANDOM and not (op.attr["seed"].i or op.attr["seed2"].i):
        raise UncapturableError(
            f"{name}: the function of {type(node).__name__.strip('_')} contains the "
            f"random op {op.op} ({op.name}), which has no seed: TensorFlow draws one that cannot "
            f"be saved; {name.seeding}, or give the op a seed"
        )


def _writes(op: Any) -> bool:
    return (op.op.startswith("Stateful") and "Call" not in op.op) or any(
        part in op.op for part in _WRITES
    )


_HARMLESS = frozenset(
    {"Assert", "If", "LookupTableFind", "LookupTableFindV2", "StatefulPartitionedCall", "While"}
)

_initial_states: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The state of the seeds of each node when it was first read."""


def _state_of(iterator: Any) -> Any:
    """Return the state of the seeds of a node, of which ``iterator`` is the newest."""
    resource = iterator._iterator_resource
    return gen_dataset_ops.serialize_iterator(resource, external_state_policy=_IGNORE_STATE)


class PassSeeds:
    """Seeds of a dataset's reshuffling nodes, which are set at the start of each pass.

    Each pass draws one seed of a node, whatever the pass before drew. A node before a cache always gets the same, so
    the cache has the same order whenever it is filled.
    """

    def __init__(self, reshuffling: Iterable[Any], cached: Collection[int]) -> None:
        self._cached = cached
        self._first = {
            node: _initial_states.setdefault(node, _state_of(iter(node))) for node in reshuffling
        }
        self._states = dict(self._first)
        self._pass = 0

    def begin(self, pass_: int) -> None:
        """Set the seeds for ``pass_``, however far the last one was read."""
        if pass_ < self._pass:
            self._states = dict(self._first)
            self._pass = 0
        drawn = pass_ - self._pass
        self._pass = pass_
        for node, state in self._states.items():
            iterator = iter(node)
            gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state)
            if id(node) in self._cached:
                continue
            for _ in range(drawn):
                iterator = iter(node)
            if drawn:
                self._states[node] = _state_of(iterator)


class TfDataSource(DataSource):
    """Source of a dataset of batches, in the dataset's own order.

    ``limit`` is the maximum number of batches of a pass, if each reading starts a new pass; None if passes are
    read to their end.
    """

    def __init__(self, dataset: Any, options: SourceOptions, *, limit: int | None = None) -> None:
        super().__init__(options)
        self._check_batched(dataset)
        parts = list(nodes(dataset))
        if self.class_weight is not None:
            dataset = dataset.map(weigh_classes_of(self.class_weight, self.name))
        if is_op_determinism_enabled() and draws_seeds_in_any_order(
            dataset, filter(draws_new_seeds, parts)
        ):
            dataset = dataset.map(_read_without_threads)
            self.notify(
                f"{self.name}: several parts of this dataset read one shuffle(…), which gives each its own order (as in "
                "rejection_resample), so it is read without prefetch and without parallel calls: with them, the order "
                "depends on threads. To have them, shuffle after those parts, or give the shuffle reshuffle_each_iteration=False"
            )
        # A dataset that was iterated before keeps the plan of execution made then, perhaps without determinism; this one
        # is new.
        self._dataset = dataset.with_options(tf.data.Options())
        self._cardinality = int(dataset.cardinality())
        self.reshuffling = {id(node): node for node in parts if self._reshuffles(node)}
        """Nodes that draw a new seed for every iterator, by identity."""
        stateful, writing = self._read_functions(parts)
        self.written = {
            id(variable): variable for variable in chain.from_iterable(writing.values())
        }
        """Variables that its functions may write ahead of the training, by identity."""
        self.is_read_again = self.reads_ahead = bool(stateful)
        limited = limit is not None and not 0 <= self._cardinality <= limit
        self._seeds = PassSeeds(self.reshuffling.values(), cached(dataset))
        if self.written and (limited or not cached(dataset).isdisjoint(writing)):
            raise UncapturableError(
                f"{self.name}: a function of this dataset writes a variable (for example of a "
                "Keras layer or generator with random state), and is not called exactly once for "
                "each element of an epoch: a cache() keeps its results, or validation_steps ends an "
                "iteration early. Call cache() before it, add a take(…) at the end, or put the layer into "
                "the model"
            )
        self._notice_reading(stateful, limited=limited)
        interleaves = (node for node in parts if type(node).__name__ in _INTERLEAVES)
        sized = any(int(node._cycle_length) == tf.data.AUTOTUNE for node in interleaves)
        self._processors = usable_cores() if sized else None
        if self._processors is not None:
            self.notify(
                f"{self.name}: an interleave(…) without cycle_length reads as many inputs at "
                f"once as there are processors ({self._processors} here), so its order depends on "
                "that number, and training resumes only with the same number; give cycle_length=…"
            )

    def _notice_reading(self, stateful: Iterable[str], *, limited: bool) -> None:
        if any("PyFunc" in op for op in stateful):
            self.notify(
                f"{self.name}: Python functions of this dataset are called again from the beginning "
                "of an epoch when training resumes, so they must return the same elements each time"
            )
        elif self.endless and not limited:
            self.notify(
                f"{self.name}: a resumed training reads all earlier batches of an endless dataset "
                "again. To avoid this, leave out the repeat(): steps_per_epoch continues from pass to "
                "pass by itself"
            )

    @property
    def steps(self) -> int | None:
        return None if self._cardinality < 0 else self._cardinality

    @property
    def endless(self) -> bool:
        return bool(self._cardinality == tf.data.INFINITE_CARDINALITY)

    def spec(self) -> BatchSpec:
        """Return the form of the batches, as the dataset declares it."""
        return BatchSpec(self._dataset.element_spec, self.name)

    def open(self, pass_: int, step: int) -> Iterator[Any]:
        """Return the batches of ``pass_`` from ``step`` on, which has the earlier ones read again."""
        self._seeds.begin(pass_)
        batches = iter(self._dataset)
        self.drop(batches, step, "the dataset")
        return batches  # type: ignore[no-any-return]

    def capture(self, name: str, tensors: Tensors) -> Json:
        del name, tensors
        return {} if self._processors is None else {"processors": self._processors}

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name, tensors
        processors = saved.get("processors", self._processors)
        if processors != self._processors:
            raise RestoreError(
                f"{self.name}: an interleave(…) without cycle_length read {processors} inputs "
                "at once where the checkpoint was written, one for each processor, and would "
                f"read {self._processors} here, in another order; resume on a machine with {processors} "
                "processors, or train from the beginning with cycle_length=…"
            )

    def _check_batched(self, dataset: Any) -> None:
        for spec in tf.nest.flatten(dataset.element_spec):
            shape = getattr(spec, "shape", None)
            if shape is not None and shape.rank == 0:
                raise DataError(
                    f"{self.name}: the dataset's elements are single samples, {spec}; "
                    "call .batch(…) on it"
                )

    def _reshuffles(self, node: Any) -> bool:
        kind = type(node).__name__
        if kind not in SEEDED:
            return False
        if not np.any(node._seed) and not np.any(node._seed2):
            raise UncapturableError(
                f"{self.name}: {kind.strip('_')} has no seed, so TensorFlow draws one "
                f"that cannot be saved; {self.name.seeding}, or give it seed=…"
            )
        return draws_new_seeds(node)

    def _read_functions(self, parts: Iterable[Any]) -> tuple[set[str], dict[int, list[Any]]]:
        """Return the ops of functions that have state or call Python, and by node the variables that they may write."""
        stateful_ops: set[str] = set()
        writing: dict[int, list[Any]] = {}
        for node in parts:
            refuse_captured_shuffle(node, self.name)
            for function in node._functions():
                graph = function.function.graph
                called = list(ops(graph.as_graph_def()))
                if graph.variables and any(map(_writes, called)):
                    writing.setdefault(id(node), []).extend(graph.variables)
                for op in called:
                    refuse_unseeded(op, node, self.name)
                    definition = op_def_registry.get(op.op)
                    stateful = definition is not None and definition.is_stateful
                    if stateful and "Dataset" not in op.op and op.op not in _HARMLESS:
                        stateful_ops.add(op.op)
        return stateful_ops, writing
