"""Validation, metrics that are vectors, order and identity."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("validating", "ordering")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
