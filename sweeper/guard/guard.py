"""Age of objects: made before or after a moment.

Python's garbage collector keeps every object that can refer to others in lists. `gc.freeze` puts
all that are there aside in constant time; whatever the lists have afterwards was made since. So an
object's age needs no hook in Keras, no snapshot of all modules and no trust in names, and what no
walk can find (a C extension's, another thread's) has an age as well.
"""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from keras.initializers import Initializer

from sweeper.errors import IndependenceError
from sweeper.guard.owned import (
    Owned,
    Visit,
    Visited,
    holders_of,
    layer_changes,
    name_of,
    outermost,
    owned_among,
    visit_all,
)
from sweeper.inspection.sorts import Sort, fields_of, is_users_class, label_of, sort_of
from sweeper.inspection.walk import MOST
from sweeper.train.step import TrainingStep


class _Witness:
    """An object whose age is known."""


class AgeLine:
    """A moment, and which objects are younger.

    Args:
        lasting: Whether what is set aside may stay so: in a process that ends with its trial, what
            was imported before is no garbage. Otherwise `release` gives it back.
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
        self.blind = False
        """True if objects were frozen or thawed since, so that no age can be known."""

    def older(self, things: Iterable[object]) -> set[int]:
        """Return the ids of those that were there before; of one without age, it is taken to be young.

        Numbers, strings, arrays and containers of nothing but these have none: the collector does
        not list them.
        """
        aged = {id(thing) for thing in things if gc.is_tracked(thing)}
        asked = aged | {id(self._before), id(self._after)}
        young = asked.intersection(map(id, gc.get_objects()))
        young.difference_update(map(id, self._census))
        if id(self._before) in young or id(self._after) not in young:
            self.blind = True
            return set()
        return aged - young

    def release(self) -> None:
        """Give back what was set aside. Nothing has an age afterwards."""
        self._census = []
        if self._frozen and not self._lasting:
            gc.unfreeze()
        self._frozen = False


What = Literal["model", "step", "data", "callbacks", "tracked"]

_CODE = frozenset({Sort.CACHE, Sort.DESCRIPTOR, Sort.FUNCTION, Sort.METHOD, Sort.PARTIAL})
_NEVER_OWNED = _CODE | {Sort.WEAK, Sort.CLASS, Sort.MODULE, Sort.ARRAY}
_LAYERS = frozenset({Sort.LAYER, Sort.MODEL})
_FRESH = _LAYERS | {Sort.CALLBACK, Sort.OPTIMIZER}
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Sharing:
    """One object that was there before the trial that has it.

    Attributes:
        kind: As `Owned.kind`.
        name: As `Owned.name`.
        first_path: Where the trial has it.
        second_path: Where an earlier trial has it, or what else holds it.
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
    """Objects of the trials that this process has built before, held weakly; shared by their guards.

    Args:
        inline: Whether the trials are trained in this process, so that they must share nothing that
            training changes. False where they are only built: then the rule is that of a trial with a
            process of its own.
        let_pass: Called with what would be refused; then nothing is refused. None to refuse.
    """

    def __init__(
        self, *, inline: bool = True, let_pass: Callable[[IndependenceError], None] | None = None
    ) -> None:
        self._kept: dict[int, tuple[weakref.ReferenceType[Any], str]] = {}
        self.inline = inline
        self.let_pass = let_pass

    def keep(self, trial: int, owned: Mapping[int, Owned]) -> None:
        """Remember what ``trial`` owns, for as long as it lives."""
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0]() is not None}
        for key, each in owned.items():
            try:
                reference = weakref.ref(each.thing)
            except TypeError:
                continue
            self._kept.setdefault(key, (reference, f"{_whole(each.path)} of trial {trial}"))

    def holder_of(self, thing: object) -> str:
        """Return where an earlier trial has ``thing``; an empty string if none does."""
        reference, where = self._kept.get(id(thing), (None, ""))
        return where if reference is not None and reference() is thing else ""


class Guard:
    """One trial's guard, as a context manager around its factories.

    Args:
        trial: The trial's number.
        warn: Called with what is allowed and may surprise.
        earlier: Objects of the trials that this process has built; None in a process of the trial's own.
        factories: The study's, for the names of what they hold.
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
        self._line: AgeLine | None = None
        self._owned: dict[int, Owned] = {}

    def __enter__(self) -> Self:
        self._line = AgeLine(lasting=self._earlier is None)
        return self

    def __exit__(self, *error: object) -> None:
        """Give back what was held, and remember what the trial owns."""
        if self._line is not None:
            self._line.release()
            self._line = None
        if self._earlier is not None and error[0] is None:
            self._earlier.keep(self._trial, self._owned)

    @contextmanager
    def building(self, what: What, factory: Callable[..., Any]) -> Iterator[None]:
        """Context manager for the call of the factory that makes ``what``; names it in errors."""
        self._factories[what] = factory
        yield

    def check(self, what: What, built: Any) -> None:
        """Refuse what the factory returned where it, or a part of it, was there before.

        Args:
            what: Which factory; ``"tracked"`` for what they gave to `Trial.track`.
            built: The model, the training step, the data, or the sequence of callbacks that it returned; or what is
                tracked, by name.

        Raises:
            IndependenceError: Both ends are named.
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
        things = [visit.thing for visit in visited.visits if visit.sort not in _NEVER_OWNED]
        old = line.older(things)
        if line.blind:
            self.warn(
                "gc.freeze() or gc.unfreeze() was called while the factories ran, so objects "
                "that existed before the trial cannot be distinguished from those that "
                f"{self._call(what)} made; do not call them in a factory"
            )
        if what == "model":
            for repeat in _repeats(visited.visits, old, self._call("model")):
                self.warn(repeat)
        if old or self._earlier is not None:
            self._judge(what, visited, old)

    def _judge(self, what: What, visited: Visited, old: set[int]) -> None:
        owned = owned_among(visited)
        taken = {key: each for key, each in owned.items() if key in old}
        for visit in visited.visits:
            if id(visit.thing) in old and id(visit.thing) not in owned and _was_filled(visit, old):
                taken[id(visit.thing)] = _as_owned(visit)
        earlier = self._earlier
        if earlier is None or not earlier.inline:
            # Data may go through any layer: nothing there is trained.
            fresh = {} if what == "data" else taken
            taken = {
                key: each
                for key, each in fresh.items()
                if _must_be_fresh(each, owned) and not _only_draws(each, owned)
            }
        if taken:
            error = self._refusal(what, visited, outermost(taken))
            if earlier is None or earlier.let_pass is None:
                raise error
            earlier.let_pass(error)
        self._owned.update({key: each for key, each in owned.items() if key not in taken})

    def _refusal(self, what: What, visited: Visited, ends: list[Owned]) -> IndependenceError:
        before = f"an object that existed before {self._call(what)} was called"
        found = holders_of([end.thing for end in ends], [*self._factories.values(), *self._others])
        sharings = []
        for end in ends:
            holder = found.get(id(end.thing), "")
            earlier = "" if self._earlier is None else self._earlier.holder_of(end.thing)
            if earlier:
                holder = f"{earlier} (kept by {holder})" if holder else earlier
            here = f"{_whole(end.path)} of this trial"
            sharings.append(Sharing(end.kind, end.name, here, holder or before))
        shown = "; ".join(map(str, sharings[:_MOST_SHOWN]))
        if len(sharings) > _MOST_SHOWN:
            shown += f"; and {len(sharings) - _MOST_SHOWN} more"
        advice = _advice(ends, visited.visits, self._call(what))
        return IndependenceError(f"{shown}; {advice}", tuple(sharings))

    def _call(self, what: What) -> str:
        factory = self._factories.get(what)
        if what == "tracked":
            return "a factory"
        return f"the {what} factory" if factory is None else name_of(factory)


def _must_be_fresh(each: Owned, owned: Mapping[int, Owned]) -> bool:
    """Return whether a trial with a process of its own may not use an older ``each`` either.

    A variable counts as the weight of the layer that has it.
    """
    sort = sort_of(each.thing)
    if sort in _FRESH or isinstance(each.thing, TrainingStep):
        return True
    if sort is not Sort.VARIABLE or each.by_code or each.inside is None:
        return False
    trainable = bool(fields_of(each.thing).get("_trainable", True))
    return trainable and sort_of(owned[each.inside].thing) in _LAYERS


def _only_draws(each: Owned, owned: Mapping[int, Owned]) -> bool:
    """Return whether random state is all that training changes in a layer, as in dropout or random flips.

    It begins alike in every attempt, as a generator beside the layer does, and is in the checkpoints.
    """
    if sort_of(each.thing) not in _LAYERS or layer_changes(each.thing):
        return False
    within = {id(each.thing)}
    for key, inner in owned.items():  # an object comes before what is inside it
        if inner.inside not in within:
            continue
        within.add(key)
        if sort_of(inner.thing) in _LAYERS:
            if layer_changes(inner.thing):
                return False
        elif sort_of(inner.thing) is not Sort.SEEDS and not _is_of_seeds(inner, owned):
            return False
    return len(within) > 1


def _is_of_seeds(each: Owned, owned: Mapping[int, Owned]) -> bool:
    return each.inside is not None and sort_of(owned[each.inside].thing) is Sort.SEEDS


def _was_filled(visit: Visit, old: set[int]) -> bool:
    """Return whether a layer that was there before has weights that this trial made."""
    if visit.sort not in _LAYERS:
        return False
    fields = fields_of(visit.thing)
    weights = [*fields.get("_trainable_variables", ()), *fields.get("_non_trainable_variables", ())]
    return any(id(weight) not in old for weight in weights)


def _as_owned(visit: Visit) -> Owned:
    name = fields_of(visit.thing).get("name", "")
    return Owned(visit.thing, visit.sort.value, visit.path.text, name)


def _whole(path: str) -> str:
    return {"model": "the model", "step": "the training step"}.get(path, path)


def _advice(ends: Sequence[Owned], visits: Sequence[Visit], factory: str) -> str:
    """Return what to do about ``ends``, which ``factory`` gave."""
    them = "it" if len(ends) == 1 else "them"
    if all(end.kind == Sort.TFDATA.value for end in ends):
        return (
            f"every iteration over {them} is reshuffled, so build {them} inside {factory}, or "
            "give the shuffle reshuffle_each_iteration=False"
        )
    classes = {_class_that_uses(end, visits) for end in ends}
    cls = classes.pop() if len(classes) == 1 else None
    if cls is None:
        return f"build {them} inside {factory}"
    attribute = "an attribute" if len(ends) == 1 else "attributes"
    return (
        f"make {them} in {cls.__qualname__}.__init__, as {attribute} of self, so that every model "
        "has its own"
    )


def _class_that_uses(end: Owned, visits: Sequence[Visit]) -> Any:
    """Return the user's class whose method uses the metric ``end``, which no factory names; or None."""
    if end.kind != Sort.METRIC.value or not end.by_code:
        return None
    index = next(i for i, visit in enumerate(visits) if visit.thing is end.thing)
    above = visits[index].parent
    while above >= 0 and (visits[above].sort in _CODE or visits[above].by_code):
        above = visits[above].parent
    owner = type(visits[above].thing) if above >= 0 else None
    return owner if owner is not None and is_users_class(owner) else None


def _repeats(visits: Sequence[Visit], old: set[int], factory: str) -> Iterator[str]:
    """Yield a warning for each initializer without a seed that gives its values more than once.

    Such an initializer draws a seed when it is made, and begins from it at every call.
    """
    found: dict[int, list[str]] = defaultdict(list)
    made: dict[int, Any] = {}
    for visit in visits:
        # A layer that was there before has its weights, and its initializer is done.
        if visit.sort in _LAYERS and id(visit.thing) not in old:
            where = f"{visit.path.text} {label_of(visit.thing, visit.sort)!r}"
            for name, value in list(fields_of(visit.thing).items()):
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
