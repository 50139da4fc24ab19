"""Advice on an object that trials share, where it is more than building it in a factory.

A metric at the top of a file that ``train_step`` and ``metrics`` of a model's class use, as many
guides write it, has to move into the class: the factory never names it. A dataset may stay where it
is if it is not shuffled anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeper.independence.ownership.aliases import Owned
from sweeper.independence.ownership.reachable import Visit
from sweeper.inspection.sorts import Sort, is_users_class

_CODE = frozenset({Sort.CACHE, Sort.DESCRIPTOR, Sort.FUNCTION, Sort.METHOD, Sort.PARTIAL})


def advice_for(ends: Sequence[Owned], visits: Sequence[Visit], factory: str) -> str:
    """Return how to mend the sharing.

    Args:
        ends: The objects that are shared.
        visits: Of the walk that found them.
        factory: The factory that gave them.
    """
    them = "it" if len(ends) == 1 else "them"
    if all(end.kind == Sort.TFDATA.value for end in ends):
        return (
            f"each reading of {them} is shuffled anew, so build {them} inside {factory}, or give the "
            "shuffle reshuffle_each_iteration=False"
        )
    classes = {_class_that_uses(end, visits) for end in ends}
    cls = classes.pop() if len(classes) == 1 else None
    if cls is None:
        return f"build {them} inside {factory}"
    it, attribute = ("it", "an attribute") if len(ends) == 1 else ("them", "attributes")
    return (
        f"make {it} in {cls.__qualname__}.__init__, as {attribute} of self, so that every model "
        "has its own"
    )


def _class_that_uses(end: Owned, visits: Sequence[Visit]) -> Any:
    """The user's class whose method uses the metric ``end``; None for anything else."""
    if end.kind != Sort.METRIC.value or not end.by_code:
        return None
    index = next(i for i, visit in enumerate(visits) if visit.thing is end.thing)
    above = visits[index].parent
    while above >= 0 and (visits[above].sort in _CODE or visits[above].by_code):
        above = visits[above].parent
    owner = type(visits[above].thing) if above >= 0 else None
    return owner if owner is not None and is_users_class(owner) else None
