"""Which metric a figure shows, which trials stand out in it, and which way is better."""

from __future__ import annotations

from sweeper.declared.searching import Direction, Objective
from sweeper.errors import UsageError
from sweeper.results import StudyResults, StudyStatus, TrialRecord


def status_objectives(status: StudyStatus) -> tuple[Objective, ...]:
    """Return a study's objectives in order, one or several."""
    return status.objectives or (Objective(status.objective, status.direction),)


def objectives_of(results: StudyResults) -> tuple[Objective, ...]:
    """Return all objectives of the study, in order."""
    return status_objectives(results.status)


def chosen_metric(results: StudyResults, metric: str | None) -> str:
    """Return ``metric`` if trials reported it; by default the study's (first) objective.

    Raises:
        UsageError: No epoch of any trial has it; those that there are, are listed.
    """
    if metric is None:
        return objectives_of(results)[0].name
    known = dict.fromkeys(
        name for trial in results.trials for epoch in trial.epochs for name in epoch.metrics
    )
    if known and metric not in known:
        msg = (
            f"no trial of study {results.status.study!r} reported the metric {metric!r}; it has "
            f"{', '.join(map(repr, known))}"
        )
        raise UsageError(msg)
    return metric


def chosen_objective(results: StudyResults, name: str | None) -> Objective:
    """Return the study's objective of this name; by default the first one.

    Raises:
        UsageError: It has no such objective; those that it has are listed.
    """
    objectives = objectives_of(results)
    for objective in objectives:
        if name is None or objective.name == name:
            return objective
    has = ", ".join(repr(objective.name) for objective in objectives)
    msg = f"study {results.status.study!r} has no objective {name!r}; it has {has}"
    raise UsageError(msg)


def leading(results: StudyResults) -> frozenset[int]:
    """The numbers of the trials that stand out: the best one, or the Pareto front."""
    return frozenset(trial.number for trial in results.pareto)


def leading_name(results: StudyResults) -> str:
    """What those are called."""
    return "Pareto front" if results.status.objectives else "best"


def objective_value(trial: TrialRecord, name: str) -> float | None:
    """A trial's value of one objective; None before it has one."""
    return trial.value if trial.values is None else trial.values.get(name)


def ordered(values: list[float], direction: Direction) -> list[float]:
    """The values, the best first."""
    return sorted(values, reverse=direction == "maximize")
