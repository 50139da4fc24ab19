"""Findings of a verification, as frozen records that become a report and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sweeper.records.code import CodeGroup
from sweeper.records.printing import json_fields
from sweeper.records.results import VerificationMode, VerificationVerdict

Level = Literal["error", "warning", "note"]

What = Literal[
    "parameter",
    "replay",
    "file",
    "files",
    "metric",
    "tensor",
    "state",
    "checkpoint",
    "value",
    "digest",
    "fingerprint",
    "promise",
]
"""Subject of a finding, as one word for programs."""


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """A difference, or a limit of the verification.

    Attributes:
        level: ``"error"``: a promise does not hold. ``"warning"`` and ``"note"`` do not affect the
            verdict.
        message: A sentence with the names that the user wrote, and both values.
        epoch: The epoch concerned, from 0.
        step: Step of the checkpoint concerned.
        file: The file concerned.
        variable: The parameter, metric, variable or tensor concerned.
        stored: Value in the database or the kept checkpoint.
        replayed: Value in the replay; None if that was not compared.
        by_replay: Whether only the replay contradicts the stored data. Otherwise the stored data
            contradict themselves, which no difference of environments explains.
    """

    level: Level
    what: What
    message: str
    epoch: int | None = None
    step: int | None = None
    file: str | None = None
    variable: str | None = None
    stored: Any = None
    replayed: Any = None
    by_replay: bool = False


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Record of a trial's replay.

    Attributes:
        steps: Optimizer steps at its end.
        starts: The step at which each of its processes began.
        killed_at: The step at which the first process was to be killed; None without a kill.
        seed: Seed of that step.
    """

    isolation: str
    seconds: float
    steps: int | None
    starts: tuple[int, ...]
    killed_at: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """Numbers of compared items."""

    epochs: int = 0
    metrics: int = 0
    checkpoints: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class TrialVerification:
    """One trial's verification.

    Attributes:
        findings: In order of importance; causes precede their effects.
        explanations: Differences between the environments of the trial and the replay.
        promised: Whether the study has deterministic kernels.
    """

    study: str
    number: int
    mode: VerificationMode
    findings: tuple[VerifyFinding, ...]
    explanations: tuple[str, ...]
    compared: Compared
    replay: ReplayRun | None
    promised: bool = True

    @property
    def verdict(self) -> VerificationVerdict:
        if any(finding.level == "error" for finding in self.findings):
            return "differs"
        return "holds" if self.promised else "unpromised"

    @property
    def epoch(self) -> int | None:
        """Return the first epoch that differs."""
        return min((f.epoch for f in self._differing if f.epoch is not None), default=None)

    @property
    def step(self) -> int | None:
        """Return the step of the first checkpoint that differs or is damaged."""
        return min((f.step for f in self._differing if f.step is not None), default=None)

    @property
    def variable(self) -> str | None:
        """Return the first variable that differs in that checkpoint."""
        step = self.step
        named = [f for f in self._differing if f.variable and f.what in ("tensor", "file")]
        return next((f.variable for f in named if f.step == step), None)

    @property
    def message(self) -> str:
        """Return the verdict in a sentence."""
        if self._differing:
            more = len(self._differing) - 1
            also = f" (and {more} more)" if more else ""
            return f"{self._differing[0].message}{also}"
        counted = ", ".join(
            f"{count} {name if count != 1 else name.removesuffix('s')}"
            for name, count in (
                ("epochs", self.compared.epochs),
                ("checkpoints", self.compared.checkpoints),
            )
            if count
        )
        how = f"final digest, value, {counted} equal" if counted else "final digest and value equal"
        if self.replay is not None and len(self.replay.starts) > 1:
            last = self.replay.starts[-1]
            how += f", killed at step {self.replay.killed_at} and resumed at step {last}"
        if not self.promised:
            shared = next((f.message for f in self.findings if f.what == "files"), None)
            how += f"; {shared or 'exactness is not promised (deterministic=False)'}"
        return how

    @property
    def unexplained(self) -> bool:
        """Return whether the replay differs without a known explanation."""
        causes = any(finding.what == "parameter" for finding in self._differing)
        replays = any(finding.by_replay for finding in self._differing)
        return replays and not causes and not self.explanations

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "study", "number", "mode", "verdict", "message"),
            **json_fields(self, "epoch", "step", "variable"),
            "findings": [asdict(finding) for finding in self.findings],
            "explanations": list(self.explanations),
            "compared": asdict(self.compared),
            "replay": None if self.replay is None else asdict(self.replay),
            "promised": self.promised,
        }

    @property
    def _differing(self) -> Sequence[VerifyFinding]:
        return [finding for finding in self.findings if finding.level == "error"]


@dataclass(frozen=True, slots=True)
class Unverified:
    """A trial that ``--all`` skipped, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True)
class StudyVerification:
    """Result of one `sweeper verify`.

    Attributes:
        surroundings: Environment of the replays.
        codes: The study's trials by their code, if it differs: then the study is mixed, and its
            trials cannot be compared.
    """

    study: str
    trials: tuple[TrialVerification, ...]
    passed_over: tuple[Unverified, ...] = ()
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    codes: tuple[CodeGroup, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether no trial differs, and all ran under one definition and code."""
        return not self.codes and all(trial.verdict != "differs" for trial in self.trials)

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "study", "holds", "trials"),
            "passed_over": [asdict(trial) for trial in self.passed_over],
            "surroundings": dict(self.surroundings),
            **({"codes": [group.to_json() for group in self.codes]} if self.codes else {}),
        }
