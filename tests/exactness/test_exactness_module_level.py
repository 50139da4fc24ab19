"""State at module and class level, and what differs from process to process."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("made_once", "module_level", "per_process")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
