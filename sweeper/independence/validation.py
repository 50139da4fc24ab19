"""Comparison of the validation data of two trials: values compare only on the same samples."""

from __future__ import annotations

from sweeper.independence.findings import Finding
from sweeper.independence.reports import RehearsalReport


def validation_differs(first: RehearsalReport | None, second: RehearsalReport | None) -> bool:
    """Return whether two trials were seen to validate on different samples, in whatever order."""
    if first is None or second is None or first.validation is None or second.validation is None:
        return False
    return first.validation != second.validation


def validation_finding(first: RehearsalReport, second: RehearsalReport) -> Finding | None:
    """Return the warning that two trials with equal parameters are validated on different samples.

    Args:
        first: Of the process that built trial 0.
        second: Of the process that built trial 1 with the parameters of trial 0.
    """
    if not validation_differs(first, second):
        return None
    data, splits = first.code.data, first.code.splits
    called = f"; most likely by {' or '.join(map(str, splits[:3]))}" if splits else ""
    unseeded = any("random_state" in split.call for split in splits)
    cure = "give it random_state=0, or" if unseeded else "draw the split from"
    return Finding(
        "warning",
        "validation",
        f"trials are validated on different samples, so their values do not compare: {data.name} gave "
        f"two trials with equal parameters other validation data{called}; {cure} a seed that does "
        "not depend on the trial",
        splits[0].line if splits else data.line,
    )
