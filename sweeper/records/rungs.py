"""Decisions at the rungs of a study's budget, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sweeper.records.printing import counted, value_shown


@dataclass(frozen=True, slots=True)
class ComparedTrial:
    """One trial in a rung's decision.

    Attributes:
        number: The trial's.
        value: The objective that it had reached; None where it had failed or that is NaN.
        promoted: Whether it went on.
    """

    number: int
    value: float | None
    promoted: bool

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "value": self.value, "promoted": self.promoted}


@dataclass(frozen=True, slots=True)
class RungDecision:
    """A decided rung of one round.

    Attributes:
        bracket: From 0.
        first: The number of the round's first trial.
        epochs: After which its trials paused.
        decided_at: The database's clock.
        compared: Who was compared, by number.
    """

    bracket: int
    first: int
    epochs: int
    decided_at: datetime
    compared: tuple[ComparedTrial, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "bracket": self.bracket,
            "first": self.first,
            "epochs": self.epochs,
            "decided_at": self.decided_at.isoformat(),
            "compared": [trial.to_json() for trial in self.compared],
        }


@dataclass(frozen=True, slots=True)
class RungRecord:
    """One trial at one rung.

    Attributes:
        epochs: After which it paused, or was compared there although it was over before.
        value: The objective that it had reached; None where it had failed or that is NaN.
        promoted: Whether it went on; None before that is decided.
        decision: Of the rung, with everybody who was compared; None before it is decided.

    Examples:
        >>> study.results().best.rungs  # of a study with a budget alone
        ()
    """

    epochs: int
    value: float | None
    promoted: bool | None
    decision: RungDecision | None = None

    def __str__(self) -> str:
        decided = {None: "not decided", True: "promoted", False: "ended"}[self.promoted]
        return f"rung after {counted(self.epochs, 'epoch')}: value={value_shown(self.value)}, {decided}"

    def to_json(self) -> dict[str, Any]:
        decision: Mapping[str, Any] | None = None
        if self.decision is not None:
            decision = self.decision.to_json()
        return {
            "epochs": self.epochs,
            "value": self.value,
            "promoted": self.promoted,
            "decision": decision,
        }
