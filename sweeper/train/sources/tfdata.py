"""Source of a ``tf.data.Dataset``: the iterator is serialized if possible, otherwise batches are skipped.

What makes this hard, and was measured with TensorFlow 2.21:

- A reshuffling ``shuffle`` draws a new seed from a generator in the dataset whenever an iterator
  creates it. So pass p's order depends on how many iterators were made before; a fresh process
  therefore makes p iterators that it drops, and the order is a function of the dataset's seed and
  p. What stands before another shuffle gets its iterator when the pass is first read, so it is
  given the dropped ones by itself.
- A serialized iterator brings back its own elements exactly, and leaves those generators wrong
  for the *next* iterator once a shuffle inside it has run dry. So the state of the fresh iterator
  is kept, and put back before the next one is made.
- Where iterators are made in the course of a pass (a shuffle before a finite ``repeat``, in a
  ``concatenate``, before a ``cache``), neither helps: all earlier passes are read again, and the
  user is warned. Each is read to its very end before the next: a cache is kept only then.
- An ``interleave`` without ``cycle_length`` has an order for each number of processors.

Nothing has a position where an op keeps its state in its kernel, writes a variable, or calls Python;
these are read again from the beginning of the pass. A random op begins anew with each iterator, and
draws in order, since TensorFlow's determinism runs functions with state one by one. The variables are
put back to what they were when the pass was opened, as is what the Python functions keep.

A reshuffling node draws a seed whenever an iterator of it is made. Under a ``repeat`` that is in
the course of a pass, and TensorFlow reads ahead: how many seeds were drawn when a pass is given up
depends on the clock. So the seeds are put back before each pass to where they were when the pass
before began, and each pass draws one of every node. How far any pass was read then changes nothing.

Datasets are nodes of a graph in Python, and functions that they call are graphs of ops. The names
of the nodes' classes are TensorFlow 2.21's own; one that is not known is taken to make the
iterators of its inputs at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_dataset_ops

from sweeper.errors import DataError, RestoreError, UncapturableError
from sweeper.train.codec import Json, Tensors
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
"""Datasets whose iterator makes its inputs' iterators when it is made."""

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


def made_within(dataset: Any, reshuffling: set[int]) -> bool:
    """Return whether an iterator of a reshuffling node may be made during a pass."""
    if type(dataset).__name__ in _ONCE:
        return any(made_within(part, reshuffling) for part in dataset._inputs())
    return any(id(node) in reshuffling for node in nodes(dataset))


def made_when_read(dataset: Any) -> Iterator[Any]:
    """Yield the inputs whose iterator a shuffle makes at its first read, if that draws seeds."""
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
    """Return whether a part of it is repeated endlessly, whatever its cardinality."""
    return any(
        type(node).__name__ == "_RepeatDataset" and int(node._count) < 0 for node in nodes(dataset)
    )


def sized_by_processors(node: Any) -> bool:
    """Return whether it interleaves as many inputs as the machine has processors."""
    return type(node).__name__ in _INTERLEAVES and int(node._cycle_length) == _AUTOTUNE


def ops(graph: Any) -> Iterator[Any]:
    """Yield the ops of a ``GraphDef`` and its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


_WRITES = ("Assign", "ScatterAdd", "ScatterUpdate", "RngReadAndSkip", "RngSkip", "TableInsert")


def refuse_captured_shuffle(node: Any, name: str) -> None:
    """Refuse a function of a dataset that reads a reshuffling dataset made outside of it.

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
    """Refuse a random op without a seed, which draws other numbers in each process.

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
    """Control of the seeds of reshuffling nodes at the beginning of each pass.

    Args:
        parts: The reshuffling nodes.
        name: What the user calls these data, for errors.
    """

    def __init__(self, parts: Iterable[Any], name: str) -> None:
        self._parts = tuple(parts)
        self._name = name
        self._states: list[Any] = []

    def begin_pass(self) -> None:
        """Set the seeds for the next pass, wherever the last one ended."""
        for part, state in zip(self._parts, self._states, strict=False):
            deserialize(iter(part), state, self._name)
        self._states = [serialized(iter(part)) for part in self._parts]


def rewinding_for(dataset: Any, parts: Mapping[int, Any], name: str) -> Rewinding | None:
    """Return the control of the seeds of ``dataset``; None if each pass has to be read to its end.

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
    """Restore an iterator from ``state``: the result of `serialized`, or its bytes.

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


_HARMLESS = frozenset(
    {"Assert", "If", "LookupTableFind", "LookupTableFindV2", "StatefulPartitionedCall", "While"}
)
_INFINITE = -1
_LARGE_BYTES = 64 << 20


class TfDataSource:
    """Source of a dataset, in the dataset's own order.

    Args:
        dataset: Its elements are batches: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        name: What the user calls these data, for errors.
        class_weight: Class index to weight; None for none.
        notice: Called when a resume will read data again, and how much.
        limit: Batches that are read of a pass at most, where each reading begins a new pass; None
            where passes are read to their end.

    Raises:
        DataError: The elements are no batches, or what a limited pass leaves behind depends on how
            far TensorFlow has read ahead.
        UncapturableError: An op in it draws or writes state that no checkpoint can reach, or a
            shuffle has no seed at all.
    """

    by_epoch = False

    def __init__(
        self,
        dataset: Any,
        *,
        name: str,
        class_weight: Mapping[int, float] | None,
        notice: Callable[[str], None],
        limit: int | None = None,
    ) -> None:
        self._name = name
        self._notice = notice
        self._check_batched(dataset)
        parts = list(nodes(dataset))
        if class_weight is not None:
            dataset = dataset.map(weigh_classes_of(class_weight, name))
        self._dataset = dataset
        self._cardinality = int(dataset.cardinality())
        self.reshuffling = {id(node): node for node in parts if self._reshuffles(node)}
        """The nodes that draw a new seed for every iterator, by identity."""
        writing = {id(node): written_by(node) for node in parts}
        self.written: dict[int, Any] = {k: v for each in writing.values() for k, v in each.items()}
        """The TensorFlow variables that its functions may write ahead of the training, by identity."""
        moved = {key for key, written in writing.items() if written}
        within = made_within(dataset, set(self.reshuffling))
        in_part = limit is not None and not 0 <= self._cardinality <= limit
        self._rewinding = (
            rewinding_for(dataset, self.reshuffling, name) if within and in_part else None
        )
        self._replays = within and not self.endless and self._rewinding is None
        stateful = self._stateful_ops(parts)
        if self.written and (in_part or self._replays or cached_order(dataset, moved)):
            msg = (
                f"Data({name}=…): a function of this dataset writes a variable (for example of a "
                "Keras layer or generator with random state), and is not called exactly once for "
                "each element of an epoch: a cache() keeps its results, a shuffle precedes a "
                "cache() or repeat(), or validation_steps ends an iteration early. Call cache() "
                "before it, shuffle after repeat(), add a take(…) at the end, or put the layer "
                "into the model"
            )
            raise UncapturableError(msg)
        # A batch() lets go of the shuffle before it that has run dry, and TensorFlow then saves none
        # of the shuffle's seeds: the pass after is drawn wrong. Which step that is depends on how
        # far tf.data has read ahead. Reading again from the beginning is slow, and exact.
        goes_on_wrong = self.endless and bool(self.reshuffling) and self._rewinding is None
        self._captures = not (stateful or self._replays or goes_on_wrong or self._rewinding)
        self._processors = _processors() if any(map(sized_by_processors, parts)) else None
        self._calls_python = bool(stateful)
        if self._replays:
            notice(
                f"Data({name}=…): a shuffle is before a cache(), a finite repeat() or in a "
                "concatenate(), so its order in one epoch depends on the epochs before; a "
                "resumed trial reads all of them again. To avoid this, shuffle after these"
            )
        elif stateful:
            causes = sorted(set().union(*stateful.values()))
            notice(
                f"Data({name}=…): TensorFlow cannot save the position of a dataset with "
                f"{', '.join(sorted(stateful))} ({' and '.join(causes)}); a resumed epoch reads "
                "it again from its beginning, so it must give the same elements each time"
            )
        elif goes_on_wrong:
            notice(
                f"Data({name}=…): TensorFlow cannot save the position of an endless dataset that "
                "is reshuffled in each pass; a resumed trial reads all earlier batches again. To "
                "avoid this, leave out the repeat(): steps_per_epoch continues from pass to pass "
                "by itself"
            )
        if self._processors is not None:
            notice(
                f"Data({name}=…): an interleave(…) without cycle_length reads as many inputs at "
                f"once as there are processors ({self._processors} here), so its order depends on "
                "that number, and a trial resumes only with the same number; give cycle_length=…"
            )
        self._made = 0
        self._made_late = [] if self._replays else list(made_when_read(dataset))
        self._undo: list[tuple[Any, Any]] = []
        self._open: TfDataPass | None = None
        self._restored: tuple[int, Any] | None = None

    @property
    def steps(self) -> int | None:
        return None if self._cardinality < 0 else self._cardinality

    @property
    def is_read_again(self) -> bool:
        """Return whether a resume reads the batches before it again, by calling Python functions."""
        return self._calls_python

    @property
    def reads_all_again(self) -> bool:
        """Return whether it reads all earlier passes as well."""
        return self._replays

    @property
    def reads_ahead(self) -> bool:
        """Return whether TensorFlow's threads read it ahead of the training."""
        return self._calls_python

    @property
    def endless(self) -> bool:
        return self._cardinality == _INFINITE

    def spec(self) -> BatchSpec:
        """Return the form of the batches, as the dataset declares it."""
        return BatchSpec(self._dataset.element_spec, self._name)

    def open(self, pass_: int, step: int) -> TfDataPass:
        """Return the batches, as `DataSource.open`; passes of a reshuffling dataset in ascending order."""
        iterator = self._iterator_of(pass_)
        restored, self._restored = self._restored, None
        if step and restored is not None and restored[0] == pass_:
            if self.reshuffling:
                self._undo = [(self._dataset, serialized(iterator))]
                self._undo += [(part, serialized(iter(part))) for part in self._made_late]
            deserialize(iterator, restored[1], self._name)
        elif step:
            self._skip(iterator, step)
        self._open = TfDataPass(iterator, pass_)
        return self._open

    def capture(self, name: str, tensors: Tensors) -> Json:
        position = self._position(name, tensors)
        if self._processors is None:
            return position
        return {**(position or {}), "processors": self._processors}

    def _position(self, name: str, tensors: Tensors) -> dict[str, Json] | None:
        """Return the position of the open iterator, if TensorFlow can save it."""
        opened = self._open
        if not self._captures or opened is None or opened.closed:
            return None
        try:
            state = tf.io.serialize_tensor(serialized(opened.iterator)).numpy()
        except tf.errors.FailedPreconditionError as error:
            self._captures = False
            self._notice(
                f"Data({self._name}=…): TensorFlow cannot save the position of this dataset "
                f"({error.message}); a resumed epoch reads it again from its beginning"
            )
            return None
        if len(state) > _LARGE_BYTES:
            self._notice(
                f"Data({self._name}=…): each checkpoint inside an epoch contains {len(state):,} "
                "bytes of the dataset's shuffle, cache and prefetch buffers; use smaller buffers "
                "for smaller checkpoints"
            )
        tensors[f"{name}/iterator"] = np.frombuffer(state, np.uint8)
        return {"pass": opened.pass_, "tensor": f"{name}/iterator"}

    def restore(self, name: str, saved: Json, tensors: Mapping[str, Any]) -> None:
        del name
        self._open = None
        self._restored = None
        saved = {} if saved is None else saved
        was = saved.get("processors", self._processors)
        if was != self._processors:
            msg = (
                f"Data({self._name}=…): an interleave(…) without cycle_length read {was} inputs "
                "at once where the checkpoint was written, one for each processor, and would "
                f"read {self._processors} here, in another order; resume on a machine with {was} "
                "processors, or begin a new study with cycle_length=…"
            )
            raise RestoreError(msg)
        if "pass" in saved:
            self._restored = (saved["pass"], np.asarray(tensors[saved["tensor"]]).tobytes())

    def describe(self) -> str:
        if self.endless:
            steps = "endless"
        else:
            steps = "unknown length" if self.steps is None else f"{self.steps:,} batches"
        if self._captures:
            position = "iterator checkpointed"
        else:
            position = "every epoch read again" if self._replays else "epoch read again"
        return f"tf.data.Dataset, {steps}, {position}"

    def _iterator_of(self, pass_: int) -> Any:
        """Return a new iterator of ``pass_``, after making those of all earlier passes."""
        if not self.reshuffling:
            return iter(self._dataset)
        if self._made > pass_:
            msg = (
                f"Data({self._name}=…): pass {pass_} of a reshuffling dataset was requested after "
                f"pass {self._made - 1}; passes must be requested in ascending order"
            )
            raise DataError(msg)
        self._leave_open_pass(pass_)
        while self._made < pass_:
            self._pass_over()
        self._made += 1
        if self._rewinding is not None:
            self._rewinding.begin_pass()
        return iter(self._dataset)

    def _leave_open_pass(self, pass_: int) -> None:
        """Draw exactly the seeds of the passes before ``pass_``."""
        left, self._open = self._open, None
        if self._replays and left is not None:
            _exhaust(left.iterator)
        if self._replays and left is None and self._made < pass_:
            self._notice(f"Data({self._name}=…): reading {pass_} earlier passes again")
        # An iterator that still reads ahead would draw seeds meanwhile.
        del left
        for dataset, state in self._undo:
            deserialize(iter(dataset), state, self._name)
        self._undo = []

    def _pass_over(self) -> None:
        """Draw a pass's seeds without reading it, if possible."""
        self._made += 1
        if self._rewinding is not None:
            self._rewinding.begin_pass()
            return
        iterator = iter(self._dataset)
        if self._replays:
            _exhaust(iterator)
        for part in self._made_late:
            iter(part)

    def _skip(self, iterator: Any, step: int) -> None:
        self._notice(f"Data({self._name}=…): to resume, {step:,} batches are read and dropped")
        skipped = sum(1 for _ in zip(range(step), iterator, strict=False))
        if skipped < step:
            msg = (
                f"Data({self._name}=…): the dataset yielded {skipped:,} batches now and at least "
                f"{step:,} before; it must yield the same in every pass"
            )
            raise DataError(msg)

    def _check_batched(self, dataset: Any) -> None:
        for spec in tf.nest.flatten(dataset.element_spec):
            shape = getattr(spec, "shape", None)
            if shape is not None and shape.rank == 0:
                msg = (
                    f"Data({self._name}=…): the dataset's elements are single samples, {spec}; "
                    "call .batch(…) on it"
                )
                raise DataError(msg)

    def _reshuffles(self, node: Any) -> bool:
        kind = type(node).__name__
        if kind not in SEEDED:
            return False
        if not np.any(node._seed) and not np.any(node._seed2):
            msg = (
                f"Data({self._name}=…): {kind.strip('_')} has no seed, so TensorFlow draws one "
                "that cannot be saved; make the dataset inside the data factory, where the "
                "trial's seed is set, or give it seed=…"
            )
            raise UncapturableError(msg)
        return kind == "_RandomDataset" or bool(node._reshuffle_each_iteration)

    def _stateful_ops(self, parts: Iterable[Any]) -> dict[str, set[str]]:
        """Return the ops that prevent TensorFlow from saving a position.

        Returns:
            Kinds of ops, and what each comes from, in words.
        """
        found: dict[str, set[str]] = {}
        for node in parts:
            refuse_captured_shuffle(node, self._name)
            for function in node._functions():
                for op in ops(function.function.graph.as_graph_def()):
                    refuse_unseeded(op, node, self._name)
                    definition = op_def_registry.get(op.op)
                    if (
                        definition is not None
                        and definition.is_stateful
                        and "Dataset" not in op.op
                        and op.op not in _HARMLESS
                    ):
                        found.setdefault(op.op, set()).add(_origin(op))
        return found


def _origin(op: Any) -> str:
    """Return the user's construct from which an op with state comes."""
    if "PyFunc" in op.op:
        return "a Python function"
    if op.op in STATEFUL_RANDOM:
        return "a random op"
    # A layer's call is a scope of names.
    scope, found, _ = op.name.partition("/")
    return f"state of {scope!r}" if found else "a variable"


class TfDataPass:
    """An open iterator; batches are drawn from ``iterator`` by a graph, or one by one from this object."""

    def __init__(self, iterator: Any, pass_: int) -> None:
        self.iterator = iterator
        self.pass_ = pass_
        self.closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.iterator)

    def close(self) -> None:
        """End the pass, after which it has no position."""
        self.closed = True


def _processors() -> int:
    """Return TensorFlow's number of processors, on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exhaust(iterator: Any) -> None:
    for _ in iterator:
        pass
