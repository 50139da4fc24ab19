"""Every study of the corpus ends the same after kills, or is refused as it says."""

from __future__ import annotations

from exactness_list import groups

GROUPS = tuple(group for group in groups() if group != "controls")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    judge(part, kills)
