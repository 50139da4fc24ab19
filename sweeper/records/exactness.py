"""Results of a study's audits and verifications, as frozen records and as one sentence.

An audit resumes a trial from one checkpoint in a fresh process and compares what it has at the
next. So a hole that nobody thought of is found on the study that runs, by its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast, get_args

from sweeper.errors import DefinitionError
from sweeper.records.printing import json_fields, values_shown

AuditPolicy = Literal["auto", "all", "off"]
"""Intervals that a study audits: the first ones and some more, every one, or none."""

AuditOutcome = Literal["alike", "differs", "dropped"]
"""Result of an audit. "dropped": without a verdict, such as for want of its checkpoint."""

VerificationMode = Literal["replay", "interrupt"]
"""Mode of a replay: from nothing in one go, or killed on the way and resumed."""

VerificationVerdict = Literal["holds", "differs", "unpromised"]
"""Verdict of a verification. "unpromised": nothing contradicts itself, and the study has
``deterministic=False``, so that a replay proves nothing either way."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One interval of a trial that was pinned to be audited.

    Attributes:
        from_step: Where it is resumed; 0 where it begins with the trial.
        to_step: Where it is compared.
        outcome: None before there is one.
        seconds: That the audit took, all tries and replays together; None before.
        message: What differs, or why it was dropped; None where it is alike.

    Examples:
        >>> [(audit.from_step, audit.to_step, audit.alike) for audit in study.results().trials[0].audits]
        [(...)]
    """

    from_step: int
    to_step: int
    outcome: AuditOutcome | None = None
    seconds: float | None = None
    message: str | None = None

    @property
    def alike(self) -> bool | None:
        """Return the verdict; None if there is none yet."""
        return {"alike": True, "differs": False}.get(self.outcome or "")

    def __str__(self) -> str:
        said = "" if self.message is None else f": {self.message}"
        return (
            f"audit of steps {self.from_step} to {self.to_step}: {self.outcome or 'pending'}{said}"
        )

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "from_step", "to_step", "alike")


@dataclass(frozen=True, slots=True)
class AuditedDifference:
    """The first interval of a study whose audit found a difference, and what that was.

    Attributes:
        trial: The trial's number.
        from_step: Where the interval was resumed.
        to_step: Where it was compared.
        message: What differs, with both values.
        advice: Who may be why, and what to do; empty where that is not known.

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
        intervals: How many have a verdict.
        alike: How many of them were the same, bit for bit.
        pending: How many wait for theirs.
        unaudited: Why nothing is audited; None where something is.
        difference: The first that was found; None where none was.
        accepted: Whether somebody has gone on all the same (``--accept-inexact``).

    Examples:
        >>> print(study.status().exactness.line)
        exactness: ...
    """

    intervals: int = 0
    alike: int = 0
    pending: int = 0
    unaudited: str | None = None
    difference: AuditedDifference | None = None
    accepted: bool = False

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "intervals", "alike")

    @property
    def warning(self) -> str | None:
        """Return the warning that belongs beside the study's results; None if there is none."""
        if self.difference is None:
            return None
        return f"exactness is not promised: an audit found that {self.difference.message}"

    @property
    def line(self) -> str:
        """Return one sentence for display, and a second one if a difference was found."""
        if self.intervals == 0:
            return f"exactness: {self.unaudited or 'nothing audited yet'}"
        counted = f"exactness: {self.alike} of {self.intervals} audited intervals alike"
        return counted if self.warning is None else f"{counted}; {self.warning}"


@dataclass(frozen=True, slots=True)
class VerificationRecord:
    """Result of one `sweeper verify` of a trial.

    Attributes:
        checked_at: When; the database's clock.
        mode: "replay" from nothing in one go, or "interrupt", killed on the way and resumed.
        verdict: "holds", "differs", or "unpromised" of a study with ``deterministic=False``.
        epoch: The first epoch that differs, from 0; None where none does.
        step: Of the first checkpoint that differs, or that is damaged.
        variable: The first variable that differs in it.
        report: Everything that was compared and found, as ``sweeper verify --json`` has it.

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
        differing = {"epoch": epoch, "step": self.step, "variable": self.variable}
        shown = values_shown({name: at for name, at in differing.items() if at is not None})
        at = f" at {shown}" if shown else ""
        return f"{self.mode} of {self.checked_at:%Y-%m-%d %H:%M}: {self.verdict}{at}"

    def to_json(self) -> dict[str, Any]:
        said = json_fields(self, "checked_at", "mode", "verdict", "epoch", "step", "variable")
        return {**said, "message": self.report.get("message")}


def checked_audit(audit: Any) -> AuditPolicy:
    """Return ``audit`` if it is a policy.

    Raises:
        DefinitionError: It is not such a number.
    """
    if not isinstance(audit, str) or audit not in get_args(AuditPolicy):
        msg = f"audit={audit!r}; it is one of {', '.join(map(repr, get_args(AuditPolicy)))}"
        raise DefinitionError(msg)
    return cast("AuditPolicy", audit)
