"""Steps of one's own."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("own_steps", "own_steps_traced", "training_steps")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
