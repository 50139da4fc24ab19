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
    data = first.code.data
    return Finding(
        "warning",
        "validation",
        f"trials are validated on different samples, so their values do not compare: {data.name} gave "
        "two trials with equal parameters other validation data; draw the split from a seed that does "
        "not depend on the trial, such as random_state=0",
        data.line,
    )
