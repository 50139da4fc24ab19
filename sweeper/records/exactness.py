"""Results of a study's audits and verifications, as frozen records and as one sentence.

An audit resumes a trial from a checkpoint in a new process and compares its state at the next
checkpoint. So it finds any state that is not captured, by its effect on the running study.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sweeper.records.printing import json_fields, values_shown

AuditPolicy = Literal["auto", "all", "off"]
"""Intervals that a study audits: the last ones of the first trial and of drawn ones, all, or none."""

AuditOutcome = Literal["identical", "differs", "dropped"]
"""Result of an audit. "dropped": no verdict, for example because a checkpoint is missing."""

VerificationMode = Literal["replay", "interrupt"]
"""Mode of a verification: replayed without interruption, or killed and resumed on the way."""

VerificationVerdict = Literal["holds", "differs", "unpromised"]
"""Verdict of a verification. "unpromised": no contradiction was found, but the study has
``deterministic=False``, so that a replay may differ."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Verdict on one interval of a trial.

    Attributes:
        from_step: Step at which it is resumed; 0 if it starts with the trial.
        to_step: Step at which it is compared.
        outcome: Result of the audit.
        seconds: Total duration of the audit's replays.
        message: What differs, or why the audit was dropped; None if the two are identical.

    Examples:
        >>> [(audit.from_step, audit.to_step, audit.identical) for audit in study.results().trials[0].audits]
        [(...)]
    """

    from_step: int
    to_step: int
    outcome: AuditOutcome
    seconds: float
    message: str | None = None

    @property
    def identical(self) -> bool | None:
        """Return the verdict; None if the audit gave none."""
        return {"identical": True, "differs": False}.get(self.outcome)

    def __str__(self) -> str:
        detail = "" if self.message is None else f": {self.message}"
        return f"audit of steps {self.from_step} to {self.to_step}: {self.outcome}{detail}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "from_step", "to_step", "identical")


@dataclass(frozen=True, slots=True)
class AuditedDifference:
    """First interval of a study in which an audit found a difference.

    Attributes:
        trial: The trial's number.
        from_step: Step at which the interval was resumed.
        to_step: Step at which it was compared.
        message: What differs, with both values.
        advice: Probable causes and advice; empty if unknown.

    Examples:
        >>> difference = study.status().exactness.difference
        >>> difference is None or difference.trial
        True
    """

    trial: int
    from_step: int
    to_step: int
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of a study's audits so far.

    Attributes:
        intervals: Number of intervals with a verdict.
        identical: Number of those that were bit-identical.
        unaudited: The reason for which the study is not audited; None if it is.
        difference: The first difference; None without one.
        accepted: Whether differences were accepted (``--accept-inexact``).

    Examples:
        >>> print(study.status().exactness.line)
        exactness: ...
    """

    intervals: int = 0
    identical: int = 0
    unaudited: str | None = None
    difference: AuditedDifference | None = None
    accepted: bool = False

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "intervals", "identical")

    @property
    def warning(self) -> str | None:
        """Return the warning to show with the study's results; None without a difference."""
        if self.difference is None:
            return None
        return f"exactness is not promised: an audit found that {self.difference.message}"

    @property
    def line(self) -> str:
        """Return one sentence for display, and a second one if a difference was found."""
        if self.intervals == 0:
            return f"exactness: {self.unaudited or 'nothing audited yet'}"
        counted = f"exactness: {self.identical} of {self.intervals} audited intervals identical"
        return counted if self.warning is None else f"{counted}; {self.warning}"


@dataclass(frozen=True, slots=True)
class VerificationRecord:
    """Result of one `sweeper verify` of a trial.

    Attributes:
        checked_at: Time of the verification, by the database's clock.
        mode: "replay" without interruption, or "interrupt", killed and resumed on the way.
        verdict: "holds", "differs", or "unpromised" for a study with ``deterministic=False``.
        epoch: The first epoch that differs, from 0; None if none differs.
        step: Step of the first checkpoint that differs or is damaged; None without one.
        variable: The first variable that differs in it; None without one.
        report: The complete report, as in ``sweeper verify --json``.

    Examples:
        >>> verification = study.results().best.verification
        >>> None if verification is None else verification.verdict  # None before any `sweeper verify`
    """

    checked_at: datetime
    mode: VerificationMode
    verdict: VerificationVerdict
    epoch: int | None
    step: int | None
    variable: str | None
    report: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        epoch = None if self.epoch is None else self.epoch + 1
        first = {"epoch": epoch, "step": self.step, "variable": self.variable}
        differing = {name: value for name, value in first.items() if value is not None}
        position = f" at {values_shown(differing)}" if differing else ""
        return f"{self.mode} of {self.checked_at:%Y-%m-%d %H:%M}: {self.verdict}{position}"

    def to_json(self) -> dict[str, Any]:
        values = json_fields(self, "checked_at", "mode", "verdict", "epoch", "step", "variable")
        return {**values, "message": self.report.get("message")}
