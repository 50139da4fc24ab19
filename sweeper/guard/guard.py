"""The guard, which refuses objects that are older than their trial, and the age of objects.

A trial makes its models, layers with weights, optimizers and training steps itself. What may be older is
what training does not change (frozen weights, vocabularies, arrays, functions, data), and what is the state of
the process: it is captured, and undone after an inline trial.

Python's garbage collector keeps lists of every object that can refer to others. `gc.freeze` moves
all existing objects aside in constant time; objects that the lists contain afterwards are younger.
So the age of an object, also of one that no walk can reach (in a C extension or another thread), is
known without hooks in Keras or a snapshot of all modules.

`inspection.walk` defines the edges of objects. The guard also follows weak references and methods of the
user's classes, and arguments of `compile` only for the trained model. For the name of a refused object's
other holder, the factories and the user's modules are searched breadth first, so that the shortest name is
found. Objects that cannot be reached from them (an attribute of an installed library, a variable of
another thread) have no name.
"""

import gc
import itertools
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import keras

from sweeper.errors import IndependenceError
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
    MOST,
    Edge,
    How,
    ObjectPath,
    edges_of,
    variables_used,
    walk,
)
from sweeper.train.sources.tfdata import draws_new_seeds
from sweeper.train.step import TrainingStep


class _Witness:
    """An object whose age is known."""


class AgeBoundary:
    """A moment in time, which separates older from younger objects.

    Older objects are frozen, which keeps no reference to them, until `release`, which unfreezes what others have
    frozen, too: that only costs the collector time.
    """

    def __init__(self) -> None:
        self._before = _Witness()
        gc.freeze()
        self._after = _Witness()
        self.ages_unknown = False
        """True if objects were frozen or unfrozen since, so that ages are unknown."""

    def older(self, objects: Iterable[object]) -> set[int]:
        """Return the ids of the older objects; an object without an age counts as young.

        Numbers, strings, arrays and containers of only these have no age, because the collector
        does not list them.
        """
        aged = {id(obj) for obj in objects if gc.is_tracked(obj)}
        queried = aged | {id(self._before), id(self._after)}
        young = queried.intersection(map(id, gc.get_objects()))
        if id(self._before) in young or id(self._after) not in young:
            self.ages_unknown = True
            return set()
        return aged - young

    def release(self) -> None:
        """Unfreeze the older objects. Afterwards ages are unknown."""
        gc.unfreeze()


What = Literal["model", "step", "data", "callbacks", "tracked"]

_LAYERS = frozenset({Sort.LAYER, Sort.MODEL})
_ALWAYS_CHANGED = frozenset(
    {Sort.CALLBACK, Sort.ITERATOR, Sort.METRIC, Sort.OPTIMIZER, Sort.RANDOM}
)
"""Sorts of objects that training always changes or binds."""

_WHOLES = _LAYERS | {Sort.INITIALIZER, Sort.TFDATA}
"""Sorts of objects that change with their parts."""

_CONTAINERS = frozenset({Sort.LIST, Sort.DICT, Sort.SET})
_PASSED = _CONTAINERS | {Sort.OBJECT}
"""Sorts of objects between a whole and its parts."""

_NOT_UNDONE = frozenset({Sort.CALLBACK, Sort.ITERATOR, Sort.TFDATA})
"""Sorts that inline trials cannot share, because the next trial would find them as this one left them."""

_MOVING = frozenset({"SpectralNormalization", "FlaxLayer", "JaxLayer", "TorchModuleWrapper"})
"""Layers whose calls assign to variables that no optimizer trains."""

_MOST_SHOWN = 4


class Visit(NamedTuple):
    """One visited object, with the index of its parent, and whether a function on the path uses it.

    The ``parent`` of a root is -1.
    """

    obj: Any
    sort: Sort
    path: ObjectPath
    parent: int
    by_code: bool


@dataclass(frozen=True, slots=True)
class Sharing:
    """An object that is older than the trial that uses it.

    Attributes:
        kind: The user's word for such an object: ``"layer"``, ``"variable"``, ``"optimizer"``, …
        name: Its given name, or an empty string.
        first_path: Its path in the trial: ``model.layers[2] 'trunk' → kernel``.
        second_path: Its path in another holder.
    """

    kind: str
    name: str
    first_path: str
    second_path: str

    def __str__(self) -> str:
        article = "an" if self.kind[0] in "aeiou" else "a"
        named = f"{self.kind} {self.name!r}" if self.name else f"{article} {self.kind}"
        return f"{named} is {self.first_path} and {self.second_path}"


Process = Literal["trial", "inline", "user"]
"""Process in which factories run: the trial's own, that of all trials of an inline run, or the user's."""


class Guard:
    """Guard of one trial, as a context manager around its factories.

    The study's ``factories`` serve to name the objects that they refer to; ``notify`` is called about objects
    that are allowed. Trials of an ``"inline"`` run must not share a callback, an iterator or a reshuffled
    dataset either.
    """

    def __init__(
        self,
        *,
        notify: Callable[[str], None],
        process: Process = "trial",
        factories: tuple[Callable[..., Any] | None, ...] = (),
    ) -> None:
        self.notify = notify
        self._process = process
        self._factories = [factory for factory in factories if factory is not None]

    def __enter__(self) -> Self:
        self._line = AgeBoundary()
        return self

    def __exit__(self, *error: object) -> None:
        """Release older objects, except in a process that ends with its trial."""
        if self._process != "trial":
            self._line.release()

    def check(self, what: What, built: Any, factory: Callable[..., Any] | None = None) -> None:
        """Refuse what a factory built, or objects that were tracked, if a part of it is older than the trial."""
        line = self._line
        call = "a factory" if factory is None else name_of(factory)
        visits, cut = visits_from(_roots(what, built), trained=built if what == "model" else None)
        if cut:
            self.notify(
                f"{call} returned a value that refers to more than {MOST:,} objects; "
                "the guard did not inspect the others"
            )
        old = line.older(visit.obj for visit in visits)
        if line.ages_unknown:
            self.notify(
                "gc.freeze() or gc.unfreeze() was called while the factories ran, so objects "
                "that existed before the trial cannot be distinguished from those that "
                f"{call} made; do not call them in a factory"
            )
        if what == "model":
            for repeat in _older_initializers(visits, old, call):
                self.notify(repeat)
        changed = _changed_by_training(visits)
        refused = set()
        for index, visit in enumerate(visits):
            if id(visit.obj) not in old:
                continue
            shared = self._process == "inline" and index in changed and visit.sort in _NOT_UNDONE
            # Data may go through any layer: nothing there is trained.
            if shared or (what != "data" and _must_be_fresh(visits, index, changed, old)):
                refused.add(index)
        if refused:
            factories = self._factories if factory is None else [factory, *self._factories]
            raise _refusal(_outermost(visits, refused), call, factories)


def _refusal(
    ends: list[Visit], call: str, factories: list[Callable[..., Any]]
) -> IndependenceError:
    unnamed_holder = f"an object that existed before {call} was called"
    holders = holders_of([end.obj for end in ends], factories)
    sharings = [
        Sharing(
            kind=end.sort.value,
            name=label_of(end.obj, end.sort),
            first_path=f"{_whole(end)} of this trial",
            second_path=holders.get(id(end.obj), unnamed_holder),
        )
        for end in ends
    ]
    text = "; ".join(map(str, sharings[:_MOST_SHOWN]))
    if len(sharings) > _MOST_SHOWN:
        text += f"; and {len(sharings) - _MOST_SHOWN} more"
    return IndependenceError(f"{text}; {_advice(ends, call)}", tuple(sharings))


def _roots(what: What, built: Any) -> list[tuple[ObjectPath, Any]]:
    named: Iterable[tuple[str, Any]] = [(what, built)]
    if what == "tracked":
        named = ((f"trial.track({name!r}, …)", obj) for name, obj in built.items())
    elif what == "callbacks":
        named = ((f"callbacks[{index}]", callback) for index, callback in enumerate(built))
    elif what == "data":
        named = ((f"Data({name}=…)", obj) for name, obj in fields_of(built).items())
    return [(ObjectPath(path), obj) for path, obj in named]


def _changed_by_training(visits: Sequence[Visit]) -> set[int]:
    """Return the indices of the objects that training changes, and of the wholes around them.

    Seeds do not count: they are equal at the start of every attempt, and are in the checkpoints.
    """
    changed: set[int] = set()
    for index, visit in enumerate(visits):
        part = index if _changes_by_itself(visits, visit) else -1
        while part >= 0 and part not in changed:
            changed.add(part)
            above = _above(visits, visits[part], _PASSED)
            # What the code of a whole merely uses is not a part of it.
            is_part = above >= 0 and visits[above].by_code == visits[part].by_code
            part = above if is_part and visits[above].sort in _WHOLES else -1
    return changed


def _changes_by_itself(visits: Sequence[Visit], visit: Visit) -> bool:
    obj = visit.obj
    sort = visit.sort
    if sort is Sort.VARIABLE:
        return _is_changed_variable(visits, visit)
    if sort is Sort.TFDATA:
        return draws_new_seeds(obj)
    if sort in _LAYERS:
        return visit.parent < 0 or _gets_weights(obj)
    return sort in _ALWAYS_CHANGED or isinstance(obj, TrainingStep)


def _is_changed_variable(visits: Sequence[Visit], visit: Visit) -> bool:
    above = _above(visits, visit, _CONTAINERS)
    if above < 0:
        return True
    holder = visits[above]
    trainable = bool(fields_of(visit.obj).get("_trainable", True))
    if holder.sort in (Sort.OPTIMIZER, Sort.METRIC):
        return True
    if visit.by_code or holder.sort in (Sort.FUNCTION, Sort.SEEDS):
        return False
    if holder.sort in _LAYERS:
        # No optimizer is given the weights of a network that a loss measures with.
        measures = _above(visits, visit, frozenset(Sort) - {Sort.LOSS}) >= 0
        if not measures and trainable and fields_of(holder.obj).get("_trainable", True):
            return True
        return _statistics_move(holder.obj)
    return trainable


def _above(visits: Sequence[Visit], visit: Visit, passed: frozenset[Sort]) -> int:
    """Return the index of the innermost visit around ``visit`` that is not in ``passed``, or -1."""
    above = visit.parent
    while above >= 0 and visits[above].sort in passed:
        above = visits[above].parent
    return above


def _gets_weights(layer: Any) -> bool:
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


def _statistics_move(layer: Any) -> bool:
    """Return whether calls of ``layer`` assign to its variables that no optimizer trains."""
    fields = fields_of(layer)
    names = {base.__name__ for base in type(layer).__mro__}
    if "BatchNormalization" in names:
        return bool(fields.get("_trainable"))
    return not names.isdisjoint(_MOVING) or fields.get("stateful") is True


def _must_be_fresh(visits: Sequence[Visit], index: int, changed: set[int], old: set[int]) -> bool:
    """Return whether an older object is refused: a layer, a weight of one, an optimizer or a training step."""
    visit = visits[index]
    fields = fields_of(visit.obj)
    if visit.sort in _LAYERS:
        weights = (
            *fields.get("_trainable_variables", ()),
            *fields.get("_non_trainable_variables", ()),
        )
        # An older layer without weights may have been filled by this trial.
        return index in changed or any(id(weight) not in old for weight in weights)
    if visit.sort is not Sort.VARIABLE:
        return visit.sort is Sort.OPTIMIZER or isinstance(visit.obj, TrainingStep)
    above = _above(visits, visit, _PASSED)
    in_layer = above >= 0 and visits[above].sort in _LAYERS and not visit.by_code
    return index in changed and in_layer and bool(fields.get("_trainable", True))


def _outermost(visits: Sequence[Visit], refused: set[int]) -> list[Visit]:
    """Return the refused visits that are not inside another of them."""
    inside: set[int] = set()
    for index, visit in enumerate(visits):
        if visit.parent in inside or visit.parent in refused:
            inside.add(index)
    return [visits[index] for index in sorted(refused - inside)]


def _whole(visit: Visit) -> str:
    path = visit.path.text
    return {"model": "the model", "step": "the training step"}.get(path, path)


def _advice(ends: Sequence[Visit], factory: str) -> str:
    them = "it" if len(ends) == 1 else "them"
    if all(end.sort is Sort.TFDATA for end in ends):
        return (
            f"every iteration over {them} is reshuffled, so build {them} inside {factory}, or "
            "give the shuffle reshuffle_each_iteration=False"
        )
    return f"build {them} inside {factory}"


def _older_initializers(visits: Sequence[Visit], old: set[int], factory: str) -> Iterator[str]:
    """Yield a warning for each older initializer without a seed, which is the same for all trials.

    Such an initializer draws a seed when it is made, and uses it at every call.
    """
    initializers: dict[tuple[int, str], list[str]] = defaultdict(list)
    for visit in visits:
        # A layer that was there before has its weights, and its initializer is done.
        if visit.sort in _LAYERS and id(visit.obj) not in old:
            where = f"{visit.path.text} {label_of(visit.obj, visit.sort)!r}"
            for name, value in list(fields_of(visit.obj).items()):
                if (
                    id(value) in old
                    and sort_of(value) is Sort.INITIALIZER
                    and fields_of(value).get("_init_seed", 0) is None
                ):
                    initializers[id(value), type(value).__name__].append(
                        f"{where} → {name.lstrip('_')}"
                    )
    for (_, kind), paths in initializers.items():
        yield (
            f"initializer {kind} of {' and '.join(paths)} was made without a seed before {factory} was "
            f"called, so every trial begins with the same weights there; make it inside {factory}"
        )


_MOST_ITEMS = 20_000
"""Items of a container that are visited; a longer container is data."""

_NEVER = frozenset({Sort.LEAF, Sort.CELL})


def visits_from(
    roots: Iterable[tuple[ObjectPath, Any]], *, trained: Any = None
) -> tuple[list[Visit], bool]:
    """Visit everything reachable from the roots, depth first; return the visits, and whether the walk was cut.

    Each object is visited once, before its parts, and named by the first root. Only of the ``trained`` model
    optimizer, loss and metrics count: those of a model inside it are not used in training.
    """
    visits: list[Visit] = []

    def visit(edge: Edge, parent: int) -> Iterable[Edge] | None:
        sort = sort_of(edge.obj)
        if sort in _NEVER:
            return None
        by_code = edge.how is How.USED or (parent >= 0 and visits[parent].by_code)
        visits.append(Visit(edge.obj, sort, edge.path, parent, by_code))
        return parts_of(edge.obj, sort, edge.path, compiled=edge.obj is trained)

    cut = walk([Edge(path, obj) for path, obj in roots], visit)
    return visits, cut


def parts_of(obj: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Edge]:
    """Yield the edges of ``obj``, with the arguments of a model's `compile` if ``compiled``.

    Objects that code uses have `How.USED`.
    """
    edges = itertools.islice(edges_of(obj, sort, path), _MOST_ITEMS)
    parts = _ordered(obj, edges) if sort in OF_KERAS else list(edges)
    for edge in parts:
        # The loss is what the model was compiled with.
        is_loss = sort is Sort.MODEL and edge.name == "loss"
        if edge.how is not How.COMPILED and not is_loss:
            yield from _opened(edge)
    yield from _of_code(obj, sort, path)
    if compiled:
        yield from (edge for edge in parts if edge.how is How.COMPILED)


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


_MOST_SEARCHED = 300_000


def holders_of(
    objects: Iterable[object], factories: Iterable[Callable[..., Any]]
) -> Mapping[int, str]:
    """Return the path of each wanted object in the factories and the user's modules, by id."""
    missing = {id(obj) for obj in objects}
    paths: dict[int, str] = {}
    factories = list(factories)

    def visit(edge: Edge, _: int) -> Iterable[Edge] | None:
        if id(edge.obj) in missing:
            missing.discard(id(edge.obj))
            paths[id(edge.obj)] = edge.path.text
        sort = sort_of(edge.obj)
        if not missing or sort in (Sort.LEAF, Sort.MODULE):
            return None
        return parts_of(edge.obj, sort, edge.path, compiled=True)

    walk(_roots_of_names(factories), visit, most=_MOST_SEARCHED, breadth=True)
    return paths


def _roots_of_names(factories: list[Callable[..., Any]]) -> Iterator[Edge]:
    """Yield the factories, then the variables of the user's modules."""
    for factory in factories:
        yield Edge(ObjectPath(name_of(factory)), factory)
    for module_name, module in sorted(sys.modules.items(), key=lambda item: item[0] == "__main__"):
        users = module_name == "__main__" or is_users_module(module_name)
        if users and type(module) is types.ModuleType:
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    yield Edge(ObjectPath(f"{MODULE_ATTRIBUTE}{module.__name__}.{name}"), value)


def name_of(factory: Any) -> str:
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]
