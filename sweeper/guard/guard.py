"""The guard, which refuses objects that are older than their trial, and the age of objects.

Python's garbage collector keeps lists of every object that can refer to others. `gc.freeze` moves
all existing objects aside in constant time; objects that the lists contain afterwards are younger.
So the age of an object, also of one that no walk can reach (in a C extension or another thread), is
known without hooks in Keras or a snapshot of all modules.
"""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from keras.initializers import Initializer

from sweeper.errors import IndependenceError
from sweeper.guard.owned import (
    Owned,
    Visit,
    Visited,
    gets_weights,
    holders_of,
    name_of,
    outermost,
    owned_among,
    visit_all,
)
from sweeper.inspection.sorts import Sort, fields_of, label_of, sort_of
from sweeper.inspection.walk import MOST
from sweeper.train.step import TrainingStep


class _Witness:
    """An object whose age is known."""


class AgeBoundary:
    """A moment in time, which separates older from younger objects.

    Args:
        lasting: Whether older objects may stay frozen, in a process that ends with its trial.
            Otherwise `release` unfreezes them.
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._before = _Witness()
        # What someone else has frozen could not be distinguished from ours when it is given back.
        self._frozen = lasting or gc.get_freeze_count() == 0
        self._census: list[object] = []
        if self._frozen:
            gc.freeze()
        else:
            self._census = gc.get_objects()
        self._after = _Witness()
        self.ages_unknown = False
        """True if objects were frozen or unfrozen since, so that ages are unknown."""

    def older(self, objects: Iterable[object]) -> set[int]:
        """Return the ids of the older objects; an object without an age counts as young.

        Numbers, strings, arrays and containers of only these have no age, because the collector
        does not list them.
        """
        aged = {id(obj) for obj in objects if gc.is_tracked(obj)}
        asked = aged | {id(self._before), id(self._after)}
        young = asked.intersection(map(id, gc.get_objects()))
        young.difference_update(map(id, self._census))
        if id(self._before) in young or id(self._after) not in young:
            self.ages_unknown = True
            return set()
        return aged - young

    def release(self) -> None:
        """Unfreeze the older objects. Afterwards ages are unknown."""
        self._census = []
        if self._frozen and not self._lasting:
            gc.unfreeze()
        self._frozen = False


What = Literal["model", "step", "data", "callbacks", "tracked"]

_CODE = frozenset({Sort.CACHE, Sort.DESCRIPTOR, Sort.FUNCTION, Sort.METHOD, Sort.PARTIAL})
_NEVER_OWNED = _CODE | {Sort.WEAK, Sort.CLASS, Sort.MODULE, Sort.ARRAY}
_LAYERS = frozenset({Sort.LAYER, Sort.MODEL})
_FRESH = _LAYERS | {Sort.OPTIMIZER}
_NOT_UNDONE = frozenset({Sort.CALLBACK, Sort.ITERATOR, Sort.TFDATA})
"""Sorts that inline trials cannot share, because the next trial would find them as this one left them."""
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Sharing:
    """An object that is older than the trial that uses it.

    Attributes:
        kind: As `Owned.kind`.
        name: As `Owned.name`.
        first_path: Its path in the trial.
        second_path: Its path in an earlier trial, or another holder.
    """

    kind: str
    name: str
    first_path: str
    second_path: str

    def __str__(self) -> str:
        article = "an" if self.kind[0] in "aeiou" else "a"
        named = f"{self.kind} {self.name!r}" if self.name else f"{article} {self.kind}"
        return f"{named} is {self.first_path} and {self.second_path}"


class Earlier:
    """Objects of earlier trials of this process, held weakly, and shared by the trials' guards.

    Args:
        inline: Whether the trials are trained in this process, so that they must not share a
            callback, an iterator or a reshuffled dataset. False if they are only built.
    """

    def __init__(self, *, inline: bool = True) -> None:
        self._kept: dict[int, tuple[weakref.ReferenceType[Any], str]] = {}
        self.inline = inline

    def keep(self, trial: int, owned: Mapping[int, Owned]) -> None:
        """Record the objects of ``trial``, as long as they exist."""
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0]() is not None}
        for key, each in owned.items():
            try:
                reference = weakref.ref(each.obj)
            except TypeError:
                continue
            self._kept.setdefault(key, (reference, f"{_whole(each.path)} of trial {trial}"))

    def holder_of(self, obj: object) -> str:
        """Return the path of ``obj`` in an earlier trial; an empty string for none."""
        reference, where = self._kept.get(id(obj), (None, ""))
        return where if reference is not None and reference() is obj else ""


class Guard:
    """Guard of one trial, as a context manager around its factories.

    Args:
        trial: The trial's number.
        warn: Called with warnings about objects that are allowed.
        earlier: Objects of earlier trials of this process; None in a trial's own process.
        factories: The study's factories, for names of the objects that they refer to.
    """

    def __init__(
        self,
        *,
        trial: int,
        warn: Callable[[str], None],
        earlier: Earlier | None = None,
        factories: tuple[Callable[..., Any] | None, ...] = (),
    ) -> None:
        self.warn = warn
        self._trial = trial
        self._earlier = earlier
        self._factories: dict[str, Callable[..., Any]] = {}
        self._others = [factory for factory in factories if factory is not None]
        self._line: AgeBoundary | None = None
        self._owned: dict[int, Owned] = {}

    def __enter__(self) -> Self:
        self._line = AgeBoundary(lasting=self._earlier is None)
        return self

    def __exit__(self, *error: object) -> None:
        """Release older objects, and record the trial's objects."""
        if self._line is not None:
            self._line.release()
            self._line = None
        if self._earlier is not None and error[0] is None:
            self._earlier.keep(self._trial, self._owned)

    def name_factory(self, what: What, factory: Callable[..., Any]) -> None:
        """Record the factory that makes ``what``, for its name in errors."""
        self._factories[what] = factory

    def check(self, what: What, built: Any) -> None:
        """Refuse a factory's result if it, or a part of it, is older than the trial.

        Args:
            what: The factory; ``"tracked"`` for objects registered with `Trial.track`.
            built: The returned model, training step, data or callbacks; or the tracked objects by
                name.

        Raises:
            IndependenceError: An object is older; both users are named.
        """
        line = self._line
        if line is None:
            msg = "Guard.check is called inside `with guard:`"
            raise RuntimeError(msg)
        if what == "tracked":
            visited = visit_all(extra={f"trial.track({n!r}, …)": t for n, t in built.items()})
        elif what == "step":
            visited = visit_all(extra={"step": built})
        else:
            visited = visit_all(**{what: built})
        if visited.cut:
            self.warn(
                f"{self._call(what)} returned a value that refers to more than {MOST:,} objects; "
                "the guard did not inspect the others"
            )
        objects = [visit.obj for visit in visited.visits if visit.sort not in _NEVER_OWNED]
        old = line.older(objects)
        if line.ages_unknown:
            self.warn(
                "gc.freeze() or gc.unfreeze() was called while the factories ran, so objects "
                "that existed before the trial cannot be distinguished from those that "
                f"{self._call(what)} made; do not call them in a factory"
            )
        if what == "model":
            for repeat in _shared_initializers(visited.visits, old, self._call("model")):
                self.warn(repeat)
        if old or self._earlier is not None:
            self._refuse_older(what, visited, old)

    def _refuse_older(self, what: What, visited: Visited, old: set[int]) -> None:
        owned = owned_among(visited)
        taken = {key: each for key, each in owned.items() if key in old}
        for visit in visited.visits:
            if id(visit.obj) in old and id(visit.obj) not in owned and _was_filled(visit, old):
                taken[id(visit.obj)] = _as_owned(visit)
        earlier = self._earlier
        inline = earlier is not None and earlier.inline
        taken = {
            key: each
            for key, each in taken.items()
            if (inline and sort_of(each.obj) in _NOT_UNDONE)
            # Data may go through any layer: nothing there is trained.
            or (what != "data" and _must_be_fresh(each, owned) and not _only_draws(each, owned))
        }
        if taken:
            raise self._refusal(what, outermost(taken))
        self._owned.update(owned)

    def _refusal(self, what: What, ends: list[Owned]) -> IndependenceError:
        before = f"an object that existed before {self._call(what)} was called"
        found = holders_of([end.obj for end in ends], [*self._factories.values(), *self._others])
        sharings = []
        for end in ends:
            holder = found.get(id(end.obj), "")
            earlier = "" if self._earlier is None else self._earlier.holder_of(end.obj)
            if earlier:
                holder = f"{earlier} (kept by {holder})" if holder else earlier
            here = f"{_whole(end.path)} of this trial"
            sharings.append(Sharing(end.kind, end.name, here, holder or before))
        shown = "; ".join(map(str, sharings[:_MOST_SHOWN]))
        if len(sharings) > _MOST_SHOWN:
            shown += f"; and {len(sharings) - _MOST_SHOWN} more"
        advice = _advice(ends, self._call(what))
        return IndependenceError(f"{shown}; {advice}", tuple(sharings))

    def _call(self, what: What) -> str:
        factory = self._factories.get(what)
        if what == "tracked":
            return "a factory"
        return f"the {what} factory" if factory is None else name_of(factory)


def _must_be_fresh(each: Owned, owned: Mapping[int, Owned]) -> bool:
    """Return whether an older ``each`` is refused also in a trial's own process.

    That is a model, a layer, an optimizer, a training step, and a trainable variable of a layer.
    """
    sort = sort_of(each.obj)
    if sort in _FRESH or isinstance(each.obj, TrainingStep):
        return True
    if sort is not Sort.VARIABLE or each.by_code or each.inside is None:
        return False
    trainable = bool(fields_of(each.obj).get("_trainable", True))
    return trainable and sort_of(owned[each.inside].obj) in _LAYERS


def _only_draws(each: Owned, owned: Mapping[int, Owned]) -> bool:
    """Return whether random state is all that training changes in a layer, as in dropout or random flips.

    Such state begins equal in every attempt, and is in the checkpoints.
    """
    if sort_of(each.obj) not in _LAYERS or gets_weights(each.obj):
        return False
    within = {id(each.obj)}
    for key, inner in owned.items():  # an object comes before what is inside it
        if inner.inside not in within:
            continue
        within.add(key)
        if sort_of(inner.obj) in _LAYERS:
            if gets_weights(inner.obj):
                return False
            continue
        around = None if inner.inside is None else owned[inner.inside].obj
        if Sort.SEEDS not in (sort_of(inner.obj), sort_of(around)):
            return False
    return len(within) > 1


def _was_filled(visit: Visit, old: set[int]) -> bool:
    """Return whether an older layer has weights that this trial made."""
    if visit.sort not in _LAYERS:
        return False
    fields = fields_of(visit.obj)
    weights = [*fields.get("_trainable_variables", ()), *fields.get("_non_trainable_variables", ())]
    return any(id(weight) not in old for weight in weights)


def _as_owned(visit: Visit) -> Owned:
    name = fields_of(visit.obj).get("name", "")
    return Owned(visit.obj, visit.sort.value, visit.path.text, name)


def _whole(path: str) -> str:
    return {"model": "the model", "step": "the training step"}.get(path, path)


def _advice(ends: Sequence[Owned], factory: str) -> str:
    """Return the advice on ``ends``, which ``factory`` returned."""
    them = "it" if len(ends) == 1 else "them"
    if all(end.kind == Sort.TFDATA.value for end in ends):
        return (
            f"every iteration over {them} is reshuffled, so build {them} inside {factory}, or "
            "give the shuffle reshuffle_each_iteration=False"
        )
    return f"build {them} inside {factory}"


def _shared_initializers(visits: Sequence[Visit], old: set[int], factory: str) -> Iterator[str]:
    """Yield a warning for each initializer without a seed that is used more than once.

    Such an initializer draws a seed when it is made, and uses it at every call.
    """
    found: dict[int, list[str]] = defaultdict(list)
    made: dict[int, Any] = {}
    for visit in visits:
        # A layer that was there before has its weights, and its initializer is done.
        if visit.sort in _LAYERS and id(visit.obj) not in old:
            where = f"{visit.path.text} {label_of(visit.obj, visit.sort)!r}"
            for name, value in list(fields_of(visit.obj).items()):
                if (
                    Initializer in type(value).__mro__
                    and fields_of(value).get("_init_seed", 0) is None
                ):
                    found[id(value)].append(f"{where} → {name.lstrip('_')}")
                    made[id(value)] = value
    for key, paths in found.items():
        name, where = type(made[key]).__name__, " and ".join(paths)
        if key in old:
            yield (
                f"initializer {name} of {where} was made without a seed before {factory} was "
                f"called, so every trial begins with the same weights there; make it inside {factory}"
            )
        elif len(paths) > 1:
            yield (
                f"initializer {name} has no seed and is shared by {where}, so weights of equal "
                "shape begin with equal values; make one initializer for each"
            )
