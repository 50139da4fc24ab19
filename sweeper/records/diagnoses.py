"""Records of `sweeper doctor`: value seen, value expected, advice, and whether a promise depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeper.records.printing import JsonRecord, json_fields

Level = Literal["ok", "note", "unpromised", "broken"]
"""Level of a finding. "note": information. "unpromised": a default promise does not hold on this machine.
"broken": no study can be run."""


@dataclass(frozen=True, slots=True)
class Diagnostic(JsonRecord):
    """Result of one check.

    Attributes:
        area: Area of the check: packages, machine or database.
        advice: What to do; empty for nothing.
    """

    area: str
    name: str
    level: Level
    seen: str
    expected: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Results of all checks, in order."""

    findings: Sequence[Diagnostic]

    @property
    def exit_code(self) -> int:
        """Return 1 if something is broken, otherwise 4 if a promise does not hold, otherwise 0."""
        levels = {finding.level for finding in self.findings}
        if "broken" in levels:
            return 1
        return 4 if "unpromised" in levels else 0

    def to_json(self) -> dict[str, Any]:
        return {"promised": self.exit_code == 0, **json_fields(self)}
