"""Objects that a trial must make itself, by identity, with a path to each, and the names of other holders.

Objects that are no part of a training may be shared: frozen weights, vocabularies, arrays,
configurations, functions, data sets. So each object that `walk` finds is checked for state of a training:
trained weights, moving statistics and seeds, optimizers, metrics and callbacks. What the user's code changes
besides is the state of its process, which is captured, and undone after an inline trial.

The factories and the user's modules are searched breadth first, so that the shortest name is found.
Objects that cannot be reached from them (an attribute of an installed library, a variable of
another thread) have no name.

`inspection.walk` defines the edges. The guard also follows weak references and methods of the
user's classes, and arguments of `compile` only for the trained model.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from sweeper.inspection import walk as objects
from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    is_users_class,
    is_users_module,
    label_of,
    sort_of,
)
from sweeper.inspection.walk import (
    MODULE_ATTRIBUTE,
    Edge,
    How,
    ObjectPath,
    edges_of,
    variables_used,
    walk,
)
from sweeper.train.sources.tfdata import draws_new_seeds
from sweeper.train.step import TrainingStep

_MOST_ITEMS = 20_000
"""Items of a container that are visited; a longer container is data."""

_NEVER = frozenset({Sort.LEAF, Sort.CELL})


class Visit(NamedTuple):
    """One visited object.

    Attributes:
        parent: Index of the parent's visit; -1 for a root.
        by_code: Whether the path goes through a function that uses the object.
        root: Text of the root's path.
    """

    obj: Any
    sort: Sort
    path: ObjectPath
    parent: int
    by_code: bool
    root: str


class Visited(NamedTuple):
    """Visits in order, each before its parts; ``cut`` means that the walk was ended early."""

    visits: list[Visit]
    cut: bool


def visits_from(roots: Iterable[tuple[ObjectPath, Any]], *, trained: Any = None) -> Visited:
    """Visit everything reachable from the roots, each object once, depth first.

    Args:
        roots: The roots, in order: an object reachable from several is named by the first.
        trained: The model whose optimizer, loss and metrics count. Those of a model inside it are
            not used in training.
    """
    visits: list[Visit] = []

    def visit(edge: Edge, parent: int) -> Iterable[Edge] | None:
        sort = sort_of(edge.obj)
        if sort in _NEVER:
            return None
        above = visits[parent] if parent >= 0 else None
        by_code = edge.how is How.USED or (above is not None and above.by_code)
        root = edge.path.text if above is None else above.root
        visits.append(Visit(edge.obj, sort, edge.path, parent, by_code, root))
        return parts_of(edge.obj, sort, edge.path, compiled=edge.obj is trained)

    cut = objects.walk([Edge(path, obj) for path, obj in roots], visit)
    return Visited(visits, cut)


def parts_of(obj: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Edge]:
    """Yield the edges of ``obj``; objects that code uses as `How.USED`.

    Args:
        obj: An object of ``sort``, at ``path``.
        sort: As `sort_of` tells.
        path: Its path.
        compiled: For a model: whether to include the arguments of `compile`.
    """
    edges = itertools.islice(edges_of(obj, sort, path), _MOST_ITEMS)
    held = _ordered(obj, edges) if sort in OF_KERAS else list(edges)
    for edge in held:
        # The loss is what the model was compiled with.
        is_loss = sort is Sort.MODEL and edge.name == "loss"
        if edge.how is not How.COMPILED and not is_loss:
            yield from _opened(edge)
    yield from _of_code(obj, sort, path)
    if compiled:
        yield from (edge for edge in held if edge.how is How.COMPILED)


def _of_code(obj: Any, sort: Sort, path: ObjectPath) -> Iterator[Edge]:
    """Yield the objects that a function, or the methods of an object or class, may use."""
    if sort in OF_KERAS or sort in (Sort.OBJECT, Sort.ITERATOR):
        yield from _of_classes(type(obj), path)
    elif sort is Sort.FUNCTION:
        yield from _of_variables(obj, path)
    elif sort is Sort.CLASS and is_users_class(obj):
        for name, member in _members(obj):
            if not name.startswith("__"):
                yield _member(path.of_class().attribute(name), member)


def _opened(edge: Edge) -> Iterator[Edge]:
    """Yield the edge, or the content of the cell to which it leads."""
    if sort_of(edge.obj) is not Sort.CELL:
        yield edge
        return
    for inside in edges_of(edge.obj, Sort.CELL, edge.path):
        yield inside._replace(how=edge.how)


def _ordered(obj: Any, edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges, those with the most familiar names first."""
    order = [How.LISTED, How.FIELD, How.LAYER]
    if is_users_class(type(obj)):
        # In a layer of the user's own, the attribute's name is what the user knows.
        order = [How.FIELD, How.LISTED, How.LAYER]
    if keras.Sequential in type(obj).__mro__ or "_operations" in fields_of(obj):
        order = [How.LAYER, *order[:2]]
    order.append(How.COMPILED)
    return sorted(edges, key=lambda edge: order.index(edge.how))


def _of_classes(cls: type, path: ObjectPath) -> Iterator[Edge]:
    """Yield class attributes and methods of the user's classes."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if is_users_class(base):
            for name, member in _members(base):
                dunder = name.startswith("__") and name not in ("__call__", "__getitem__")
                if not dunder and sort_of(member) is not Sort.CLASS:
                    yield _member(path.attribute(name), member)


def _members(cls: type) -> list[tuple[str, Any]]:
    members = list(type.__dict__["__dict__"].__get__(cls).items())
    return [(name, member) for name, member in members if sort_of(member) is not Sort.LEAF]


def _member(path: ObjectPath, member: Any) -> Edge:
    is_code = sort_of(member) in (Sort.FUNCTION, Sort.DESCRIPTOR)
    return Edge(path, member, How.USED if is_code else How.HELD)


def _of_variables(function: Any, path: ObjectPath) -> Iterator[Edge]:
    """Yield the variables of the user's modules that a function uses."""
    for used in variables_used(function):
        value = used.variables.get(used.name)
        if used.alias:
            yield Edge(ObjectPath(f"{used.alias}.{used.name}"), value, How.USED)
        elif sort_of(value) is not Sort.CLASS:
            yield Edge(path.noted(f"global variable {used.name!r}"), value, How.USED)


_MOST = 300_000


def holders_of(
    wanted: Iterable[object], factories: Iterable[Callable[..., Any]]
) -> Mapping[int, str]:
    """Return the path of each object in the factories and the user's modules, by id.

    Args:
        wanted: The objects.
        factories: The study's.
    """
    missing = {id(obj) for obj in wanted}
    found: dict[int, str] = {}
    factories = list(factories)

    def visit(edge: Edge, _: int) -> Iterable[Edge] | None:
        if id(edge.obj) in missing:
            missing.discard(id(edge.obj))
            found[id(edge.obj)] = edge.path.text
        sort = sort_of(edge.obj)
        if not missing or sort in (Sort.LEAF, Sort.MODULE):
            return None
        return parts_of(edge.obj, sort, edge.path, compiled=True)

    walk(_roots(factories), visit, most=_MOST, breadth=True)
    return found


def _roots(factories: list[Callable[..., Any]]) -> Iterator[Edge]:
    """Yield the factories, then the variables of the user's modules."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if type(module) is types.ModuleType and is_users_module(name) and name != "__main__"
    ]
    main = sys.modules.get("__main__")
    if type(main) is types.ModuleType:
        modules.append(main)
    for factory in factories:
        yield Edge(ObjectPath(name_of(factory)), factory)
    for module in modules:
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                label = module.__name__
                yield Edge(ObjectPath(f"{MODULE_ATTRIBUTE}{label}.{name}"), value)


def name_of(factory: Any) -> str:
    """Return the user's name of a factory."""
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]


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
"""Sorts of objects that training always changes or binds."""

_WHOLES = frozenset({Sort.INITIALIZER, Sort.LAYER, Sort.MODEL, Sort.TFDATA})
"""Sorts of objects that change with their content."""

_CONTAINERS = frozenset({Sort.LIST, Sort.DICT, Sort.SET})
_PASSED = frozenset({*_CONTAINERS, Sort.OBJECT})
"""Sorts of objects between a whole and its parts."""

_NO_LOSS = frozenset(Sort) - {Sort.LOSS}
_MOVING = frozenset({"SpectralNormalization", "FlaxLayer", "JaxLayer", "TorchModuleWrapper"})


@dataclass(frozen=True, slots=True)
class Owned:
    """An object with state of a training.

    Attributes:
        obj: The object.
        kind: The user's word for such an object: ``"layer"``, ``"variable"``, ``"optimizer"``, …
        path: Its path in the user's terms: ``model.layers[2] 'trunk' → kernel``.
        name: Its given name, or an empty string.
        inside: The id of the innermost owned object around it; None for none.
        by_code: Whether it is only used by a function, through a closure, a default or a module
            variable.
    """

    obj: Any
    kind: str
    path: str
    name: str = ""
    inside: int | None = None
    by_code: bool = False


def visit_all(
    *,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Any] = (),
    extra: Mapping[str, object] | None = None,
) -> Visited:
    """Walk through a trial's parts, including objects that training cannot change.

    Args:
        model: A model, compiled or not, with the arguments of `compile`.
        data: A `Data`, or a value for ``Data(train=…)``.
        callbacks: The callbacks.
        extra: Other objects, by their paths.
    """
    roots: list[tuple[ObjectPath, Any]] = []
    if model is not None:
        roots.append((ObjectPath("model"), model))
    for index, callback in enumerate(callbacks):
        roots.append((ObjectPath("callbacks").item(index), callback))
    roots += [(ObjectPath(path), obj) for path, obj in (extra or {}).items()]
    fields = fields_of(data)
    if "train" in fields and sort_of(data) is Sort.OBJECT:
        roots += [(ObjectPath(f"Data({name}=…)"), value) for name, value in fields.items()]
    elif data is not None:
        roots.append((ObjectPath("data"), data))
    return visits_from(roots, trained=model)


def owned_among(visited: Visited) -> dict[int, Owned]:
    """Return the visited objects with state of a training.

    Returns:
        Objects by id, in the order of the walk, each before its parts. The objects are referenced,
        so their ids remain valid.
    """
    visits = visited.visits
    flags = [_changes_by_itself(visits, visit) for visit in visits]
    for index in range(len(visits) - 1, -1, -1):
        above = _above(visits, visits[index], _PASSED) if flags[index] else -1
        if above >= 0 and visits[above].sort in _WHOLES:
            # What its code merely uses is not a part of it.
            flags[above] |= visits[above].by_code == visits[index].by_code
    owned: dict[int, Owned] = {}
    inside: list[int | None] = []
    for visit, flag in zip(visits, flags, strict=True):
        outer = None if visit.parent < 0 else inside[visit.parent]
        if flag:
            name = label_of(visit.obj, visit.sort)
            owned[id(visit.obj)] = Owned(
                visit.obj, visit.sort.value, visit.path.text, name, outer, visit.by_code
            )
        inside.append(id(visit.obj) if flag else outer)
    return owned


def outermost(owned: Mapping[int, Owned]) -> list[Owned]:
    """Return the objects that are not inside another of them."""
    return [each for each in owned.values() if each.inside not in owned]


def _above(visits: list[Visit], visit: Visit, passed: frozenset[Sort]) -> int:
    """Return the index of the innermost visit around ``visit`` that is not in ``passed``, or -1."""
    above = visit.parent
    while above >= 0 and visits[above].sort in passed:
        above = visits[above].parent
    return above


def _changes_by_itself(visits: list[Visit], visit: Visit) -> bool:
    obj, sort = visit.obj, visit.sort
    if sort in _ALWAYS or isinstance(obj, TrainingStep):
        return True
    if sort is Sort.VARIABLE:
        return _is_changed_variable(visits, visit)
    if sort is Sort.TFDATA:
        return draws_new_seeds(obj)
    return sort in (Sort.MODEL, Sort.LAYER) and (visit.parent < 0 or gets_weights(obj))


def gets_weights(layer: Any) -> bool:
    """Return whether a layer makes weights when it is built later."""
    fields = fields_of(layer)
    if fields.get("built") or not fields.get("_trainable"):
        return False
    plain = keras.layers.Layer.__dict__["build"]
    for base in type(layer).__mro__:
        # A Sequential makes no weights but those of its layers, which are judged themselves.
        if base.__dict__.get("build") is plain or base in (keras.Model, keras.Sequential):
            return False
        if "build" in vars(base):
            return True
    return False


def _is_changed_variable(visits: list[Visit], visit: Visit) -> bool:
    above = _above(visits, visit, _CONTAINERS)
    if above < 0:
        return True
    holder = visits[above]
    trainable = bool(fields_of(visit.obj).get("_trainable", True))
    if holder.sort in (Sort.OPTIMIZER, Sort.METRIC, Sort.SEEDS):
        return True
    if visit.by_code or holder.sort is Sort.FUNCTION:
        return False
    if holder.sort in (Sort.LAYER, Sort.MODEL):
        # No optimizer is given the weights of a network that a loss measures with.
        measures = _above(visits, visit, _NO_LOSS) >= 0
        if not measures and trainable and fields_of(holder.obj).get("_trainable", True):
            return True
        return _statistics_move(holder.obj)
    return trainable


def _statistics_move(layer: Any) -> bool:
    """Return whether calls of ``layer`` assign to its variables that no optimizer trains."""
    fields = fields_of(layer)
    names = {base.__name__ for base in type(layer).__mro__}
    if "BatchNormalization" in names:
        return bool(fields.get("_trainable"))
    return not names.isdisjoint(_MOVING) or fields.get("stateful") is True
