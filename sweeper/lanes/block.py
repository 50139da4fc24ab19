"""A block of steps of all lanes at once, in one call of a graph.

The number of lanes is fixed: those that are not taken compute on scratch variables, so that a lane
alone and a lane in a full group run the same kernels on the same shapes. What a lane gives is then
a function of its own state, its batches and its place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sweeper.lanes.conversion import vectorized
from sweeper.lanes.step import LaneStep

_BLOCK_SECONDS = 0.2
"""See `sweeper.train.loop.loop`."""

_RESOURCE = tf.TensorSpec((), tf.resource)


@dataclass(frozen=True, slots=True, eq=False)
class StepRequest:
    """Request of one lane for a block of steps.

    Attributes:
        step: The lane's own.
        arrays: The leaves of its data, as tensors.
        indices: Of the samples of its steps, a row a step.
    """

    step: LaneStep
    arrays: Sequence[Any]
    indices: npt.NDArray[np.int64]


class FusedStep:
    """The step of one graph, over a fixed number of lanes.

    Args:
        step: Of any lane; the others have the same signature.
        lanes: How many.

    Attributes:
        block_steps: Steps that take about `_BLOCK_SECONDS`, as the last block went.
        unrolled: The types of the operations that run once a lane, and how many there are.
    """

    def __init__(self, step: LaneStep, lanes: int) -> None:
        self.lanes = lanes
        self.block_steps = 1
        self.unrolled: dict[str, int] = {}
        self._forms = [(v.shape, tf.as_dtype(v.dtype)) for v in step.variables]
        self._scratch = [tf.Variable(v.value.read_value()) for v in step.variables]
        self._scratch_handles = [variable.handle for variable in self._scratch]
        self._joined: list[Sequence[Any]] = []
        self._tables: list[Any] = []
        self._starts: dict[int, int] = {}
        concrete, count = step.concrete, len(step.variables)
        self._step = step
        self._called = False

        zeros = [tf.zeros((lanes, *each.shape), each.dtype) for each in concrete.outputs[count:]]

        def block(handles: Sequence[Any], tables: Sequence[Any], indices: Any) -> Any:
            read = [
                tf.stack([self._read(handles, lane, at) for lane in range(lanes)])
                for at in range(count)
            ]

            def body(k: Any, *carried: Any) -> Any:
                batch = [tf.gather(table, indices[k]) for table in tables]
                new = vectorized(concrete, [*carried[:count], *batch], self.unrolled)
                kept = zip(new, carried, strict=True)
                return (k + 1, *(tf.ensure_shape(each, before.shape) for each, before in kept))

            carried = tf.while_loop(
                lambda k, *_: k < tf.shape(indices)[0],
                body,
                (tf.constant(0), *read, *zeros),
                parallel_iterations=1,
            )[1:]
            for at, stacked in enumerate(carried[:count]):
                for lane, value in enumerate(tf.unstack(stacked, num=lanes)):
                    handle = handles[lane * count + at]
                    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            return list(carried[count:])

        leaves = concrete.structured_input_signature[0][count:]
        tables = [tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        signature = [
            [_RESOURCE] * (lanes * count),
            tables,
            tf.TensorSpec((None, lanes, None), tf.int64),
        ]
        self._block: Any = tf.function(block, input_signature=signature, autograph=False)
        self._block.get_concrete_function()

    def run(self, requests: Mapping[int, StepRequest]) -> Mapping[int, Mapping[str, Any]]:
        """Run the steps of all ``requests``; each asks for the same number, with batches of one size.

        Afterwards the lanes' own variables have the new values; where it raises, all have the old.

        Returns:
            What the last step of each lane reports.
        """
        indices = next(iter(requests.values())).indices
        rows = np.zeros((indices.shape[0], self.lanes, indices.shape[1]), np.int64)
        tables, offsets = self._arrays(requests)
        handles: list[Any] = []
        for lane in range(self.lanes):
            request = requests.get(lane)
            if request is None:
                handles += self._scratch_handles
                continue
            rows[:, lane] = request.indices + offsets[id(request.arrays)]
            handles += request.step.handles
        began = time.perf_counter()
        reported = [each.numpy() for each in self._block(handles, tables, tf.constant(rows))]
        self._measure(len(rows), time.perf_counter() - began)
        names = self._step.logs
        return {
            lane: {name: each[lane] for name, each in zip(names, reported, strict=True)}
            for lane in requests
        }

    def _measure(self, steps: int, seconds: float) -> None:
        """Measure how many steps fit into a block; a short block only shows that there may be more."""
        fit = max(1, int(_BLOCK_SECONDS * steps / seconds))
        if not self._called:
            self._called = True  # the first call has prepared the graph
        elif steps >= self.block_steps or fit > self.block_steps:
            self.block_steps = fit

    def _read(self, handles: Sequence[Any], lane: int, at: int) -> Any:
        shape, dtype = self._forms[at]
        value = tf.raw_ops.ReadVariableOp(
            resource=handles[lane * len(self._forms) + at], dtype=dtype
        )
        return tf.ensure_shape(value, shape)

    def _arrays(self, requests: Mapping[int, StepRequest]) -> tuple[list[Any], dict[int, int]]:
        """Return the lanes' arrays one after another, each once, and where each lane's begin."""
        distinct = list({id(each.arrays): each.arrays for each in requests.values()}.values())
        if {*map(id, distinct)} != {*map(id, self._joined)}:
            starts = np.cumsum([0, *(int(arrays[0].shape[0]) for arrays in distinct[:-1])])
            leaves = list(zip(*distinct, strict=True))
            # Held, so that their identities stay theirs.
            self._joined = distinct
            self._tables = [tf.concat(leaf, 0) if len(leaf) > 1 else leaf[0] for leaf in leaves]
            self._starts = {id(a): int(s) for a, s in zip(distinct, starts, strict=True)}
        return self._tables, self._starts
