"""Progress of a study's trials, its leading trials, and groups of trials by definition and code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.studies import trials_of
from sweeper.db.tables import AnyRow, Attempt, Epoch, Trial, UtcNow, count
from sweeper.records.code import CodeGroup, short_code
from sweeper.records.results import BestTrial, ParetoTrial, TrialState, TrialStatus
from sweeper.spec.searching import Objective


def best_trial(trials: Sequence[TrialStatus], direction: str) -> BestTrial | None:
    """Return the complete trial with the best objective, the first of equal ones."""
    sign = -1 if direction == "maximize" else 1
    ended = [(sign * t.value, t.number, t) for t in _complete(trials) if t.value is not None]
    if not ended:
        return None
    _, number, best = min(ended)
    return BestTrial(number, cast("float", best.value), best.params)


def pareto_front(
    trials: Sequence[TrialStatus], objectives: Sequence[Objective]
) -> tuple[ParetoTrial, ...]:
    """Return the complete trials, by number, that no other beats in an objective and matches in all."""
    signs = {each.name: -1 if each.direction == "maximize" else 1 for each in objectives}
    points = sorted(
        (tuple(sign * trial.values[name] for name, sign in signs.items()), trial.number, trial)
        for trial in _complete(trials)
        if trial.values is not None
    )
    # In sorted order, a point can only be beaten by an earlier point of the front.
    front: list[tuple[tuple[float, ...], int, TrialStatus]] = []
    for point in points:
        beaten = (
            other != point[0] and all(a <= b for a, b in zip(other, point[0], strict=True))
            for other, _, _ in front
        )
        if not any(beaten):
            front.append(point)
    return tuple(
        ParetoTrial(number, trial.values or {}, trial.params)
        for _, number, trial in sorted(front, key=lambda point: point[1])
    )


def _complete(trials: Sequence[TrialStatus]) -> list[TrialStatus]:
    return [trial for trial in trials if trial.state == "complete"]


_RECENT_TRIALS = 64
"""Number of latest trials for the duration of an epoch."""


def trial_state(trial: AnyRow, *, running: bool) -> TrialState:
    """Return a trial's state, from its columns and whether it has a live attempt."""
    if trial.result is not None:
        return cast("TrialState", trial.result)
    if running:
        return "running"
    if trial.current_attempt == 0:
        return "waiting"
    return "interrupted" if trial.paused is None else "paused"


def values_by_name(
    objectives: Sequence[Objective], values: Sequence[float]
) -> dict[str, float] | None:
    """Return a trial's values by objective; None with one objective or without values."""
    if not values or len(objectives) == 1:
        return None
    return {o.name: value for o, value in zip(objectives, values, strict=True)}


def trial_statuses(
    connection: Connection,
    study: AnyRow,
    trials: Sequence[AnyRow],
    live: Collection[int],
    objectives: Sequence[Objective],
) -> tuple[TrialStatus, ...]:
    """Return the progress of each of the study's trials, by number.

    ``trials`` are the columns of all its trials; ``live`` are the ids of those with a live attempt.
    """
    optuna_ids = sa.select(Trial.optuna_trial_id).where(Trial.study_id == study.id)
    drawn = optuna_rows.parameters(connection, optuna_ids)
    values = optuna_rows.values(connection, optuna_ids)
    last = (
        sa.select(Epoch.trial_id, sa.func.max(Epoch.epoch).label("epoch"))
        .where(Epoch.trial_id.in_(trials_of(study.id)))
        .group_by(Epoch.trial_id)
        .subquery()
    )
    is_last = sa.and_(Epoch.trial_id == last.c.trial_id, Epoch.epoch == last.c.epoch)
    rows = connection.execute(sa.select(Epoch).join(last, is_last))
    latest = {row.trial_id: (row.epoch + 1, row.metrics) for row in rows}
    definition = study.definition
    epochs = definition.get("epochs")
    errors = _errors(connection, study.id)
    found = []
    for trial in sorted(trials, key=lambda t: t.number):
        own = values[trial.optuna_trial_id]
        epoch, metrics = latest.get(trial.id, (0, {}))
        found.append(
            TrialStatus(
                number=trial.number,
                state=trial_state(trial, running=trial.id in live),
                params=drawn[trial.optuna_trial_id].params,
                value=next(iter(own), None),
                value_of=trial.value_of,
                epoch=epoch,
                epochs=trial.epochs or epochs,
                metrics=metrics,
                values=values_by_name(objectives, own),
                attempts=trial.current_attempt,
                error=errors.get(trial.id),
            )
        )
    return tuple(found)


def _errors(connection: Connection, study: int) -> dict[int, str]:
    """Return the last line of the error that ended each failed or interrupted trial, by the trial's id."""
    rows = connection.execute(
        sa.select(Trial.id, Trial.result, Attempt.error)
        .join(
            Attempt, sa.and_(Trial.id == Attempt.trial_id, Attempt.number == Trial.current_attempt)
        )
        .where(
            Trial.study_id == study,
            sa.or_(Trial.result == "failed", Attempt.outcome == "interrupted"),
            Attempt.error.is_not(None),
        )
    )
    lines = {row.id: (row.result, row.error.strip().rpartition("\n")[2]) for row in rows}
    # An attempt that was stopped or killed on request has a reason, and no error.
    return {
        trial: line
        for trial, (result, line) in lines.items()
        if result == "failed" or line.partition(":")[0].endswith("Error")
    }


def seconds_left(
    connection: Connection, study: AnyRow, trials: Sequence[TrialStatus]
) -> float | None:
    """Estimate the seconds until the study's total is reached, with the present number of running trials.

    The duration of an epoch is the median of the latest trials, including their overhead. A trial
    that does not exist yet counts as the median of complete and pruned trials, or as the study's number
    of epochs if there is none.

    Returns:
        None if no trial runs, no trial has finished an epoch, or the number of epochs is unknown.
    """
    running = {trial.number for trial in trials if trial.state == "running"}
    if not running or any(trial.epochs is None for trial in trials):
        return None
    recent = trials[-_RECENT_TRIALS:]
    rows = connection.execute(
        sa.select(Trial.number, Attempt.started_at, Attempt.ended_at, UtcNow().label("now"))
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Trial.study_id == study.id, Trial.number >= recent[0].number)
    )
    spent: defaultdict[int, float] = defaultdict(float)
    for row in rows:
        if row.ended_at is not None or row.number in running:
            spent[row.number] += ((row.ended_at or row.now) - row.started_at).total_seconds()
    paces = [
        spent[each.number] / each.epoch for each in recent if each.epoch and each.number in spent
    ]
    if not paces:
        return None
    ended = [each.epoch for each in trials if each.state in ("complete", "pruned")]
    whole = median(ended) if ended else float(trials[0].epochs or 0)
    unfinished = ("running", "interrupted", "waiting")
    left = [max((t.epochs or 0) - t.epoch, 0.0) for t in trials if t.state in unfinished]
    left += [whole] * max(study.target - len(trials), 0)
    return median(paces) * max(*left, sum(left) / len(running))


def is_mixed(connection: Connection, study: AnyRow) -> bool:
    """Return whether attempts of the study ran under an earlier definition."""
    other = Attempt.definition != study.fingerprint
    return count(connection, Attempt.trial_id.in_(trials_of(study.id)), other) > 0


def codes_of_trials(connection: Connection, trial_ids: sa.Select[int]) -> dict[int, str]:
    """Return the short form of each trial's definition and code, by the trial's id.

    A trial that was resumed under another definition has both, joined by ``+``. Attempts before a
    start from scratch, and attempts without training, do not count.
    """
    rows = connection.execute(
        sa.select(Attempt.trial_id, Attempt.definition, Attempt.start_step)
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Attempt.trial_id.in_(trial_ids), Attempt.number > Trial.anew_after)
        .order_by(Attempt.id)
    )
    trained: dict[int, list[str]] = {}
    latest: dict[int, str] = {}
    for row in rows:
        if row.definition is None:
            continue
        code = short_code(row.definition)
        latest[row.trial_id] = code
        if row.start_step == 0:
            trained[row.trial_id] = [code]
        elif row.start_step is not None:
            before = trained.setdefault(row.trial_id, [])
            before += [code] if code not in before else []
    return {trial: "+".join(trained.get(trial, [code])) for trial, code in latest.items()}


def code_groups(
    study: AnyRow,
    trials: Sequence[TrialStatus],
    codes: Mapping[int, str],
    best: Callable[[Sequence[TrialStatus]], BestTrial | None],
) -> tuple[CodeGroup, ...]:
    """Return the study's trials by definition and code, in the order of their first trials.

    Empty if all are of the present code, because those of another one began again. ``codes`` are those of
    trials by number; ``best`` returns the best of some trials, or None.
    """
    present = short_code(study.fingerprint)
    by_code: dict[str, list[TrialStatus]] = {}
    for trial in trials:
        by_code.setdefault(codes.get(trial.number, present), []).append(trial)
    found = []
    for code, group in by_code.items():
        leader = best(group)
        found.append(
            CodeGroup(
                code=code,
                current=code == present,
                trials=tuple(trial.number for trial in group),
                best=None if leader is None else leader.number,
                value=None if leader is None else leader.value,
            )
        )
    return () if all(group.current for group in found) else tuple(found)
