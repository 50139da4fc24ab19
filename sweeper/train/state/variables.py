"""Components of variables, and of the parts that must not be replaced during training.

``model.variables`` has the variables that Keras tracks. A GAN's second optimizer, a seed generator in a
list of a plain object, a metric that ``metrics`` does not return, or a `tf.random.Generator` is not
tracked. They are found by a walk over attributes, in the order in which the model's code set them,
which is the same in every process.

A traced step continues to use the objects and settings of its trace, and a checkpoint identifies variables by
their position in Keras's lists. A resumed process has only what the factory creates. So a model that is
compiled again, a schedule in place of a number, another dtype policy, or a variable that is added during training
is refused by name at the next checkpoint. A step that runs eagerly creates variables when it first runs, so its
parts are recorded then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.errors import RestoreError, UncapturableError
from sweeper.inspection import sorts
from sweeper.inspection import walk as objects
from sweeper.inspection.walk import Edge, ObjectPath, edges_of
from sweeper.train import codec, settings
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
            variable if isinstance(variable, Found) else Found(path_of(variable), variable)
            for variable in self._variables()
        ]

    def capture(self, tensors: codec.Tensors) -> codec.Json:
        paths = []
        self.repeated = {}
        for index, variable in enumerate(self._labelled()):
            key = self._key(index)
            if others := codec.hold_replicas(variable.value, key, tensors):
                self.repeated[key] = others
            paths.append(variable.path)
        return paths

    def mismatches(self, saved: codec.Json, tensors: Mapping[str, Any]) -> list[str]:
        variables = self._labelled()
        misfits = []
        for index, path in enumerate(saved[len(variables) :], start=len(variables)):
            misfits.append(f"{self.name} variable {index} ({path}) is in the checkpoint only")
        for index, variable in enumerate(variables):
            label = f"{self.name} variable {index} ({variable.path})"
            if index >= len(saved):
                misfits.append(f"{label} is not in it")
                continue
            array = tensors.get(self._key(index))
            if array is None:
                misfits.append(f"{label}: its tensor {self._key(index)!r} is missing")
                continue
            saved_form = " and ".join(
                {codec.form_of(a) for a in codec.held_tensors(self._key(index), tensors)}
            )
            form = codec.form_of(variable.value)
            if saved_form != form:
                misfits.append(f"{label} is {form}, and {saved_form} in it")
        return misfits

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        del saved
        for index, variable in enumerate(self._labelled()):
            codec.assign_replicas(variable.value, self._key(index), tensors)

    def restore_by_path(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        """Assign the variables with the same path, shape and dtype in the checkpoint."""
        index_of = {path: index for index, path in enumerate(saved)}
        for variable in self._labelled():
            key = self._key(index_of.get(variable.path, -1))
            if key in tensors and codec.form_of(tensors[key]) == codec.form_of(variable.value):
                codec.assign_replicas(variable.value, key, tensors)

    def _key(self, index: int) -> str:
        return f"{self.name}/{index:05d}"


def path_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def load_variables(model: keras.Model, loaded: LoadedCheckpoint) -> None:
    """Assign all of the checkpoint's model variables to a built model, or none; every mismatch is named."""
    variables = Variables("model", lambda: model.variables)
    saved = loaded.state[variables.name]
    misfits = variables.mismatches(saved, loaded.tensors)
    refuse_misfits(
        loaded,
        misfits,
        "the model of the factory (nothing was assigned)",
        "load it with the code that wrote it",
    )
    variables.restore(saved, loaded.tensors)


def refuse_misfits(
    loaded: LoadedCheckpoint, misfits: Sequence[str], target: str, cure: str
) -> None:
    """Raise RestoreError if there are mismatches between a checkpoint and ``target``."""
    if misfits:
        lines = "\n  ".join(misfits)
        raise RestoreError(
            f"checkpoint {loaded.path} does not fit {target}:\n  {lines}\n"
            "The code has changed since the checkpoint was written; undo the change, or "
            f"{cure}"
        )


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
        self._loose_at_start: frozenset[int] | None = None

    def begin(self) -> None:
        """Record the start of training: `UserState` captures later objects, except those in Keras's lists."""
        if self._loose_at_start is None:
            self._loose_at_start = frozenset(id(variable.value) for variable in self.now.loose)

    def settle(self) -> None:
        """Record that Keras's lists are complete."""
        self._settled = self._draw()

    @property
    def now(self) -> Reached:
        return self._draw() if self._settled is None else self._settled

    def _draw(self) -> Reached:
        model = self._model
        owners = walk(model, self._step)
        optimizer = getattr(model, "optimizer", None)
        slots = [] if optimizer is None else list({id(v): v for v in optimizer.variables}.values())
        covered = {id(v) for v in (*model.variables, *model.metrics_variables, *slots)}
        optimizers = [
            owner for owner in owners if isinstance(owner.value, keras.optimizers.Optimizer)
        ]
        # Each variable has one component: `_new` adds what it returns to ``covered``.
        others: list[Found] = []
        for owner in optimizers:
            others += _new(owner, covered)
        listed = set(covered)
        loose: list[Found] = []
        for owner in owners:
            if owner.value is not model:
                loose += _new(owner, covered)
        if self._loose_at_start is not None:
            loose = [variable for variable in loose if id(variable.value) in self._loose_at_start]
            covered = listed | {id(variable.value) for variable in loose}
        return Reached(slots, optimizers, others, loose, frozenset(covered))


def walk(model: keras.Model, step: TrainingStep | None = None) -> list[Found]:
    """Return all objects with variables that are reachable through attributes, each once."""
    owners: list[Found] = []

    def visit(edge: Edge, _: int) -> list[Edge]:
        if sorts.framework_variables(edge.obj) is not None:
            owners.append(Found(edge.path.text, edge.obj))
        sort = sorts.sort_of(edge.obj)
        if sort not in _ENTERED:
            return []
        # Keras may have generated a layer's name, which then differs between processes.
        edges = edges_of(edge.obj, sort, edge.path)
        return [edge._replace(path=edge.path._replace(label="")) for edge in edges]

    roots = [Edge(ObjectPath("model"), model), Edge(ObjectPath("step"), step)]
    # No limit: a missing variable would be wrong after a resume, and nothing would report it.
    objects.walk(roots, visit, most=sys.maxsize)
    return owners


_ENTERED = {sorts.Sort.LIST, sorts.Sort.DICT, sorts.Sort.OBJECT, sorts.Sort.WRAPPED} | (
    sorts.OF_KERAS - {sorts.Sort.CALLBACK, sorts.Sort.DATASET}
)


def _new(owner: Found, covered: set[int]) -> list[Found]:
    """Return the object's variables that are not yet known, and record them."""
    variables = []
    for variable in sorts.framework_variables(owner.value) or ():
        if id(variable) not in covered:
            covered.add(id(variable))
            standalone = sorts.is_variable(owner.value)
            variables.append(
                Found(owner.path if standalone else f"{owner.path}: {path_of(variable)}", variable)
            )
    return variables


_TWO_PHASES = (
    "for a training in two phases, make both in the factory: two optimizers of which the step "
    "uses one, or rates and `trainable` flags that a callback changes"
)


class FixedParts(Component):
    """Component of the classes of parts that must not be replaced during training."""

    name = "parts"

    def __init__(self, model: keras.Model, reach: Reach) -> None:
        self._model = model
        self._reach = reach
        self._parts: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}

    def begin(self) -> None:
        # `UserState` captures objects that become reachable later.
        self._reach.begin()

    def settle(self) -> None:
        # The parts must not be replaced from now on.
        self._reach.settle()
        self._parts = self._now()
        self._lists = self._variables()

    def capture(self, tensors: codec.Tensors) -> codec.Json:
        """Return the classes of the parts; refuse one that was replaced."""
        del tensors
        if self._lists:
            self._check()
        return {name: _shown(part) for name, part in self._now().items()}

    def mismatches(self, saved: codec.Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        descriptions = {name: _shown(part) for name, part in self._now().items()}
        return [
            f"{name} was {saved[name]} when the checkpoint was written, and is {description} now"
            for name, description in descriptions.items()
            if saved.get(name, description) != description
        ]

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        """Do nothing: classes cannot be restored."""
        del saved, tensors

    def _check(self) -> None:
        for name, part in self._now().items():
            if not codec.same(part, self._parts[name]):
                self._refuse(name, self._parts[name], part)
        for name, variables in self._variables().items():
            earlier = self._lists[name]
            if list(map(id, earlier)) != list(map(id, variables)):
                self._refuse_variables(name, earlier, variables)

    def _now(self) -> dict[str, Any]:
        model = self._model
        optimizer = self._model.optimizer
        return {
            "model.optimizer": optimizer,
            # The public property returns the present rate of a schedule, not the schedule.
            "model.optimizer.learning_rate": getattr(optimizer, "_learning_rate", None),
            "what the model was compiled with": getattr(model, "_compile_metrics", None),
            "what model.make_train_function() made": model.train_function,
            "model.run_eagerly": bool(model.run_eagerly),
            "model.distribute_strategy": model.distribute_strategy,
            **{name: setting.read() for name, setting in settings.OF_KERAS.items()},
        }

    def _variables(self) -> dict[str, list[Any]]:
        model = self._model
        optimizer = self._model.optimizer
        return {
            "model": list(model.variables),
            "optimizer": [] if optimizer is None else list(optimizer.variables),
            "metrics": list(model.metrics_variables),
        }

    def _refuse(self, name: str, earlier: Any, current: Any) -> None:
        raise UncapturableError(
            f"{name} was replaced during training: it was {_shown(earlier)}, and is "
            f"{'another' if _shown(earlier) == _shown(current) else _shown(current)} now. The traced step "
            "still uses the first, and a resumed trial would use the factory's; compile the model and make "
            f"settings once, in the factory, and change values instead; {_TWO_PHASES}"
        )

    def _refuse_variables(self, name: str, earlier: Sequence[Any], current: Sequence[Any]) -> None:
        earlier_ids = {id(v) for v in earlier}
        current_ids = {id(v) for v in current}
        added = [repr(path_of(v)) for v in current if id(v) not in earlier_ids]
        gone = [repr(path_of(v)) for v in earlier if id(v) not in current_ids]
        change = (
            f"gained {added[0]}" if added else f"lost {gone[0]}" if gone else "changed their order"
        )
        more = max(len(added or gone) - 1, 0)
        raise UncapturableError(
            f"the {name}'s variables {change}{f' and {more} more' if more else ''} during training, so "
            "a checkpoint would not fit the model that the factory makes; make all variables in the "
            f"factory or in build(), before training; {_TWO_PHASES}"
        )


def _shown(part: Any) -> str:
    if part is None or isinstance(part, bool | float | str):
        return repr(part)
    if isinstance(part, tf.distribute.Strategy):
        return f"a {type(part).__name__} of {part.num_replicas_in_sync} replicas"
    return f"a {sorts.class_name(type(part))}"
