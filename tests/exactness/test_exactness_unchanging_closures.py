"""Closures, models and data over what has no plain form and never changes."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("unchanging_closures", "unchanging_models")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
