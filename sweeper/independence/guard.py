"""Guard around a trial's factories: refuses objects that are older than the trial.

A trial notes a moment when it begins. Its factories run, and each result is walked for objects that
training can change. Those that are older than the moment also belong to somebody else. An object that
one factory made may be used by another: a callback may hold the trial's model. The search for the
name of the other holder costs time, and is done only for what is refused.

Two rules. In a process of the trial's own, a model or layer with weights or statistics that training
changes, an optimizer, a callback or a training step that is older is refused, since the trial would not
begin from fresh weights. Everything else that was made at import (data sets, generators, layers that
only draw random numbers, metrics, plain objects) is the process's own copy, begins alike in every
attempt, and is accepted. Among trials in one process (``isolation="inline"``) the older
object is another trial's as well, so everything that training changes is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from sweeper.errors import IndependenceError
from sweeper.independence.ownership.advice import advice_for
from sweeper.independence.ownership.aliases import (
    Owned,
    Sharing,
    layer_changes,
    outermost,
    owned_among,
    visit_all,
)
from sweeper.independence.ownership.naming import holders_of, name_of
from sweeper.independence.ownership.object_age import AgeLine
from sweeper.independence.ownership.reachable import MOST, Visit, Visited
from sweeper.independence.repeats import Repeat, repeating_initializers
from sweeper.inspection.sorts import Sort, fields_of, sort_of
from sweeper.training.step import TrainingStep

What = Literal["model", "step", "data", "callbacks", "tracked"]

_CAN_BE_OWNED = frozenset(Sort) - {
    Sort.FUNCTION,
    Sort.METHOD,
    Sort.PARTIAL,
    Sort.CACHE,
    Sort.WEAK,
    Sort.DESCRIPTOR,
    Sort.CLASS,
    Sort.MODULE,
    Sort.ARRAY,
}
_FRESH = frozenset({Sort.CALLBACK, Sort.LAYER, Sort.MODEL, Sort.OPTIMIZER})
_LAYERS = frozenset({Sort.LAYER, Sort.MODEL})
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class _Kept:
    reference: weakref.ReferenceType[Any]
    trial: int
    path: str


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
        self._kept: dict[int, _Kept] = {}
        self.inline = inline
        self.let_pass = let_pass

    def keep(self, trial: int, owned: Mapping[int, Owned]) -> None:
        """Remember what ``trial`` owns, for as long as it lives."""
        self._kept = {key: kept for key, kept in self._kept.items() if kept.reference() is not None}
        for key, each in owned.items():
            try:
                reference = weakref.ref(each.thing)
            except TypeError:
                continue
            self._kept.setdefault(key, _Kept(reference, trial, each.path))

    def holder_of(self, thing: object) -> str:
        """Return where an earlier trial has ``thing``; an empty string if none does."""
        kept = self._kept.get(id(thing))
        if kept is None or kept.reference() is not thing:
            return ""
        return f"{_whole(kept.path)} of trial {kept.trial}"


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
        self._trial = trial
        self._warn = warn
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
        """Around the call of the factory that makes ``what``."""
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
            self._warn(
                f"{self._call(what)} returned something that leads to more than {MOST:,} objects; "
                "those beyond were not looked at for what trials share"
            )
        candidates = [visit for visit in visited.visits if visit.sort in _CAN_BE_OWNED]
        old = line.older(visit.thing for visit in candidates)
        if line.blind:
            self._warn(
                "something called gc.freeze() or gc.unfreeze() while the factories ran, so what "
                f"was there before the trial cannot be distinguished from what {self._call(what)} made"
            )
        if what == "model":
            self._warn_of_repeats(repeating_initializers(visited.visits, old))
        if any(id(visit.thing) in old for visit in candidates):
            self._judge(what, visited, old)
        elif self._earlier is not None:
            self._owned.update(owned_among(visited))

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
            let_pass = None if earlier is None else earlier.let_pass
            error = self._refusal(what, visited, outermost(taken))
            if let_pass is None:
                raise error
            let_pass(error)
        self._owned.update({key: each for key, each in owned.items() if key not in taken})

    def _refusal(self, what: What, visited: Visited, ends: list[Owned]) -> IndependenceError:
        before = f"something that was there before {self._call(what)} was called"
        found = holders_of([end.thing for end in ends], [*self._factories.values(), *self._others])
        sharings = []
        for end in ends:
            where = found.get(id(end.thing), "")
            earlier = "" if self._earlier is None else self._earlier.holder_of(end.thing)
            if earlier and where:
                where = f"{earlier} (kept by {where})"
            holder = where or earlier or before
            sharings.append(
                Sharing(end.kind, end.name, f"{_whole(end.path)} of this trial", holder)
            )
        shown = "; ".join(map(str, sharings[:_MOST_SHOWN]))
        if len(sharings) > _MOST_SHOWN:
            shown += f"; and {len(sharings) - _MOST_SHOWN} more"
        advice = advice_for(ends, visited.visits, self._call(what))
        return IndependenceError(f"{shown}; {advice}", tuple(sharings))

    def _call(self, what: What) -> str:
        factory = self._factories.get(what)
        if what == "tracked":
            return "a factory"
        return f"the {what} factory" if factory is None else name_of(factory)

    def _warn_of_repeats(self, repeats: list[Repeat]) -> None:
        for repeat in repeats:
            self._warn(repeat.shown(self._call("model")))


def _must_be_fresh(each: Owned, owned: Mapping[int, Owned]) -> bool:
    """Return whether a trial with a process of its own may not use an older ``each`` either.

    A variable counts as the weight of the layer that has it.
    """
    sort = sort_of(each.thing)
    if sort in _FRESH or isinstance(each.thing, TrainingStep):
        return True
    if sort is not Sort.VARIABLE or each.by_code or each.inside is None:
        return False
    holder = sort_of(owned[each.inside].thing)
    return holder in _LAYERS and bool(fields_of(each.thing).get("_trainable", True))


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
    """Whether a layer that was there before has weights that this trial made."""
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
