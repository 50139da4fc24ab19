"""Source of a ``tf.data.Dataset``: a resumed pass is read again, up to the training's position.

TensorFlow can serialize an iterator, but not one whose functions have state or call Python, and not the
seeds of a shuffle that is exhausted; and the result contains all shuffle buffers. So no iterator is
serialized, and the position is the number of the pass. Behaviour of TensorFlow 2.21, as measured, and
the consequences:

- A reshuffling ``shuffle`` draws a new seed from a generator in the dataset for each iterator. So the
  order of pass p depends on the number of earlier iterators. A new process creates and drops p
  iterators first, so the order is a function of the dataset's seed and p. A dataset before another
  shuffle gets its iterator when the pass is first read, so iterators of it are dropped separately.
- If iterators are created during a pass (a shuffle before a finite ``repeat``, in a ``concatenate``,
  before a ``cache``), all earlier passes are read again, with a notice to the user. Each is read to
  its end before the next, because a cache is kept only then.
- If such passes end early, the number of drawn seeds depends on how far TensorFlow has read ahead. So before
  each pass the seeds are reset to their state at the beginning of the previous pass, and each pass draws
  one seed of every node.
- The order of an ``interleave`` without ``cycle_length`` depends on the number of processors.

A random op in a function restarts with each iterator and draws in order, because TensorFlow's determinism
runs stateful functions one by one. Variables that functions write, and the state of Python functions, are
restored to their values at the opening of the pass.

Datasets are nodes of a graph in Python, and their functions are graphs of ops. The names of the nodes'
classes are those of TensorFlow 2.21; an unknown class may create its inputs' iterators at any time.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_dataset_ops

from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.codec import Json, Tensors
from sweeper.train.data import DataSource, SourceOptions
from sweeper.train.randomness.tracing import STATEFUL_RANDOM
from sweeper.train.sources.batches import BatchSpec, weigh_classes_of

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
"""Datasets whose iterator creates its inputs' iterators when it is created."""

_INTERLEAVES = frozenset({"_InterleaveDataset", "_ParallelInterleaveDataset"})
_AUTOTUNE = -1
_RESHUFFLES = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_IGNORE_STATE = 1


def nodes(dataset: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the dataset and all of its inputs, each once."""
    seen = set() if seen is None else seen
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    yield dataset
    for part in dataset._inputs():
        yield from nodes(part, seen)


def draws_new_seeds(node: Any) -> bool:
    """Return whether ``node``, of a dataset, draws a new seed for every iterator."""
    kind = type(node).__name__
    return kind == "_RandomDataset" or (
        kind == "_ShuffleDataset" and bool(node._reshuffle_each_iteration)
    )


def made_within(dataset: Any, reshuffling: set[int]) -> bool:
    """Return whether an iterator of a reshuffling node may be created during a pass."""
    if type(dataset).__name__ in _ONCE:
        return any(made_within(part, reshuffling) for part in dataset._inputs())
    return any(id(node) in reshuffling for node in nodes(dataset))


def made_when_read(dataset: Any) -> Iterator[Any]:
    """Yield the inputs whose iterator a shuffle creates at its first read, if this draws seeds."""
    for part in dataset._inputs():
        if type(dataset).__name__ == "_ShuffleDataset" and any(
            type(node).__name__ in SEEDED for node in nodes(part)
        ):
            yield part
        yield from made_when_read(part)


def cached_order(dataset: Any, reshuffling: set[int]) -> bool:
    """Return whether a cache stores the order of a reshuffling node before it."""
    return any(
        type(node).__name__ == "CacheDataset"
        and any(id(part) in reshuffling for part in nodes(node))
        for node in nodes(dataset)
    )


def repeats_for_ever(dataset: Any) -> bool:
    """Return whether a part of ``dataset`` is repeated endlessly, whatever its cardinality."""
    return any(
        type(node).__name__ == "_RepeatDataset" and int(node._count) < 0 for node in nodes(dataset)
    )


def sized_by_processors(node: Any) -> bool:
    """Return whether ``node`` interleaves as many inputs as the machine has processors."""
    return type(node).__name__ in _INTERLEAVES and int(node._cycle_length) == _AUTOTUNE


def ops(graph: Any) -> Iterator[Any]:
    """Yield the ops of a ``GraphDef`` and its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


_WRITES = ("Assign", "ScatterAdd", "ScatterUpdate", "RngReadAndSkip", "RngSkip", "TableInsert")


def refuse_captured_shuffle(node: Any, name: str) -> None:
    """Refuse a function of ``node`` that reads a reshuffling dataset made outside of it.

    Such a dataset is not an input of ``node``; it is found in TensorFlow's graph of the dataset.
    """
    captured = (each for f in node._functions() for each in f.function.captured_inputs)
    for dataset in captured:
        if dataset.dtype != tf.variant:
            continue
        graph = gen_dataset_ops.dataset_to_graph_v2(dataset, external_state_policy=_IGNORE_STATE)
        for op in ops(graph_pb2.GraphDef.FromString(graph.numpy())):
            if any(op.attr[attribute].b for attribute in _RESHUFFLES):
                msg = (
                    f"Data({name}=…): the function of {type(node).__name__.strip('_')} reads a "
                    f"dataset made outside it, with a {op.op} that draws a new seed at each "
                    "iteration; the number of draws cannot be saved. Make that dataset inside the "
                    "function, or give its shuffle reshuffle_each_iteration=False"
                )
                raise UncapturableError(msg)


def refuse_unseeded(op: Any, node: Any, name: str) -> None:
    """Raise UncapturableError for an op of a function of ``node`` that is random and has no seed."""
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


_HARMLESS = frozenset(
    {"Assert", "If", "LookupTableFind", "LookupTableFindV2", "StatefulPartitionedCall", "While"}
)
_INFINITE = -1
_EXTERNAL_STATE_FAILS = 2


class Rewinding:
    """Control of the seeds of reshuffling nodes at the beginning of each pass."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = tuple(parts)
        self._states: list[Any] = []

    def begin_pass(self) -> None:
        """Set the seeds for the next pass, however far the last one was read."""
        for part, state in zip(self._parts, self._states, strict=False):
            gen_dataset_ops.deserialize_iterator(iter(part)._iterator_resource, state)
        self._states = [
            gen_dataset_ops.serialize_iterator(
                iter(part)._iterator_resource, external_state_policy=_EXTERNAL_STATE_FAILS
            )
            for part in self._parts
        ]


class Earlier(enum.Enum):
    """Need of a pass's order for the earlier passes."""

    COUNTED = enum.auto()
    """The number of earlier passes decides the order."""
    REWOUND = enum.auto()
    """Their number decides it, if each leaves the seeds as a pass that was read."""
    READ = enum.auto()
    """All earlier passes have to be read to their end."""


def earlier_passes(
    dataset: Any, reshuffling: Mapping[int, Any], *, limited: bool, name: str
) -> Earlier:
    """Return what the order of a pass needs; passes that are ``limited`` are not read to their end."""
    keys = set(reshuffling)
    if not made_within(dataset, keys):
        return Earlier.COUNTED
    cached = cached_order(dataset, keys)
    if limited and cached and repeats_for_ever(dataset):
        msg = (
            f"Data({name}=…): validation_steps reads a part of an endless dataset with a shuffle "
            "before its cache(), so the content of the cache depends on how far TensorFlow has "
            "read ahead; call cache() before shuffle(…), give that shuffle "
            "reshuffle_each_iteration=False, or leave out the repeat()"
        )
        raise DataError(msg)
    if limited and not cached:
        return Earlier.REWOUND
    return Earlier.COUNTED if int(dataset.cardinality()) == _INFINITE else Earlier.READ


class TfDataSource(DataSource):
    """Source of a dataset of batches, in the dataset's own order.

    ``limit`` is the maximum number of batches of a pass, if each reading begins a new pass; None if passes are
    read to their end.
    """

    def __init__(self, dataset: Any, options: SourceOptions, *, limit: int | None = None) -> None:
        super().__init__(options)
        self._check_batched(dataset)
        parts = list(nodes(dataset))
        if self.class_weight is not None:
            dataset = dataset.map(weigh_classes_of(self.class_weight, self.name))
        self._dataset = dataset
        self._cardinality = int(dataset.cardinality())
        self.reshuffling = {id(node): node for node in parts if self._reshuffles(node)}
        """Nodes that draw a new seed for every iterator, by identity."""
        writing = {id(node): written for node in parts if (written := written_by(node))}
        self.written = {key: each for written in writing.values() for key, each in written.items()}
        """Variables that its functions may write ahead of the training, by identity."""
        stateful = self._stateful_ops(parts)
        self.is_read_again = self.reads_ahead = bool(stateful)
        limited = limit is not None and not 0 <= self._cardinality <= limit
        earlier = earlier_passes(dataset, self.reshuffling, limited=limited, name=self.name)
        self._rewinding = (
            Rewinding(self.reshuffling.values()) if earlier is Earlier.REWOUND else None
        )
        self.reads_all_again = earlier is Earlier.READ
        if self.written and (
            limited or self.reads_all_again or cached_order(dataset, set(writing))
        ):
            msg = (
                f"Data({self.name}=…): a function of this dataset writes a variable (for example of a "
                "Keras layer or generator with random state), and is not called exactly once for "
                "each element of an epoch: a cache() keeps its results, a shuffle precedes a "
                "cache() or repeat(), or validation_steps ends an iteration early. Call cache() "
                "before it, shuffle after repeat(), add a take(…) at the end, or put the layer "
                "into the model"
            )
            raise UncapturableError(msg)
        self._notice_reading(stateful, limited=limited)
        self._processors = _processors() if any(map(sized_by_processors, parts)) else None
        if self._processors is not None:
            self.notice(
                f"Data({self.name}=…): an interleave(…) without cycle_length reads as many inputs at "
                f"once as there are processors ({self._processors} here), so its order depends on "
                "that number, and a trial resumes only with the same number; give cycle_length=…"
            )
        self._made = 0
        self._made_late = [] if self.reads_all_again else list(made_when_read(dataset))
        self._open: Any = None
        self._shared: _SharedShuffles | None = None

    def _notice_reading(self, stateful: Iterable[str], *, limited: bool) -> None:
        if self.reads_all_again:
            self.notice(
                f"Data({self.name}=…): a shuffle is before a cache(), a finite repeat() or in a "
                "concatenate(), so its order in one epoch depends on the epochs before; a "
                "resumed trial reads all of them again. To avoid this, shuffle after these"
            )
        elif any("PyFunc" in op for op in stateful):
            self.notice(
                f"Data({self.name}=…): Python functions of this dataset are called again from the beginning "
                "of an epoch when a trial resumes, so they must return the same elements each time"
            )
        elif self.endless and not limited:
            self.notice(
                f"Data({self.name}=…): a resumed trial reads all earlier batches of an endless dataset "
                "again. To avoid this, leave out the repeat(): steps_per_epoch continues from pass to "
                "pass by itself"
            )

    def share(self, other: TfDataSource) -> bool:
        """Draw the seeds of shuffles that both sources contain in one order; return whether it can be saved.

        It can if each pass of both is read to its end before the other's next one begins.
        """
        sources = (self, other)
        if any(
            each.endless or each.is_read_again or each.reads_all_again or each._rewinding
            for each in sources
        ):
            return False
        self._shared = other._shared = _SharedShuffles(sources)
        return True

    @property
    def steps(self) -> int | None:
        return None if self._cardinality < 0 else self._cardinality

    @property
    def endless(self) -> bool:
        return self._cardinality == _INFINITE

    def spec(self) -> BatchSpec:
        """Return the form of the batches, as the dataset declares it."""
        return BatchSpec(self._dataset.element_spec, self.name)

    def open(self, pass_: int, step: int) -> Iterator[Any]:
        """Return the batches of ``pass_`` from ``step`` on; a reshuffling dataset needs ascending passes."""
        self._open = self._iterator_of(pass_)
        self.drop(self._open, step, "the dataset")
        opened: Iterator[Any] = self._open
        return opened

    def capture(self, name: str, tensors: Tensors) -> Json:
        del name, tensors
        state: dict[str, Json] = {}
        if self._processors is not None:
            state["processors"] = self._processors
        if self._shared is not None:
            state["draws"] = self._shared.draws
        return state

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name, tensors
        self._open = None
        was = saved.get("processors", self._processors)
        if was != self._processors:
            msg = (
                f"Data({self.name}=…): an interleave(…) without cycle_length read {was} inputs "
                "at once where the checkpoint was written, one for each processor, and would "
                f"read {self._processors} here, in another order; resume on a machine with {was} "
                "processors, or begin a new study with cycle_length=…"
            )
            raise RestoreError(msg)
        if self._shared is not None:
            if "draws" not in saved:
                msg = (
                    f"Data({self.name}=…): the checkpoint has no order of the seeds that training and "
                    "validation data draw from their common shuffle; the data were made in another way "
                    "when it was written: undo the change"
                )
                raise RestoreError(msg)
            self._shared.restore(saved["draws"])

    def _iterator_of(self, pass_: int) -> Any:
        """Return a new iterator of ``pass_``, after creating those of all earlier passes."""
        if not self.reshuffling:
            return iter(self._dataset)
        if self._made > pass_:
            msg = (
                f"Data({self.name}=…): pass {pass_} of a reshuffling dataset was requested after "
                f"pass {self._made - 1}; passes must be requested in ascending order"
            )
            raise DataError(msg)
        self._leave_open_pass(pass_)
        if self._shared is not None:
            self._shared.catch_up(self, pass_)
        while self._made < pass_:
            self._pass_over()
        self._count_pass()
        if self._rewinding is not None:
            self._rewinding.begin_pass()
        return iter(self._dataset)

    def _leave_open_pass(self, pass_: int) -> None:
        """Draw exactly the seeds of the passes before ``pass_``."""
        left, self._open = self._open, None
        if self.reads_all_again and left is not None:
            _exhaust(left)
        if self.reads_all_again and left is None and self._made < pass_:
            self.notice(f"Data({self.name}=…): reading {pass_} earlier passes again")

    def _count_pass(self) -> None:
        self._made += 1
        if self._shared is not None:
            self._shared.drawn_by(self)

    def _pass_over(self) -> None:
        """Draw a pass's seeds without reading it, if possible."""
        self._count_pass()
        if self._rewinding is not None:
            self._rewinding.begin_pass()
            return
        iterator = iter(self._dataset)
        if self.reads_all_again:
            _exhaust(iterator)
        for part in self._made_late:
            iter(part)

    def _check_batched(self, dataset: Any) -> None:
        for spec in tf.nest.flatten(dataset.element_spec):
            shape = getattr(spec, "shape", None)
            if shape is not None and shape.rank == 0:
                msg = (
                    f"Data({self.name}=…): the dataset's elements are single samples, {spec}; "
                    "call .batch(…) on it"
                )
                raise DataError(msg)

    def _reshuffles(self, node: Any) -> bool:
        kind = type(node).__name__
        if kind not in SEEDED:
            return False
        if not np.any(node._seed) and not np.any(node._seed2):
            msg = (
                f"Data({self.name}=…): {kind.strip('_')} has no seed, so TensorFlow draws one "
                "that cannot be saved; make the dataset inside the data factory, where the "
                "trial's seed is set, or give it seed=…"
            )
            raise UncapturableError(msg)
        return draws_new_seeds(node)

    def _stateful_ops(self, parts: Iterable[Any]) -> set[str]:
        """Return the ops of functions that have state or call Python."""
        found = set()
        for node in parts:
            refuse_captured_shuffle(node, self.name)
            for function in node._functions():
                for op in ops(function.function.graph.as_graph_def()):
                    refuse_unseeded(op, node, self.name)
                    definition = op_def_registry.get(op.op)
                    stateful = definition is not None and definition.is_stateful
                    if stateful and "Dataset" not in op.op and op.op not in _HARMLESS:
                        found.add(op.op)
        return found


class _SharedShuffles:
    """Order in which two sources draw seeds of the shuffles that both contain.

    Attributes:
        draws: A character for each iterator that was made: the index of its source.
    """

    def __init__(self, sources: tuple[TfDataSource, TfDataSource]) -> None:
        self._sources = sources
        self._before = ""
        self.draws = ""

    def drawn_by(self, source: TfDataSource) -> None:
        """Record that an iterator of ``source`` is made."""
        self.draws += str(self._sources.index(source))

    def restore(self, draws: str) -> None:
        """Prepare for making the iterators of ``draws`` again."""
        self._before = draws

    def catch_up(self, source: TfDataSource, pass_: int) -> None:
        """Draw the seeds before ``pass_`` of ``source``, after the passes of both were left."""
        for each in self._sources:
            each._leave_open_pass(each._made)
        before, self._before = self._before, ""
        for index in before:
            drawing = self._sources[int(index)]
            if drawing is source and source._made == pass_:
                return
            drawing._pass_over()


def _processors() -> int:
    """Return the number of processors that TensorFlow uses: those on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exhaust(iterator: Any) -> None:
    for _ in iterator:
        pass
