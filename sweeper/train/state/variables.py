"""Components of variables: the model's, the optimizer's, the metrics', and those found elsewhere.

``model.variables`` has the variables that Keras tracks. A GAN's second optimizer, a seed generator in a
list of a plain object, a metric that ``metrics`` does not return, or a `tf.random.Generator` is not
tracked. They are found by a walk over attributes, in the order in which the model's code set them,
which is the same in every process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import xxhash

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.errors import RestoreError
from sweeper.inspection import keras_names
from sweeper.inspection import walk as objects
from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    framework_variables,
    is_plain_object,
    is_variable,
    sort_of,
)
from sweeper.inspection.walk import Edge, ObjectPath
from sweeper.train.codec import Json, Tensors, assign_replicas, form_of, held_tensors, hold_replicas
from sweeper.train.component import Component
from sweeper.train.step import TrainingStep


class Variables(Component):
    """Component of a list of variables by position, because Keras's names differ between processes.

    ``variables`` returns them, or `Found` with a path for errors, at each capture: a model can still grow.

    Attributes:
        repeated: `Snapshot.repeated` of the last capture.
    """

    def __init__(self, name: str, variables: Callable[[], Sequence[Any]]) -> None:
        self.name = name
        self._variables = variables
        self.repeated: dict[str, tuple[str, ...]] = {}

    def _labelled(self) -> list[Found]:
        return [
            each if isinstance(each, Found) else Found(path_of(each), each)
            for each in self._variables()
        ]

    def capture(self, tensors: Tensors) -> Json:
        paths = []
        self.repeated = {}
        for index, each in enumerate(self._labelled()):
            key = self._key(index)
            if others := hold_replicas(each.value, key, tensors):
                self.repeated[key] = others
            paths.append(each.path)
        return paths

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        variables = self._labelled()
        found = []
        for index, path in enumerate(saved[len(variables) :], start=len(variables)):
            found.append(f"{self.name} variable {index} ({path}) is in the checkpoint only")
        for index, each in enumerate(variables):
            shown = f"{self.name} variable {index} ({each.path})"
            if index >= len(saved):
                found.append(f"{shown} is not in it")
                continue
            array = tensors.get(self._key(index))
            if array is None:
                found.append(f"{shown}: its tensor {self._key(index)!r} is missing")
                continue
            was = " and ".join({form_of(a) for a in held_tensors(self._key(index), tensors)})
            now = form_of(each.value)
            if was != now:
                found.append(f"{shown} is {now}, and {was} in it")
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        del saved
        for index, each in enumerate(self._labelled()):
            assign_replicas(each.value, self._key(index), tensors)

    def restore_by_path(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        """Assign the variables with the same path, shape and dtype in the checkpoint."""
        index_of = {path: index for index, path in enumerate(saved)}
        for each in self._labelled():
            key = self._key(index_of.get(each.path, -1))
            if key in tensors and form_of(tensors[key]) == form_of(each.value):
                assign_replicas(each.value, key, tensors)

    def _key(self, index: int) -> str:
        return f"{self.name}/{index:05d}"


def path_of(variable: Any) -> str:
    """Return Keras's path of a variable, or TensorFlow's name."""
    return str(getattr(variable, "path", None) or variable.name)


def load_variables(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Assign all of the checkpoint's model variables to a built model, or none; every mismatch is named."""
    variables = Variables("model", lambda: model.variables)
    saved = loaded.state[variables.name]
    found = variables.mismatches(saved, loaded.tensors)
    refuse_misfits(
        loaded,
        found,
        "the model of the factory (nothing was assigned)",
        "load it with the code that wrote it",
    )
    variables.restore(saved, loaded.tensors)


def refuse_misfits(loaded: LoadedCheckpoint, found: Sequence[str], what: str, cure: str) -> None:
    """Raise RestoreError if there are mismatches between a checkpoint and ``what``."""
    if found:
        shown = "\n  ".join(found)
        msg = (
            f"checkpoint {loaded.path} does not fit {what}:\n  {shown}\n"
            "The study's code has changed since the checkpoint was written; undo the change, or "
            f"{cure}"
        )
        raise RestoreError(msg)


def weights_digest(model: keras.Model) -> str:
    """Return the XXH3-128 (hex) of all weights of the model, trainable and not, in order.

    Callbacks change the weights after the last epoch was measured: ``EarlyStopping`` restores the best
    epoch's, ``SwapEMAWeights`` and optimizers with averages put those in. The digest of the weights that an
    epoch was measured with shows of which epoch the weights at the end are.
    """
    digest = xxhash.xxh3_128()
    for weight in model.weights:
        digest.update(np.ascontiguousarray(weight).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


_SKIPPED = keras_names.CONNECTIONS | keras_names.FUNCTIONS | {keras_names.OPTIMIZER}
_LISTS = {*keras_names.LISTS, keras_names.LAYERS}


@dataclass(frozen=True, slots=True)
class Found:
    """An object with its path of attributes from the model."""

    path: str
    value: Any


@dataclass(frozen=True)
class Reached:
    """Result of one walk: variables by the component that captures them, and all optimizers, the model's first.

    ``loose`` are variables of generators, of metrics, and of untracked parts; ``covered`` are the ids of all.
    """

    own_optimizer: list[Any]
    optimizers: list[Found]
    other_optimizers: list[Found]
    loose: list[Found]
    covered: frozenset[int]


class Reach:
    """Assignment of the objects reachable from a model to components.

    A walk takes milliseconds, too long for a capture, so its result is kept once Keras's lists are complete.
    """

    def __init__(self, model: keras.Model, step: TrainingStep | None = None) -> None:
        self._model = model
        self._step = step
        self._settled: Reached | None = None
        self._began: frozenset[int] | None = None

    def begin(self) -> None:
        """Record the start of training: `UserState` captures later objects, except those in Keras's lists."""
        if self._began is None:
            self._began = frozenset(id(found.value) for found in self.now.loose)

    def settle(self) -> None:
        """Record that Keras's lists are complete."""
        self._settled = self._draw()

    @property
    def now(self) -> Reached:
        """Return what is reachable."""
        return self._draw() if self._settled is None else self._settled

    def _draw(self) -> Reached:
        model = self._model
        found = walk(model, self._step)
        optimizer = getattr(model, "optimizer", None)
        own = [] if optimizer is None else list({id(v): v for v in optimizer.variables}.values())
        known = {id(v) for v in (*model.variables, *model.metrics_variables, *own)}
        optimizers = [each for each in found if isinstance(each.value, keras.optimizers.Optimizer)]
        others = [new for each in optimizers for new in _new(each, known)]
        listed = set(known)
        loose = [new for each in found if each.value is not model for new in _new(each, known)]
        if self._began is not None:
            loose = [each for each in loose if id(each.value) in self._began]
            known = listed | {id(each.value) for each in loose}
        return Reached(own, optimizers, others, loose, frozenset(known))


def walk(model: keras.Model, step: TrainingStep | None = None) -> list[Found]:
    """Return all objects with variables that are reachable through attributes, each once."""
    found: list[Found] = []

    def visit(edge: Edge, _: int) -> list[Edge]:
        if framework_variables(edge.obj) is not None:
            found.append(Found(edge.path.text, edge.obj))
        return list(_parts(edge.obj, edge.path))

    roots = [Edge(ObjectPath("model"), model), Edge(ObjectPath("step"), step)]
    # No limit: a missing variable would be wrong after a resume, and nothing would report it.
    objects.walk(roots, visit, most=sys.maxsize)
    return found


def _parts(value: Any, path: ObjectPath) -> Iterator[Edge]:
    """Yield the attributes of ``value`` that may have variables, in the order of checkpoints.

    Keras's own lists come last, because paths through the user's attributes are easier to read.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield Edge(path.item(key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield Edge(path.item(index), item)
    elif _is_opened(value):
        attributes = sorted(fields_of(value).items(), key=lambda item: item[0] in _LISTS)
        for name, item in attributes:
            bookkeeping = name in _SKIPPED or name.startswith("_self_")
            if not bookkeeping and not isinstance(item, str | int | float):
                yield Edge(path.attribute(name), item)
        if getattr(value, "optimizer", None) is not None:
            yield Edge(path.attribute("optimizer"), value.optimizer)


_OPENED = OF_KERAS - {Sort.CALLBACK, Sort.DATASET}


def _is_opened(value: Any) -> bool:
    if sort_of(value) in _OPENED or isinstance(value, TrainingStep):
        return True
    return not is_variable(value) and is_plain_object(value) and not isinstance(value, type)


def _new(each: Found, known: set[int]) -> list[Found]:
    """Return the object's variables that are not yet known, and record them."""
    found = []
    for variable in framework_variables(each.value) or ():
        if id(variable) not in known:
            known.add(id(variable))
            own = is_variable(each.value)
            found.append(Found(each.path if own else f"{each.path}: {path_of(variable)}", variable))
    return found
