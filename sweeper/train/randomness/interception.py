"""Functions of Python, NumPy, Keras and TensorFlow that are replaced while a trial is made and trained.

This table has all of them: what is replaced, and why no public function would do. A replacement is in effect
while its object is entered, in every thread of the process; what was there before is put back afterwards, in
reverse order. Importing this module fails if the installed versions do not have one of the functions.
"""

import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf
from numpy.random import bit_generator
from tensorflow.python.data.ops import structured_function
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_image_ops,
    gen_math_ops,
    gen_random_ops,
)


@dataclass(frozen=True)
class Replaceable:
    """A function, or a module of functions, that is replaced in its owner, a module or class."""

    owner: Any
    name: str
    why: str

    def __post_init__(self) -> None:
        if not hasattr(self.owner, self.name):
            raise ImportError(
                f"{self.owner.__name__} has no {self.name}, which sweeper replaces {self.why}; "
                "`sweeper doctor` shows the versions of Keras and TensorFlow that it supports"
            )

    @property
    def current(self) -> Any:
        return getattr(self.owner, self.name)


_UNSEEDED = "to seed generators that are made without a seed"
NUMPY_BITS = Replaceable(bit_generator, "randbits", _UNSEEDED)
PYTHON_SEED = Replaceable(random.Random, "seed", _UNSEEDED)
MODULE_SEED = Replaceable(random, "seed", _UNSEEDED)

_SYSTEM = "to name the user's lines that draw from the operating system"
SYSTEM_BYTES = Replaceable(os, "urandom", _SYSTEM)
SYSTEM_BYTES_OF_RANDOM = Replaceable(random, "_urandom", _SYSTEM)

DRAWN_SEED = Replaceable(
    context,
    "internal_operation_seed",
    "to know the seeds that TensorFlow draws, which are saved already",
)
STATEFUL_RANDOM = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
"""Stateful random ops of TensorFlow."""

_RANDOM = (
    "to give each call of an eager random operation seeds whose number can be saved, and to draw from a generator "
    "whose state is a variable, where a graph's kernel would draw"
)


def _function_of(op: str) -> Replaceable:
    name = re.sub("(?<!^)(?=[A-Z])", "_", op).lower()
    modules = (gen_candidate_sampling_ops, gen_image_ops, gen_random_ops)
    return Replaceable(
        next((m for m in modules if hasattr(m, name)), gen_random_ops), name, _RANDOM
    )


RANDOM_FUNCTIONS = {op: _function_of(op) for op in STATEFUL_RANDOM}
"""The functions that ``tf.random``, ``tf.image`` and ``tf.nn`` call, by op."""

RAW_RANDOM_FUNCTIONS = {op: Replaceable(tf.raw_ops, op, _RANDOM) for op in STATEFUL_RANDOM}

DATASET_FUNCTION = Replaceable(
    structured_function.StructuredFunctionWrapper,
    "__init__",
    "to leave the functions of datasets as they are, which have their own checks",
)
TRACE = Replaceable(func_graph, "func_graph_from_py_func", "to see which functions are traced")
CALL = Replaceable(
    atomic_function.AtomicFunction,
    "call_flat",
    "to refuse hidden random state before a function first runs",
)

_SUMS = "to add three or more terms in the order in which they are given"
GRAPH_OPERATION = Replaceable(func_graph.FuncGraph, "_create_op_internal", _SUMS)
ADD_N = Replaceable(gen_math_ops, "add_n", _SUMS)
ACCUMULATE_N = Replaceable(gen_math_ops, "accumulate_nv2", _SUMS)

Replacements = Iterable[tuple[Replaceable, Any]]


class Interception:
    """Context manager that replaces functions, which ``replacements`` returns on each entry."""

    def __init__(self, replacements: Callable[[], Replacements]) -> None:
        self._replacements = replacements
        self._before: list[list[tuple[Replaceable, Any]]] = []

    def __enter__(self) -> Self:
        replacements = list(self._replacements())
        # Reversed: if a function is replaced twice, the original is put back last.
        self._before.append(
            [(replaceable, replaceable.current) for replaceable, _ in reversed(replacements)]
        )
        _put(replacements)
        return self

    def __exit__(self, *_exception: object) -> None:
        _put(self._before.pop())


def _put(functions: Replacements) -> None:
    for replaceable, function in functions:
        setattr(replaceable.owner, replaceable.name, function)
