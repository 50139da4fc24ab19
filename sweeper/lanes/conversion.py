"""Exact vectorization of one function over stacked lanes, built on TensorFlow's own.

`tf.vectorized_map` requests a function of one lane into a function of all. Three kinds of its
conversions would let a lane's result depend on its company, or are missing. They are replaced while
a function is converted: the operation is created once a lane, and the results are stacked.

- Random operations: TensorFlow converts the older ones with one stream for all, the newer not at all.
- Conditions, of branches and of loops, that differ between lanes: TensorFlow sorts the lanes by their
  branch, so the shape that a kernel sees, and with it the last bits, would depend on the other lanes.
- Operations without a conversion, and those whose conversion fails, such as a convolution whose
  filters differ.

All private names of TensorFlow that lanes need are in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from sweeper.errors import LanesError
from sweeper.train.randomness.tracing import STATEFUL_RANDOM

_PFOR: Any = pfor

_ONE_BY_ONE = frozenset(
    {
        "Conv2DBackpropFilter",
        "StatelessMultinomial",
        "StatelessParameterizedTruncatedNormal",
        "StatelessRandomBinomial",
        "StatelessRandomGammaV2",
        "StatelessRandomGammaV3",
        "StatelessRandomGetAlg",
        "StatelessRandomGetKeyCounter",
        "StatelessRandomGetKeyCounterAlg",
        "StatelessRandomNormal",
        "StatelessRandomNormalV2",
        "StatelessRandomPoisson",
        "StatelessRandomUniform",
        "StatelessRandomUniformFullInt",
        "StatelessRandomUniformFullIntV2",
        "StatelessRandomUniformInt",
        "StatelessRandomUniformIntV2",
        "StatelessRandomUniformV2",
        "StatelessShuffle",
        "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
    }
)
"""Operations that are created once a lane although TensorFlow may have a conversion, of which one
is a loop over the lanes."""

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})

_LOOPS = frozenset({"While", "StatelessWhile"})


_SHAPED_BY_VALUES = frozenset(
    {
        *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff"),
        *("DynamicPartition", "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3"),
        *("NonMaxSuppressionV4", "NonMaxSuppressionV5", "DenseToSparseSetOperation"),
    }
)
"""Operations the shape of whose result is another one for other values."""


class _DiffersError(Exception):
    """The condition of a loop differs between lanes."""


def vectorized(
    function: Callable[..., Sequence[Any]], stacked: Sequence[Any], unrolled: dict[str, int]
) -> list[Any]:
    """Call ``function`` once for all lanes, in a graph.

    Args:
        function: Takes the tensors of one lane, and returns tensors.
        stacked: The same tensors of all lanes, stacked along their first axis.
        unrolled: Is given the types of the operations that were created once a lane, and how often.
    """
    lanes = int(stacked[0].shape[0])
    with _conversions(lanes, unrolled):
        results = tf.vectorized_map(lambda one: list(function(*one)), list(stacked), warn=False)
    return list(results)


@contextmanager
def _conversions(lanes: int, unrolled: dict[str, int]) -> Iterator[None]:
    """Replace TensorFlow's conversions while a function is converted."""
    registry: dict[str, Any] = _PFOR._pfor_converter_registry
    fallback = _PFOR._fallback_converter
    process = _PFOR.WhileV2._process_cond_stacked
    names = {*_ONE_BY_ONE, *_BRANCHES, *_LOOPS, *_CALLS, *STATEFUL_RANDOM}
    before: dict[str, Any] = {name: registry.get(name) for name in names}

    def unroll(given: Any, *_arguments: Any, **_options: Any) -> Any:
        unrolled[given.op_type] = unrolled.get(given.op_type, 0) + 1
        return _once_a_lane(given, lanes)

    def call(given: Any) -> Any:
        function = _called(given, "f")
        return unroll(given) if function is None else _inlined(given, function, lanes)

    def branch(given: Any) -> Any:
        return unroll(given) if given.input(0)[1] else before[given.op_type](given)

    def loop(given: Any) -> Any:
        if _called(given, "body") is None:
            return unroll(given)
        try:
            return before[given.op_type](given)
        except _DiffersError:
            return unroll(given)

    replaced: dict[str, Any] = {
        **dict.fromkeys(_CALLS, call),
        **dict.fromkeys(_ONE_BY_ONE, unroll),
        **dict.fromkeys(_BRANCHES, branch),
        **dict.fromkeys(_LOOPS, loop),
        **dict.fromkeys(STATEFUL_RANDOM, _refuse),
    }
    registry.update(replaced)
    _PFOR._fallback_converter = unroll
    _PFOR.WhileV2._process_cond_stacked = _differs
    try:
        yield
    finally:
        _PFOR._fallback_converter = fallback
        _PFOR.WhileV2._process_cond_stacked = process
        for name, converter in before.items():
            if converter is None:
                del registry[name]
            else:
                registry[name] = converter


def _once_a_lane(given: Any, lanes: int) -> list[Any]:
    """Create the operation once for each lane, and stack the results."""
    if any(tensor.dtype == tf.variant for tensor, stacked, _ in given.inputs if stacked):
        msg = (
            f"{given.op.name} ({given.op_type}) takes lists of tensors that cannot be parted by lane, so "
            "it cannot be fused; leave out lanes="
        )
        raise LanesError(msg)
    if given.op_type in _SHAPED_BY_VALUES:
        msg = (
            f"{given.op.name} ({given.op_type}) gives another shape for other values, so its results "
            "cannot be stacked; leave out lanes="
        )
        raise LanesError(msg)
    results = [
        _PFOR._create_op(
            given.op_type,
            [tensor[lane] if stacked else tensor for tensor, stacked, _ in given.inputs],
            [output.dtype for output in given.outputs],
            attrs=given.op.node_def.attr,
        ).outputs
        for lane in range(lanes)
    ]
    return [_PFOR.wrap(tf.stack(each), True) for each in zip(*results, strict=True)]


def _differs(*_arguments: Any) -> Any:
    raise _DiffersError


def _refuse(given: Any) -> Any:
    msg = f"{given.op.name} ({given.op_type}) draws from a state that its kernel hides"
    raise LanesError(msg)


def _called(given: Any, attribute: str) -> Any:
    """Return a function that the operation calls; None for one of TensorFlow 1, without a graph."""
    function = given.op.graph._get_function(given.get_attr(attribute).name)
    return function if hasattr(function, "graph") else None


def _inlined(given: Any, function: Any, lanes: int) -> list[Any]:
    """Convert the operations of a called function in place of the call."""
    outer = given.pfor
    converter = _PFOR.PFor(
        loop_var=outer.loop_var,
        loop_len=lanes,
        pfor_ops=function.graph.get_operations(),
        fallback_to_while_loop=True,
        all_indices=outer.all_indices,
        pfor_config=outer.pfor_config,
    )
    for placeholder, argument in zip(function.graph.inputs, given.inputs, strict=True):
        converter._add_conversion(placeholder, argument)
    outputs = function.graph.outputs[: len(function.function_type.flat_outputs)]
    return [converter._convert_helper(output) for output in outputs]
