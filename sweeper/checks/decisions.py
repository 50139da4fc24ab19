"""Verification of a trial's parameters and of the decisions at its rungs, from stored values.

A decision is a function of its trials' values, so it can be computed again: a value or a decision
that was changed in the database by hand is found.

A draw is a pure function of the study's seed, the trial's number and the finished trials of its
window. So it can be repeated, and a parameter that was changed in the database by hand is found. If
the draw uses other trials, their stored parameters may have been changed: then all are drawn again
in order, each from the redrawn ones before it, to find the first that differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.checks.verify_findings import Finding
from sweeper.definition.definition import StudySettings
from sweeper.errors import SweeperError
from sweeper.records.lengths import RungDecision, RungRecord
from sweeper.records.results import TrialRecord
from sweeper.search.sampling import open_search
from sweeper.search.spaces import Observation, same_choice
from sweeper.search.spec import SamplerSpec
from sweeper.spec.budgets import promoted, rung_schedule
from sweeper.spec.searching import value_at
from sweeper.spec.space import CategoricalChoice


@dataclass(frozen=True, slots=True)
class Redrawn:
    """Result of drawing a trial's parameters again.

    Attributes:
        differing: By parameter, the value that the sampler draws instead of the stored one.
        suspect: The first trial with parameters that differ from the sampler's. It can be an
            earlier trial, which this trial's sampler has used.
        impossible: The reason for which they could not be drawn again, or None.
    """

    differing: Mapping[str, CategoricalChoice]
    suspect: int | None = None
    impossible: str | None = None


def redraw(spec: SamplerSpec, number: int, finished: Sequence[Observation]) -> Redrawn:
    """Draw trial ``number``'s parameters again.

    Args:
        spec: The study's search.
        number: The trial's.
        finished: The finished trials, including this one.
    """
    trials = {observation.number: observation for observation in finished}
    try:
        differing = _differing(spec, trials[number], finished)
        if not differing or not spec.sampler_looks:
            return Redrawn(differing, suspect=number if differing else None)
    except (SweeperError, ValueError) as error:
        if not spec.sampler_looks:
            return Redrawn({}, impossible=str(error))
    try:
        return _in_order(spec, number, trials)
    except (SweeperError, ValueError) as error:
        return Redrawn({}, impossible=str(error))


def rejudge(
    spec: SamplerSpec, number: int, finished: Sequence[Observation], epochs: int
) -> str | None:
    """Repeat the pruner's decisions for each epoch of a trial.

    Returns:
        The first different decision, in a sentence; None if there is none, or the pruner cannot be
        asked.
    """
    trial = next(o for o in finished if o.number == number)
    if spec.pruner is None or not trial.intermediate:
        return None
    values = sorted(trial.intermediate.items())
    last = values[-1][0]
    try:
        search = open_search(spec, number, _window(spec, number, finished))
        for count, (epoch, _) in enumerate(values, start=1):
            if epoch == epochs - 1:
                break
            ended = trial.state == "pruned" and epoch == last
            if search.judge(values[:count]) != ended:
                does = "does not end" if ended else "ends"
                return (
                    f"the study's pruner, asked again, {does} trial {number} after epoch "
                    f"{epoch + 1}, but the trial is {trial.state}"
                )
    except (SweeperError, ValueError):
        return None
    return None


def _in_order(spec: SamplerSpec, number: int, trials: Mapping[int, Observation]) -> Redrawn:
    """Draw all trials up to ``number`` again, each from the redrawn ones before it."""
    corrected: dict[int, Observation] = {}
    suspect = None
    for other in sorted(n for n in trials if n <= number):
        stored = trials[other]
        wrong = _differing(spec, stored, list(corrected.values()))
        if wrong and suspect is None:
            suspect = other
        if other == number:
            return Redrawn(wrong, suspect=suspect)
        corrected[other] = replace(stored, params={**stored.params, **wrong})
    return Redrawn({})


def _differing(
    spec: SamplerSpec, trial: Observation, finished: Sequence[Observation]
) -> dict[str, CategoricalChoice]:
    search = open_search(spec, trial.number, _window(spec, trial.number, finished))
    found = {}
    for name, distribution in trial.distributions.items():
        drawn = search.suggest(name, distribution)
        if not same_choice(drawn, trial.params[name]):
            found[name] = drawn
    return found


def _window(
    spec: SamplerSpec, number: int, finished: Sequence[Observation]
) -> Sequence[Observation]:
    if spec.window is None:
        return ()
    return [o for o in finished if o.number <= number - spec.window]


def check_rungs(
    record: TrialRecord, trials: Mapping[int, TrialRecord], settings: StudySettings
) -> list[Finding]:
    """Repeat the decisions at the trial's rungs; return the differences from the stored ones.

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
                f"compared trial {each.number} with the value {each.value!r}, but its epochs have "
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
            f"compared the trials {numbers}, but its members are {expected}",
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
            f"promoted the trials {stored}, but by the values it should have promoted {expected}",
            stored=stored,
            replayed=expected,
        )


def _of_trial(record: TrialRecord, rung: RungRecord) -> Iterator[Finding]:
    """Yield a finding if the trial's end contradicts the decision."""
    if rung.promoted:
        wrong = record.state == "pruned" and len(record.epochs) == rung.epochs
    else:
        wrong = len(record.epochs) > rung.epochs
    if rung.decision is not None and wrong:
        what = "promoted" if rung.promoted else "left behind"
        yield _finding(
            rung.decision,
            (
                f"{what} trial {record.number}, but that is {record.state} after {len(record.epochs)} "
                "epochs"
            ),
            stored=rung.promoted,
        )


def _reached(trial: TrialRecord | None, epochs: int, settings: StudySettings) -> float | None:
    """Return the value for the comparison, from the trial's epochs."""
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
