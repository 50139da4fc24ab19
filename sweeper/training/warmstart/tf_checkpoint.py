"""An object-based TensorFlow checkpoint, written by Keras 3, Keras 2, an Estimator or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.checkpoints.tensors import Array
from sweeper.errors import WarmStartError
from sweeper.training.warmstart.object_graph import ObjectGraph, Walked, walk
from sweeper.training.warmstart.options import WarmStart
from sweeper.training.warmstart.source import (
    Candidate,
    Matched,
    Stored,
    is_random_state,
    variables_of,
)

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OPTIMIZERS = ("optimizer", "_optimizer", "opt")
_BESIDE = (*_OPTIMIZERS, "save_counter")
_DEEPEST = 2
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
"""What TensorFlow raises for a file that is damaged."""
_IN_A_LIST = (
    "not in it: Keras 3 does not show TensorFlow what layers in lists and dictionaries hold; save such a model "
    "with save_weights"
)


class TensorFlowCheckpoint:
    """A checkpoint by its prefix.

    Raises:
        WarmStartError: It is damaged, or is no object-based checkpoint.
    """

    kind = "TensorFlow checkpoint"

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            self._shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
            graph = self._reader.get_tensor(_GRAPH) if _GRAPH in self._shapes else None
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        if graph is None:
            some = ", ".join(sorted(self._shapes)[:3]) or "no values"
            msg = (
                f"the warm start {prefix} is a TensorFlow 1 checkpoint, which files values by the "
                f"names of graph variables ({some}); expected an object-based one: load it into a "
                "model there, and write that with tf.train.Checkpoint or save_weights"
            )
            raise WarmStartError(msg)
        self._graph = ObjectGraph.parse(graph)
        self._root = 0

    def _damaged(self, error: Exception) -> WarmStartError:
        first = str(error).strip().partition("\n")[0]
        msg = (
            f"the warm start {self._prefix} cannot be read as a TensorFlow checkpoint ({first}); it "
            "may have been cut off, or one of its files is missing: copy it again"
        )
        return WarmStartError(msg)

    def match(self, model: Any, options: WarmStart) -> Matched:
        self._root = self._root_of(model, options)
        walked = walk(self._graph, self._root, model, options.rename)
        listed = variables_of(model)
        known = {id(v) for v in model.variables}
        # A tf.Variable of the user's is no variable of Keras's, and is in the checkpoint all the same.
        own = [v for i, v in walked.variables.items() if i not in known and i in walked.keys]
        candidates = []
        for variable in [*listed, *own]:
            key = walked.keys.get(id(variable))
            paths = walked.paths.get(id(variable), [])
            reason = "" if key or not paths else self._in_a_list(paths[0])
            name = getattr(variable, "path", None) or variable.name
            candidates.append(Candidate(variable, name, key, tuple(paths), reason))
        taken = {candidate.key for candidate in candidates}
        below = self._graph.values_below(self._root)
        extra = {
            key: path
            for key, path in below.items()
            if key not in taken and not is_random_state(path)
        }
        return Matched(tuple(candidates), extra, {**self._shown_keys(), **below})

    def _in_a_list(self, path: str) -> str:
        """Why a variable cannot be there, if it is below a list that the checkpoint lacks."""
        parts = path.split("/")
        for index, part in enumerate(parts):
            before = "/".join(parts[: index - 1])
            if part.isdigit() and index and self._graph.at(before, self._root) is not None:
                there = self._graph.at("/".join(parts[:index]), self._root)
                if there is None and not parts[index - 1].startswith("_"):
                    return _IN_A_LIST
        return ""

    def _root_of(self, model: Any, options: WarmStart) -> int:
        """Where the model is in the checkpoint.

        Raises:
            WarmStartError: Not where ``root`` says, or in more than one place.
        """
        if options.root is not None:
            node = self._graph.at(options.root)
            if node is None:
                names = ", ".join(sorted(self._graph.nodes[0].children)) or "nothing"
                msg = f"the warm start {self._prefix} has no {options.root!r}; it has {names}"
                raise WarmStartError(msg)
            return node
        wanted = {id(v): v for v in variables_of(model)}
        best: dict[frozenset[str], tuple[int, str]] = {}
        most = 0
        for node, path in self._objects_to_try():
            keys = self._fitting(walk(self._graph, node, model, options.rename), wanted)
            if not keys or len(keys) < most:
                continue
            if len(keys) > most:
                best, most = {}, len(keys)
            best.setdefault(keys, (node, path))
        if len(best) > 1:
            names = " or ".join(f"root={path!r}" for _, path in best.values())
            msg = (
                f"the warm start {self._prefix} has {len(best)} objects that the model "
                f"{model.name!r} fits equally; say which: {names}"
            )
            raise WarmStartError(msg)
        return next(iter(best.values()))[0] if best else 0

    def _objects_to_try(self) -> Iterator[tuple[int, str]]:
        """The objects that a model may have been saved as: the outermost, and what they hold."""
        seen, waiting = {0}, [(0, "", 0)]
        for node, path, depth in waiting:
            yield node, path
            for name, child in sorted(self._graph.nodes[node].children.items()):
                if depth < _DEEPEST and child not in seen and name not in _BESIDE:
                    seen.add(child)
                    waiting.append((child, f"{path}/{name}" if path else name, depth + 1))

    def _fitting(self, walked: Walked, wanted: dict[int, Any]) -> frozenset[str]:
        return frozenset(
            key
            for i, key in walked.keys.items()
            if i in wanted and tuple(wanted[i].shape) == self.stored(key).shape
        )

    def match_optimizer(self, optimizer: Any) -> Matched:
        nodes = (self._graph.child(at, name) for at in (0, self._root) for name in _OPTIMIZERS)
        node = next((found for found in nodes if found is not None), None)
        if node is None:
            msg = f"the warm start {self._prefix} holds no optimizer's state"
            raise WarmStartError(msg)
        if self._graph.child(node, "_variables") is None:
            msg = (
                f"the optimizer's state in the warm start {self._prefix} is not in Keras 3's form; "
                "begin without it (optimizer=False)"
            )
            raise WarmStartError(msg)
        walked = walk(self._graph, node, optimizer, {})
        candidates = tuple(
            Candidate(v, v.path, walked.keys.get(id(v)), tuple(walked.paths.get(id(v), ())))
            for v in optimizer.variables
        )
        taken = {candidate.key for candidate in candidates}
        below = self._graph.values_below(node)
        extra = {key: path for key, path in below.items() if key not in taken}
        return Matched(candidates, extra, {**self._shown_keys(), **below})

    def _shown_keys(self) -> dict[str, str]:
        return {key: key.removesuffix(_SUFFIX) for key in self._shapes}

    def stored(self, key: str) -> Stored:
        return Stored(tuple(self._shapes[key]), tf.as_dtype(self._dtypes[key]).name)

    def read(self, key: str) -> Array:
        try:
            value: Array = np.asarray(self._reader.get_tensor(key))
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        return value

    def close(self) -> None:
        self._shapes = {}
