"""Around each factory of a trial: what it returns must have come into being during the trial.

A trial draws a line when it begins. Its factories run, and each result is walked for what training
can change; whatever of that is older than the line belongs to somebody else as well, and the trial
is refused with both ends named. What one factory made another may use: a callback may hold the
trial's model. Looking for the other end's name costs time, and is done only then.

In a process of the trial's own this says that the code shares, although nothing would come of it
there; among trials in one process (``isolation="inline"``) it is what keeps them apart. What an
earlier trial of the process made, and a cache or a registry has kept, is made anew where every trial
has a process of its own: `Earlier` says which of the two it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from sweeper.errors import IndependenceError
from sweeper.independence.ownership.advice import advice_for
from sweeper.independence.ownership.aliases import Owned, Sharing, outermost, owned_among, visit_all
from sweeper.independence.ownership.naming import holders_of, name_of, referrer_of
from sweeper.independence.ownership.object_age import AgeLine, Inventory
from sweeper.independence.ownership.reachable import MOST, Visit, Visited
from sweeper.independence.repeats import Repeat, repeating_initializers
from sweeper.inspection.sorts import Sort, fields_of

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
_MOST_SHOWN = 4


@dataclass(frozen=True, slots=True)
class _Kept:
    reference: weakref.ReferenceType[Any]
    trial: int
    path: str


class Earlier:
    """What earlier trials of this process own, weakly: give one to every trial's guard.

    Args:
        let_pass: Called with what is shared only because an earlier trial of this process made it; the
            trial is then not refused. Everything that was there before the first trial is held
            meanwhile, until `release`. None refuses it like anything else.
    """

    def __init__(self, let_pass: Callable[[IndependenceError], None] | None = None) -> None:
        self._kept: dict[int, _Kept] = {}
        self._before = None if let_pass is None else Inventory()
        self.let_pass = let_pass

    def made(self, thing: object) -> bool:
        """Whether an earlier trial made ``thing``, as far as that was to be known."""
        return self._before is not None and not self._before.has(thing)

    def release(self) -> None:
        """Let go of what was there before the first trial."""
        if self._before is not None:
            self._before.release()

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
        """Where an earlier trial has ``thing``; empty if none does."""
        kept = self._kept.get(id(thing))
        if kept is None or kept.reference() is not thing:
            return ""
        return f"{_whole(kept.path)} of trial {kept.trial}"


class Guard:
    """One trial's guard, as a context manager around its factories.

    Args:
        trial: The trial's number.
        warn: Called with what is allowed and may surprise.
        earlier: What earlier trials of this process own; None in a process of the trial's own.
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
        if not taken:
            self._owned.update(owned)
            return
        ends = outermost(taken)
        if what == "data":
            ends = [end for end in ends if not self._allowed_in_data(end)]
            if not ends:
                return
        earlier = self._earlier
        lasting = [end for end in ends if earlier is None or not earlier.made(end.thing)]
        error = self._refusal(what, visited, lasting or ends, thoroughly=bool(lasting))
        if lasting or earlier is None or earlier.let_pass is None:
            raise error
        earlier.let_pass(error)
        self._owned.update({key: each for key, each in owned.items() if key not in taken})

    def _refusal(
        self, what: What, visited: Visited, ends: list[Owned], *, thoroughly: bool
    ) -> IndependenceError:
        before = f"something that was there before {self._call(what)} was called"
        sharings = tuple(
            Sharing(end.kind, end.name, f"{_whole(end.path)} of this trial", where or before)
            for end, where in self._holders(ends, thoroughly=thoroughly)
        )
        shown = "; ".join(map(str, sharings[:_MOST_SHOWN]))
        if len(sharings) > _MOST_SHOWN:
            shown += f"; and {len(sharings) - _MOST_SHOWN} more"
        advice = advice_for(ends, visited.visits) or (
            f"build {'it' if len(sharings) == 1 else 'them'} inside {self._call(what)}"
        )
        return IndependenceError(f"{shown}; {advice}", sharings)

    def _allowed_in_data(self, end: Owned) -> bool:
        if end.kind not in (Sort.LAYER.value, Sort.MODEL.value, Sort.METRIC.value):
            return False
        (_, where), *_ = self._holders([end], thoroughly=False)
        self._warn(
            f"{end.kind} {end.name!r} is {end.path} of this trial and {where or 'held elsewhere'}; "
            "it has weights or random state, and every trial's data go through it: make it inside "
            f"{self._call('data')}"
        )
        return True

    def _holders(
        self, ends: list[Owned], *, thoroughly: bool = True
    ) -> Iterator[tuple[Owned, str]]:
        """Each with what else has it; ``thoroughly`` ends this guard's sight of ages."""
        factories = [*self._factories.values(), *self._others]
        found = holders_of([end.thing for end in ends], factories)
        for end in ends:
            earlier = "" if self._earlier is None else self._earlier.holder_of(end.thing)
            where = found.get(id(end.thing), "")
            if thoroughly and not where and not earlier:
                if self._line is not None:
                    self._line.thaw()
                where = referrer_of(end.thing)
            yield end, _joined(earlier, where)

    def _call(self, what: What) -> str:
        factory = self._factories.get(what)
        if what == "tracked":
            return "a factory"
        return f"the {what} factory" if factory is None else name_of(factory)

    def _warn_of_repeats(self, repeats: list[Repeat]) -> None:
        for repeat in repeats:
            self._warn(repeat.shown(self._call("model")))


def _was_filled(visit: Visit, old: set[int]) -> bool:
    """Whether a layer that was there before has weights that this trial made."""
    if visit.sort not in (Sort.LAYER, Sort.MODEL):
        return False
    fields = fields_of(visit.thing)
    weights = [*fields.get("_trainable_variables", ()), *fields.get("_non_trainable_variables", ())]
    return any(id(weight) not in old for weight in weights)


def _as_owned(visit: Visit) -> Owned:
    name = fields_of(visit.thing).get("name", "")
    return Owned(visit.thing, visit.sort.value, visit.path.text, name)


def _whole(path: str) -> str:
    return {"model": "the model", "step": "the training step"}.get(path, path)


def _joined(earlier: str, where: str) -> str:
    if earlier and where:
        return f"{earlier} (kept by {where})"
    return earlier or where
