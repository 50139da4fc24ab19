"""What our pages show, worked out from the records: the studies, one study, one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sweeper.records.rungs import RungDecision
from sweeper.records.status import TrialStatus, ranked
from sweeper.report.dashboard.annotations import objectives
from sweeper.report.dashboard.lineage import Lineage, lineage
from sweeper.report.formats import last_line, objective_first
from sweeper.report.rungs import decisions_of
from sweeper.results import (
    AttemptRecord,
    CheckpointRecord,
    EpochRecord,
    EvaluationRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    WorkerRecord,
)
from sweeper.storage.repository import StudyRow

_LEADERS = 5
_SHOWN_EPOCHS = 30
_COUNTS = ("complete", "running", "interrupted", "paused", "pruned", "failed", "waiting")
_SETTINGS = (
    "epochs",
    "concurrency",
    "sampler",
    "pruner",
    "budget",
    "checkpoint_every",
    "deterministic",
    "audit",
    "at",
)


@dataclass(frozen=True, slots=True)
class IndexPage:
    """All studies of the database, and each one's number in Optuna's tables."""

    studies: tuple[StudyStatus, ...]
    optuna_ids: Mapping[str, int]

    @property
    def live(self) -> bool:
        """Whether something on it changes by itself."""
        return any(study.running for study in self.studies)


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """One trial in a study's table.

    Attributes:
        values: Of each objective, in order; None where there is none yet.
        worked, paused: Seconds.
        reason: Why it failed, or waits; empty of any other.
    """

    trial: TrialRecord
    values: tuple[float | None, ...]
    epochs: int | None
    worked: float
    paused: float
    reason: str


@dataclass(frozen=True, slots=True)
class StudyPage:
    """One study.

    Attributes:
        counts: How many trials are in which state, those that there are.
        names: Of the parameters that any trial has.
        running: The trials that run, with the epochs that they have finished.
        decisions: What was decided at the rungs of its budget.
        commands: What to type next.
    """

    status: StudyStatus
    row: StudyRow
    optuna_id: int
    counts: tuple[tuple[str, int], ...]
    settings: tuple[tuple[str, str], ...]
    objectives: tuple[Any, ...]
    names: tuple[str, ...]
    leaders: tuple[RankedTrial, ...]
    running: tuple[TrialStatus, ...]
    trials: tuple[RankedTrial, ...]
    decisions: tuple[RungDecision, ...]
    audits: tuple[tuple[TrialRecord, Any], ...]
    workers: tuple[WorkerRecord, ...]
    commands: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether something on it changes by itself."""
        return self.status.running > 0 or any(worker.live for worker in self.workers)


@dataclass(frozen=True, slots=True)
class TrialPage:
    """One trial.

    Attributes:
        epochs: How many it trains for at most; None where its study does not say.
        metrics: The names of its metrics, the objective first.
        shown: Its latest epochs.
        checkpoints: Each with the attempt that wrote it; 0 where that is unknown.
        branches: The numbers of the trials that begin from one of them.
        commands: What to type next.
    """

    trial: TrialRecord
    row: StudyRow
    optuna_id: int
    epochs: int | None
    lineage: Lineage
    metrics: tuple[str, ...]
    shown: tuple[EpochRecord, ...]
    checkpoints: tuple[tuple[CheckpointRecord, int], ...]
    branches: tuple[int, ...]
    evaluations: tuple[EvaluationRecord, ...]
    commands: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether something on it changes by itself."""
        return self.trial.state == "running"


def index_page(statuses: Sequence[StudyStatus], optuna_ids: Mapping[str, int]) -> IndexPage:
    """Return the page of all studies, the newest first."""
    return IndexPage(tuple(reversed(statuses)), optuna_ids)


def study_page(
    results: StudyResults,
    row: StudyRow,
    *,
    workers: Sequence[WorkerRecord],
    optuna_id: int,
    commands: Sequence[str],
    now: datetime,
) -> StudyPage:
    """Return the page of a study at the moment ``now``."""
    status = results.status
    epochs = _epochs(row)
    shown = [_ranked(trial, status, epochs, now) for trial in ranked(results.trials, status)]
    complete = [each for each in shown if each.trial.state == "complete"]
    return StudyPage(
        status=status,
        row=row,
        optuna_id=optuna_id,
        counts=tuple((name, getattr(status, name)) for name in _COUNTS if getattr(status, name)),
        settings=_settings(row),
        objectives=tuple(objectives(status)),
        names=tuple(dict.fromkeys(name for t in results.trials for name in t.params)),
        leaders=tuple(complete[: max(_LEADERS, len(status.pareto))]),
        running=tuple(each for each in status.trials if each.state == "running"),
        trials=tuple(sorted(shown, key=lambda each: each.trial.number)),
        decisions=decisions_of(results.trials),
        audits=tuple((trial, audit) for trial in results.trials for audit in trial.audits),
        workers=tuple(workers),
        commands=tuple(commands),
    )


def trial_page(
    trial: TrialRecord,
    row: StudyRow,
    *,
    branches: Sequence[int],
    optuna_id: int,
    commands: Sequence[str],
    now: datetime,
) -> TrialPage:
    """Return the page of a trial at the moment ``now``."""
    names = dict.fromkeys((name for epoch in trial.epochs for name in epoch.metrics), 0.0)
    return TrialPage(
        trial=trial,
        row=row,
        optuna_id=optuna_id,
        epochs=_epochs(row),
        lineage=lineage(trial, now),
        metrics=tuple(objective_first(names, row.objective)),
        shown=trial.epochs[-_SHOWN_EPOCHS:],
        checkpoints=tuple((each, _attempt_of(each, trial.attempts)) for each in trial.checkpoints),
        branches=tuple(branches),
        evaluations=trial.evaluations,
        commands=tuple(commands),
    )


def _ranked(
    trial: TrialRecord, status: StudyStatus, epochs: int | None, now: datetime
) -> RankedTrial:
    found = lineage(trial, now)
    values: tuple[float | None, ...] = (trial.value,)
    if status.objectives:
        values = tuple((trial.values or {}).get(each.name) for each in status.objectives)
    reason = ""
    if trial.state == "failed":
        reason = last_line(trial.error or "")
    elif trial.state == "interrupted" and found.attempts:
        reason = found.attempts[-1].ending
    return RankedTrial(trial, values, epochs, found.worked, found.paused, reason)


def _epochs(row: StudyRow) -> int | None:
    epochs = row.definition.get("epochs")
    return epochs if isinstance(epochs, int) else None


def _settings(row: StudyRow) -> tuple[tuple[str, str], ...]:
    shown = [("seed", str(row.seed))]
    for name in _SETTINGS:
        value = row.definition.get(name)
        if isinstance(value, dict):
            value = value.get("class", value.get("name"))
        if value is not None:
            shown.append((name.replace("_", " "), str(value)))
    return tuple(shown)


def _attempt_of(checkpoint: CheckpointRecord, attempts: Sequence[AttemptRecord]) -> int:
    """Which attempt wrote it: its directory says so."""
    for attempt in attempts:
        if f"/attempt-{attempt.number:02d}/" in checkpoint.path:
            return attempt.number
    return 0
