"""Late changes of the model and its optimizer."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("late_changes",)


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
