"""Who owns what: everything that a training can change, by identity, with a path to each.

What training cannot change is nobody's own, however many hold it: frozen weights, vocabularies,
arrays, configurations, pure functions. So each object that `walk` finds is asked for what would
change it: weights that are trained, statistics and seeds that move, optimizers and metrics, a
position in data, attributes that the user's methods assign.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from sweeper.independence.ownership.data_sets import draws_anew, reading_changes
from sweeper.independence.ownership.reachable import Visit, Visited, walk
from sweeper.inspection.code import Changes, assigns_variables, changes_of
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import Sort, fields_of, is_users_class, label_of, sort_of
from sweeper.training.step import TrainingStep

_ALWAYS = frozenset(
    {
        Sort.CALLBACK,
        Sort.ITERATOR,
        Sort.METRIC,
        Sort.OPTIMIZER,
        Sort.RANDOM,
        Sort.SEEDS,
    }
)
"""A training changes these, or tells them what they belong to, whatever is in them."""

_WHOLES = frozenset(
    {
        Sort.DATASET,
        Sort.INITIALIZER,
        Sort.LAYER,
        Sort.LOSS,
        Sort.MODEL,
        Sort.SCHEDULE,
        Sort.TFDATA,
    }
)
"""These are changed by what is in them."""

_CONTAINERS = frozenset({Sort.LIST, Sort.DICT, Sort.SET})
_STATISTICS = ("BatchNormalization",)
_MOVING = ("SpectralNormalization", "FlaxLayer", "JaxLayer", "TorchModuleWrapper")
_STATELESS_CALLS = frozenset({"build", "__init__"})


@dataclass(frozen=True, slots=True)
class Owned:
    """One object that training can change.

    Attributes:
        thing: The object.
        kind: What the user calls such a thing: ``"layer"``, ``"variable"``, ``"optimizer"``, …
        path: Where it is, in the user's terms: ``model.layers[2] 'trunk' → kernel``.
        name: The name that it was given, or an empty string.
        inside: The id of the innermost owned object that it was found in; None for none.
        root: What it was found from: ``"model"``, ``"data"``, ``"callbacks"`` or ``"extra"``.
        by_code: Whether a function merely uses it, by a closure, a default or a module variable.
    """

    thing: Any
    kind: str
    path: str
    name: str = ""
    inside: int | None = None
    root: str = "model"
    by_code: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """One object that was there before the training that has it.

    Attributes:
        kind: As `Owned.kind`.
        name: As `Owned.name`.
        first_path: Where the training has it.
        second_path: Where an earlier training has it, or what else holds it.
    """

    kind: str
    name: str
    first_path: str
    second_path: str

    def __str__(self) -> str:
        article = "an" if self.kind[0] in "aeiou" else "a"
        named = f"{self.kind} {self.name!r}" if self.name else f"{article} {self.kind}"
        return f"{named} is {self.first_path} and {self.second_path}"


def owned_by(
    *,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Any] = (),
    extra: Mapping[str, object] | None = None,
) -> Mapping[int, Owned]:
    """Everything reachable that training can change.

    Args:
        model: A model, compiled or not; what it was compiled with is its own.
        data: A `Data`, or what could be ``Data(train=…)``.
        callbacks: The callbacks.
        extra: Other objects, by the path to call each.

    Returns:
        By id, in the order of the walk: an object before what is inside it. The objects are held,
        so the ids stay theirs.
    """
    visited = visit_all(model=model, data=data, callbacks=callbacks, extra=extra)
    return owned_among(visited)


def visit_all(
    *,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Any] = (),
    extra: Mapping[str, object] | None = None,
) -> Visited:
    """The walk behind `owned_by`: also through what training cannot change."""
    roots: list[tuple[ObjectPath, Any]] = []
    if model is not None:
        roots.append((ObjectPath("model"), model))
    for index, callback in enumerate(callbacks):
        roots.append((ObjectPath("callbacks").item(index), callback))
    roots += [(ObjectPath(path), thing) for path, thing in (extra or {}).items()]
    if data is not None:
        roots += _roots_of(data)
    return walk(roots, trained=model)


def _roots_of(data: Any) -> list[tuple[ObjectPath, Any]]:
    fields = fields_of(data)
    if "train" not in fields or sort_of(data) is not Sort.OBJECT:
        return [(ObjectPath("data"), data)]
    return [(ObjectPath(f"Data({name}=…)"), value) for name, value in fields.items()]


def owned_among(visited: Visited) -> dict[int, Owned]:
    """Those of the visits whose objects training can change."""
    visits = visited.visits
    roots = _roots(visits)
    flags = [
        _changes_by_itself(visits, index, in_data=roots[index] == "data")
        for index in range(len(visits))
    ]
    for index in range(len(visits) - 1, -1, -1):
        above = _whole_above(visits, index) if flags[index] else None
        if above is not None and visits[index].by_code == visits[above].by_code:
            flags[above] = True
    owned: dict[int, Owned] = {}
    inside: list[int | None] = []
    for index, visit in enumerate(visits):
        outer = None if visit.parent < 0 else inside[visit.parent]
        if not flags[index]:
            inside.append(outer)
            continue
        owned[id(visit.thing)] = Owned(
            visit.thing,
            visit.sort.value,
            visit.path.text,
            label_of(visit.thing, visit.sort),
            outer,
            roots[index],
            visit.by_code,
        )
        inside.append(id(visit.thing))
    return owned


def _roots(visits: list[Visit]) -> list[str]:
    found: list[str] = []
    for visit in visits:
        if visit.parent >= 0:
            found.append(found[visit.parent])
            continue
        text = visit.path.text
        if text.startswith(("Data(", "data")):
            found.append("data")
        else:
            found.append("callbacks" if text.startswith("callbacks[") else text)
            if found[-1] not in ("model", "callbacks"):
                found[-1] = "extra"
    return found


def _whole_above(visits: list[Visit], index: int) -> int | None:
    """The innermost visit that is changed when the one at ``index`` is, if there is one."""
    above = visits[index].parent
    while above >= 0 and visits[above].sort in (*_CONTAINERS, Sort.OBJECT):
        above = visits[above].parent
    return above if above >= 0 and visits[above].sort in _WHOLES else None


def _changes_by_itself(visits: list[Visit], index: int, *, in_data: bool) -> bool:
    visit = visits[index]
    thing, sort = visit.thing, visit.sort
    if _only_writes(thing):
        return False
    if sort in _ALWAYS or isinstance(thing, TrainingStep):
        return True
    if sort is Sort.VARIABLE:
        return _is_changed_variable(visits, visit)
    if sort is Sort.MODEL or sort is Sort.LAYER:
        return visit.parent < 0 or layer_changes(thing)
    if sort is Sort.LOSS or sort is Sort.SCHEDULE:
        return bool(_own_changes(thing).methods)
    if sort is Sort.TFDATA:
        return draws_anew(thing)
    if sort is Sort.DATASET:
        return reading_changes(thing)
    if sort in _CONTAINERS:
        return not in_data and _is_changed_container(visits, visit)
    return sort is Sort.OBJECT and not in_data and _is_changed_object(visits, visit)


def _only_writes(thing: Any) -> bool:
    """Whether ``thing`` is an open file that nothing can be read from, as the standard streams."""
    if not isinstance(thing, io.IOBase):
        return False
    standard = (sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__, sys.__stdin__)
    return thing in standard or thing.closed or not thing.readable()


def _own_changes(thing: Any) -> Changes:
    return changes_of(type(thing)) if is_users_class(type(thing)) else Changes()


def layer_changes(layer: Any) -> bool:
    """Whether a layer that is not trained as it is will be, or keeps what its calls assign."""
    changes = _own_changes(layer)
    if changes.assigned - {"trainable", "built"} or changes.mutated:
        return True
    fields = fields_of(layer)
    if fields.get("built") or not fields.get("_trainable"):
        return False
    plain = keras.layers.Layer.__dict__["build"]
    return any("build" in vars(base) for base in _mro_until(type(layer), plain))


def _mro_until(cls: type, plain: Any) -> list[type]:
    """The classes below the one that defines ``plain`` as its ``build``."""
    found = []
    for base in cls.__mro__:
        if base.__dict__.get("build") is plain or base is keras.Model:
            break
        found.append(base)
    return found


def _holder_of(visits: list[Visit], visit: Visit) -> Visit | None:
    """The object or function that has it, containers and code around it aside."""
    above = visit.parent
    while above >= 0 and visits[above].sort in _CONTAINERS:
        above = visits[above].parent
    return visits[above] if above >= 0 else None


def _is_changed_variable(visits: list[Visit], visit: Visit) -> bool:
    holder = _holder_of(visits, visit)
    trainable = bool(fields_of(visit.thing).get("_trainable", True))
    if holder is None:
        return True
    if holder.sort in (Sort.OPTIMIZER, Sort.METRIC, Sort.SEEDS):
        return True
    if holder.sort is Sort.FUNCTION:
        return assigns_variables(holder.thing)
    if holder.sort in (Sort.LAYER, Sort.MODEL):
        if _within(visits, visit, Sort.LOSS):
            # No optimizer is given the weights of a network that a loss measures with.
            return _statistics_move(holder.thing)
        if trainable and fields_of(holder.thing).get("_trainable", True):
            return not visit.by_code or _own_changes(holder.thing).variables
        return _statistics_move(holder.thing)
    if visit.by_code:
        return False
    return trainable or _own_changes(holder.thing).variables


def _within(visits: list[Visit], visit: Visit, sort: Sort) -> bool:
    """Return whether the way to ``visit`` leads through an object of ``sort``."""
    above = visit.parent
    while above >= 0 and visits[above].sort is not sort:
        above = visits[above].parent
    return above >= 0


def _statistics_move(layer: Any) -> bool:
    """Whether calls of ``layer`` assign to variables of it that no optimizer trains."""
    fields = fields_of(layer)
    names = {base.__name__ for base in type(layer).__mro__}
    if not names.isdisjoint(_STATISTICS):
        return bool(fields.get("_trainable"))
    if not names.isdisjoint(_MOVING) or fields.get("stateful") is True:
        return True
    return _own_changes(layer).variables


def _is_changed_container(visits: list[Visit], visit: Visit) -> bool:
    """Whether the user's object that has the container changes it in place."""
    if visit.parent < 0 or visit.by_code or type(visit.thing) in (tuple, frozenset):
        return False
    holder = visits[visit.parent]
    if holder.sort in (*_CONTAINERS, Sort.OBJECT) or not is_users_class(type(holder.thing)):
        return False
    names = [name for name, value in fields_of(holder.thing).items() if value is visit.thing] or [
        name for name, value in _class_items(type(holder.thing)) if value is visit.thing
    ]
    return not _own_changes(holder.thing).mutated.isdisjoint(names)


def _class_items(cls: type) -> list[tuple[str, Any]]:
    return [item for base in cls.__mro__ if is_users_class(base) for item in vars(base).items()]


def _is_changed_object(visits: list[Visit], visit: Visit) -> bool:
    """Whether what has the object calls a method that changes it."""
    holder = _holder_of(visits, visit)
    if holder is None or not is_users_class(type(visit.thing)):
        return False
    own = _own_changes(visit.thing)
    if not own.methods:
        return False
    if holder.sort is Sort.FUNCTION:
        called = frozenset(holder.thing.__code__.co_names)
    else:
        called = _own_changes(holder.thing).names
    return "__call__" in own.methods or not (own.methods - _STATELESS_CALLS).isdisjoint(called)


def outermost(owned: Mapping[int, Owned]) -> list[Owned]:
    """Return those that are inside no other of them."""
    return [each for each in owned.values() if each.inside not in owned]
