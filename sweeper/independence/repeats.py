"""Initializers that give the same values again: to two weights, or to every trial.

An initializer without a seed draws one when it is made, and begins from it at every call. Given to
two layers, their weights begin equal; made where the study is imported, every trial begins with the
same weights, whatever its seed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from sweeper.independence.ownership.reachable import Visit
from sweeper.inspection.sorts import Sort, fields_of, label_of


@dataclass(frozen=True, slots=True)
class Repeat:
    """An initializer without a seed that gives its values more than once.

    Attributes:
        name: The initializer's class.
        paths: Where the model has it.
        old: Whether it was there before the trial.
    """

    name: str
    paths: tuple[str, ...]
    old: bool

    def shown(self, factory: str) -> str:
        """The warning."""
        where = " and ".join(self.paths)
        if self.old:
            return (
                f"initializer {self.name} of {where} was made without a seed before {factory} was "
                f"called, so every trial begins with the same weights there; make it inside "
                f"{factory}"
            )
        return (
            f"initializer {self.name} has no seed and is shared by {where}: weights of the same "
            "shape begin equal; make one for each"
        )


def repeating_initializers(visits: list[Visit], old: set[int]) -> list[Repeat]:
    """Those among the visits, in order.

    Args:
        visits: Of a model.
        old: The ids of what was there before the trial.
    """
    paths: dict[int, list[str]] = defaultdict(list)
    things: dict[int, Any] = {}
    for visit in visits:
        if visit.sort not in (Sort.LAYER, Sort.MODEL):
            continue
        for name, value in list(fields_of(visit.thing).items()):
            # A layer that was there before has its weights, and its initializer is done.
            if _draws_its_seed(value) and id(visit.thing) not in old:
                label = label_of(visit.thing, visit.sort)
                paths[id(value)].append(f"{visit.path.text} {label!r} → {name.lstrip('_')}")
                things[id(value)] = value
    return [
        Repeat(type(thing).__name__, tuple(paths[key]), key in old)
        for key, thing in things.items()
        if key in old or len(paths[key]) > 1
    ]


def _draws_its_seed(value: Any) -> bool:
    from keras.initializers import Initializer

    if Initializer not in type(value).__mro__:
        return False
    fields = fields_of(value)
    return "_init_seed" in fields and fields["_init_seed"] is None
