"""What the code of a class says that its methods change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sweeper.inspection.code import changes_of


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        return function(*arguments)

    return around


class Decorated:
    def __init__(self) -> None:
        self.count = 0
        self.items: list[int] = []

    @logged
    def increase(self) -> None:
        self.count += 1

    @functools.cached_property
    def first(self) -> int:
        self.items.append(1)
        return self.items[0]

    @property
    def size(self) -> int:
        return len(self.items)


def test_a_decorated_methods_changes_are_seen() -> None:
    changes = changes_of(Decorated)
    assert changes.methods == {"increase", "first"}
    assert (changes.assigned, changes.mutated) == ({"count"}, {"items"})
