"""Judgement of a replay's differences: which of them break the promise of exactness.

`sweeper check`, `sweeper verify` and audits judge here, and differ only in where the replay comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sweeper.independence.reports import StudyAuthors
from sweeper.replay.clocks import excuse_measured
from sweeper.replay.findings import Difference, errors, excuse


def judge(
    found: Iterable[Difference],
    anyway: Iterable[Difference],
    authors: Callable[[], StudyAuthors | None],
) -> list[Difference]:
    """Return ``found``, the most severe first, with a note of what breaks no promise.

    Args:
        found: Differences between a trial and its replay.
        anyway: Differences between two runs that were treated alike: they excuse the same paths.
        authors: Returns what the user wrote, which tells what is computed from a clock. Called only
            where an error is left.
    """
    left = excuse(found, anyway)
    return excuse_measured(left, authors()) if errors(left) else left
