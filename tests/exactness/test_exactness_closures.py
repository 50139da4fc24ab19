"""State in closures, default arguments, partials and plain objects."""

from __future__ import annotations

from exactness_checks import check

GROUPS = ("closures", "closures_of_parts")


def test_it_ends_the_same_after_kills_or_is_refused(part, kills, judge) -> None:
    check(part, judge(part, kills))
