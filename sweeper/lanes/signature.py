"""Signature of a traced step; two lanes are fused if their signatures are equal.

Two steps are one graph where their operations, attributes, constants and connections are the same,
in the same order. Names are not compared: they hold layers' counters, which differ between models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_NAMES = frozenset({"_class", "_output_shapes", "_xla_inferred_shapes", "container", "shared_name"})
"""Attributes that hold names, or shapes that follow from the inputs."""


def signature_of(concrete: Any) -> str:
    """Return the digest of a concrete function: of its graph, and of the arrays that it took in.

    Args:
        concrete: A ``ConcreteFunction`` that takes in no variable from outside.
    """
    graph = concrete.graph.as_graph_def()
    library = {each.signature.name: each for each in graph.library.function}
    digest = hashlib.sha256(_nodes(graph.node, {}, library, {}).encode())
    for outside, _ in concrete.graph.captures:
        array = np.asarray(outside)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    names = {node.name: at for at, node in enumerate(graph.node)}
    outputs = [(names[each.op.name], each.value_index) for each in concrete.graph.outputs]
    digest.update(repr(outputs).encode())
    digest.update(repr([(spec.shape, spec.dtype) for spec in concrete.inputs]).encode())
    return digest.hexdigest()


def operations(concrete: Any) -> set[str]:
    """Return the types of the operations of a concrete function, and of all that it calls."""
    graph: tf.compat.v1.GraphDef = concrete.graph.as_graph_def()
    found = {node.op for node in graph.node}
    for function in graph.library.function:
        found |= {node.op for node in function.node_def}
    return found


def _nodes(
    nodes: Iterable[Any],
    arguments: Mapping[str, int],
    library: Mapping[str, Any],
    known: dict[str, str],
) -> str:
    """Return the nodes in a form without names."""
    nodes = list(nodes)
    names = {**arguments, **{node.name: at for at, node in enumerate(nodes)}}
    lines = []
    for node in nodes:
        inputs = [_reference(each, names) for each in node.input]
        attributes = [
            f"{name}={_attribute(value, library, known)}"
            for name, value in sorted(node.attr.items())
            if name not in _NAMES
        ]
        lines.append(f"{node.op}({','.join(inputs)};{','.join(attributes)})")
    return "\n".join(lines)


def _reference(given: str, names: Mapping[str, int]) -> str:
    """Return an input such as ``^dense/MatMul`` or ``dense/MatMul:product:0`` without its name."""
    control = given.startswith("^")
    name, _, port = given.lstrip("^").partition(":")
    return f"{'^' if control else ''}{names[name]}:{port}"


def _attribute(value: Any, library: Mapping[str, Any], known: dict[str, str]) -> str:
    called = [value.func] if value.HasField("func") else list(value.list.func)
    if called:
        return ",".join(_function(each.name, library, known) for each in called)
    return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()


def _function(name: str, library: Mapping[str, Any], known: dict[str, str]) -> str:
    if name not in known:
        known[name] = ""  # functions do not call themselves
        function = library.get(name)
        if function is None:
            known[name] = name
            return name
        arguments = {each.name: -1 - at for at, each in enumerate(function.signature.input_arg)}
        names = {**arguments, **{node.name: at for at, node in enumerate(function.node_def)}}
        outputs = [
            _reference(function.ret[each.name], names) for each in function.signature.output_arg
        ]
        nodes = _nodes(function.node_def, arguments, library, known)
        known[name] = hashlib.sha256(f"{nodes}\n{outputs}".encode()).hexdigest()
    return known[name]
