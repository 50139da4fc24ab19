"""Whether what was decided at a trial's rungs follows from what its trials have stored.

A decision is a function of the values that its trials had reached, so it can be made again: a value
or a decision that was changed in the database by hand is found by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sweeper.declared.budgets import promoted, rung_schedule
from sweeper.declared.searching import value_at
from sweeper.definition import StudySettings
from sweeper.records.rungs import RungDecision, RungRecord
from sweeper.results import TrialRecord
from sweeper.verification.findings import Finding


def check_rungs(
    record: TrialRecord, trials: Mapping[int, TrialRecord], settings: StudySettings
) -> list[Finding]:
    """Decide the trial's rungs again, and compare; empty where all is as it is stored.

    Args:
        record: The trial.
        trials: Every trial of the study, by number.
        settings: The study's.
    """
    schedule = rung_schedule(settings.budget, settings.epochs)
    if schedule is None:
        return []
    found: list[Finding] = []
    before: RungDecision | None = None
    for rung in record.rungs:
        if rung.decision is None:
            continue
        found += _of_values(rung.decision, trials, settings)
        found += _of_members(rung.decision, before)
        found += _of_decision(rung.decision, trials, schedule.factor, settings)
        found += _of_trial(record, rung)
        before = rung.decision
    return found


def _of_values(
    decision: RungDecision, trials: Mapping[int, TrialRecord], settings: StudySettings
) -> Iterator[Finding]:
    for each in decision.compared:
        expected = _reached(trials.get(each.number), decision.epochs, settings)
        if expected != each.value:
            yield _finding(
                decision,
                f"compared trial {each.number} with the value {each.value!r}, and its epochs have "
                f"{expected!r}",
                stored=each.value,
                replayed=expected,
            )


def _of_members(decision: RungDecision, before: RungDecision | None) -> Iterator[Finding]:
    numbers = [each.number for each in decision.compared]
    expected = list(range(decision.first, decision.first + len(numbers)))
    if before is not None:
        expected = [each.number for each in before.compared if each.promoted]
    if numbers != expected:
        yield _finding(
            decision,
            f"compared the trials {numbers}, and its members are {expected}",
            stored=numbers,
            replayed=expected,
        )


def _of_decision(
    decision: RungDecision,
    trials: Mapping[int, TrialRecord],
    factor: int,
    settings: StudySettings,
) -> Iterator[Finding]:
    values = {
        each.number: _reached(trials.get(each.number), decision.epochs, settings)
        for each in decision.compared
    }
    expected = list(promoted(values, factor, settings.direction))
    stored = [each.number for each in decision.compared if each.promoted]
    if stored != expected:
        yield _finding(
            decision,
            f"promoted the trials {stored}, and by their values these are {expected}",
            stored=stored,
            replayed=expected,
        )


def _of_trial(record: TrialRecord, rung: RungRecord) -> Iterator[Finding]:
    """What became of the trial must be what was decided."""
    if rung.promoted:
        wrong = record.state == "pruned" and len(record.epochs) == rung.epochs
    else:
        wrong = len(record.epochs) > rung.epochs
    if rung.decision is not None and wrong:
        what = "promoted" if rung.promoted else "left behind"
        yield _finding(
            rung.decision,
            f"{what} trial {record.number}, which is {record.state} after {len(record.epochs)} epochs",
            stored=rung.promoted,
        )


def _reached(trial: TrialRecord | None, epochs: int, settings: StudySettings) -> float | None:
    """What the trial's epochs say that it was compared by."""
    if trial is None:
        return None
    values = [
        epoch.metrics[settings.objective]
        for epoch in trial.epochs
        if epoch.epoch < epochs and settings.objective in epoch.metrics
    ]
    paused = sum(attempt.outcome == "paused" for attempt in trial.attempts)
    earlier = sum(rung.epochs < epochs for rung in trial.rungs)
    if trial.state == "failed" and paused <= earlier:
        return None
    value = value_at(values, settings.at, settings.direction) if values else math.nan
    return None if math.isnan(value) else value


def _finding(
    decision: RungDecision, said: str, *, stored: object = None, replayed: object = None
) -> Finding:
    return Finding(
        "error",
        "rung",
        f"the rung after {decision.epochs} epochs of the trials from {decision.first} on {said}",
        epoch=decision.epochs - 1,
        stored=stored,
        replayed=replayed,
    )
