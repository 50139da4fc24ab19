"""Next commands for pages and notes, given by the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.records.results import StudyStatus, TrialRecord


def _none(_record: object) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Advice:
    """Commands, exactly as they must be typed in the dashboard's directory."""

    study: Callable[[StudyStatus], Sequence[str]] = _none
    trial: Callable[[TrialRecord], Sequence[str]] = _none
