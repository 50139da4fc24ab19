"""Sums of three or more terms, added in the order in which they are given.

TensorFlow's kernel ``AddN`` writes its result into the buffer of the first term that no other operation needs
any more, and adds that term first. Which term that is depends on which operations have ended by then, so two
runs of one graph can differ in the last bit, with op determinism, too. Such a kernel comes from gradients of
a tensor that is used three times, from ``tf.add_n``, and from TensorFlow's arithmetic optimizer, which makes
one of ``a + (b + c)``. ``AccumulateNV2`` adds terms as they come.

Here a sum is made of sums of two, whose order changes no bit, in the order in which ``AddN`` adds terms that
are all needed elsewhere; and sums are marked so that the optimizer leaves them as they are written.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tensorflow.core.framework.attr_value_pb2 import AttrValue

from sweeper.errors import UncapturableError
from sweeper.train.randomness.interception import (
    ACCUMULATE_N,
    ADD_N,
    GRAPH_OPERATION,
    Replacements,
)

_UNORDERED = frozenset({"AddN", "AccumulateNV2"})
_SUMS = frozenset({"Add", "AddN", "AddV2"})

_REWRITTEN = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"
"""Attribute of the operations that the arithmetic optimizer has rewritten, and does not look at again."""

_WIDTH = 8
"""Terms that ``AddN`` adds to each other before it adds them to the result."""


def ordered_sums() -> Replacements:
    """Yield what makes sums, with its replacements."""
    add_n = ADD_N.current
    create = GRAPH_OPERATION.current

    def add_all(inputs: Sequence[Any], name: str | None = None) -> Any:
        if len(inputs) <= 2:
            return add_n(inputs, name)
        return _added(inputs, lambda one, other: add_n([one, other], name))

    def accumulate(inputs: Sequence[Any], shape: Any, name: str | None = None) -> Any:
        del shape
        return add_all(inputs, name)

    def create_marked(
        graph: Any, op_type: str, inputs: Sequence[Any], *others: Any, **options: Any
    ) -> Any:
        if op_type in _UNORDERED and len(inputs) > 2:
            raise UncapturableError(
                f"tf.raw_ops.{op_type} adds {len(inputs)} tensors in an order that depends on timing, so a "
                "resumed trial would differ in the last bits; use tf.add_n"
            )
        operation = create(graph, op_type, inputs, *others, **options)
        if op_type in _SUMS:
            operation._set_attr(_REWRITTEN, AttrValue(b=True))
        return operation

    yield ADD_N, add_all
    yield ACCUMULATE_N, accumulate
    yield GRAPH_OPERATION, create_marked


def _added(terms: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Add ``terms`` with the associativity of ``AddN``."""
    rest = len(terms) % _WIDTH
    first = rest + _WIDTH if rest <= 1 else rest
    result = reduce(add, terms[:first])
    for start in range(first, len(terms), _WIDTH):
        result = add(result, reduce(add, terms[start : start + _WIDTH]))
    return result
