"""Undoing of the changes that a trial makes in objects of the user's that its process's next trial sees too."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sweeper.inspection.sorts import Sort, sort_of
from sweeper.inspection.walk import MOST, ObjectPath, cached_values
from sweeper.train.codec import UnplaceableError
from sweeper.train.userstate.values import Cache
from sweeper.train.userstate.walk import Walk

_GUARDED = frozenset({Sort.CALLBACK, Sort.LAYER, Sort.MODEL, Sort.OPTIMIZER})
"""Sorts of results that the guard refuses to the next trial, which would otherwise be hidden from it."""


@contextmanager
def changes_undone(
    factories: Iterable[tuple[str, Callable[..., Any]]], notice: Callable[[str], None]
) -> Iterator[None]:
    """Context manager for a trial that restores at its end what the factories' code reached at its beginning.

    That is everything of the study's modules, classes and closures, and the environment. A cache of
    `functools` that was empty is cleared, because training may have changed the results in it, unless
    the guard refuses them.

    Args:
        factories: The study's factories, each with its name.
        notice: Called with a notice about objects that cannot be restored.
    """
    walk = Walk(frozenset(), frozenset())
    walk.visit([(ObjectPath(name), factory) for name, factory in factories])
    walk.visit([(ObjectPath("os.environ"), os.environ)])
    walk.begin()
    caches = [holder for holder in walk.holders if isinstance(holder, Cache)]
    filled = {id(cache) for cache in caches if cache.obj.cache_info().currsize}
    try:
        yield
    finally:
        left = list(_not_restored(walk, filled))
        if walk.cut:
            left.append(f"objects beyond the first {MOST:,} that the study's code reaches")
        if left:
            notice(
                f"this trial may have changed {', '.join(left)}, which cannot be restored, so later trials of "
                "this process begin with the change; run the study without isolation='inline'"
            )


def _not_restored(walk: Walk, filled: Container[int]) -> Iterable[str]:
    """Restore what has changed, and yield the paths of what cannot be; ``filled`` are caches that had results."""
    for holder in walk.holders:
        if not holder.changed():
            continue
        if isinstance(holder, Cache):
            if id(holder) in filled:
                yield holder.path
            elif _GUARDED.isdisjoint(map(sort_of, cached_values(holder.obj))):
                holder.obj.cache_clear()
            continue
        try:
            holder.reset()
        except UnplaceableError:
            yield holder.path
        else:
            if holder.changed():
                yield holder.path
