"""Lengths of trials in epochs: extensions, results at each length, and the search's view.

An extended trial is unfinished again: the next claim resumes from its last checkpoint, as after an
interruption. Its former result is moved to a separate row in the same transaction. The study's
definition does not change, and its number of epochs is the first length. The search uses every
trial's result at the first length, whether it was extended or not.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.observations import observations_of
from sweeper.db.repeats import repeating_of
from sweeper.db.requests import ran_under_another_definition
from sweeper.db.rungs import schedule_of
from sweeper.db.studies import begun_trials, find_study, lock_study, no_such_trial, objectives_of
from sweeper.db.tables import (
    UNFINISHED,
    AnyRow,
    Attempt,
    Epoch,
    Length,
    Study,
    Trial,
    Verdict,
    change,
    rows_by_trial,
)
from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.searching import At, value_at
from sweeper.errors import UsageError
from sweeper.records.lengths import Extension, ExtensionPlan
from sweeper.search.spaces import Observation


def finished_before(connection: Connection, name: str, number: int) -> tuple[Observation, ...]:
    """Return the trials below ``number`` with a result for the sampler, in order.

    With a budget, that is a trial's result at the first rung; otherwise that at the study's first length, so
    that an extension does not affect later draws. A trial that ended before has its present result.
    """
    study = find_study(connection, name)
    schedule = schedule_of(study)
    first = study.definition.get("epochs", 0) if schedule is None else schedule.rungs[0]
    extended = sa.exists().where(Length.trial_id == Trial.id).correlate(Trial.__table__)
    condition = sa.and_(Trial.study_id == study.id, Trial.number < number)
    if schedule is None:
        condition &= sa.or_(Trial.result.is_not(None), extended)
    rows = connection.execute(sa.select(Trial).where(condition).order_by(Trial.number)).all()
    ids = sa.select(Trial.optuna_trial_id).where(condition)
    parameters = optuna_rows.parameters(connection, ids)
    values = optuna_rows.values(connection, ids)
    longer = sa.true() if schedule is not None else Trial.epochs > first
    at_first = {row.id for row in rows if schedule is not None or (row.epochs or 0) > first}
    reported: defaultdict[int, dict[int, Mapping[str, float]]] = defaultdict(dict)
    lengths: dict[int, AnyRow] = {}
    if at_first:
        early = sa.select(Trial.id).where(condition, longer)
        early_epochs = sa.select(Epoch).where(Epoch.trial_id.in_(early), Epoch.epoch < first)
        for epoch in connection.execute(early_epochs.order_by(Epoch.epoch)):
            reported[epoch.trial_id][epoch.epoch] = epoch.metrics
        length_rows = rows_by_trial(connection, Length, early, Length.epochs)
        lengths = {trial: shortest for trial, (shortest, *_) in length_rows.items()}
    if schedule is None:
        intermediate = optuna_rows.intermediate_values(connection, ids)
    else:
        objective = study.objective
        intermediate = {
            row.optuna_trial_id: {
                epoch: metrics[objective]
                for epoch, metrics in reported[row.id].items()
                if objective in metrics
            }
            for row in rows
        }
    several = len(objectives_of(study)) > 1
    observations = []
    for row in rows:
        state = row.result
        objectives_reached = values[row.optuna_trial_id]
        end = math.inf
        if row.id in lengths:
            length = lengths[row.id]
            state = length.result
            objectives_reached = tuple(length.objectives)
            end = length.trained
        elif row.id in at_first and len(reported[row.id]) == first:
            objectives_reached = _values_at_end(study, reported[row.id])
            end = first
            state = "complete" if objectives_reached else "failed"
        elif state is None:
            continue
        observed = intermediate.get(row.optuna_trial_id, {}).items()
        observations.append(
            Observation(
                number=row.number,
                redraws=row.redraws,
                state=state,
                params=parameters[row.optuna_trial_id].params,
                distributions=parameters[row.optuna_trial_id].distributions,
                value=next(iter(objectives_reached), None),
                values=(objectives_reached or None) if several else None,
                intermediate={epoch: value for epoch, value in observed if epoch < end},
            )
        )
    return tuple(observations)


def foreign_observations(connection: Connection, name: str) -> tuple[ForeignObservation, ...]:
    """Return the study's observations from outside, the oldest first, by the numbers of the search.

    These are the numbers of configurations in a study with repeats.
    """
    study = find_study(connection, name)
    index_of = repeating_of(study).index_of
    return tuple(
        replace(o, since=index_of(o.since), until=None if o.until is None else index_of(o.until))
        for o in observations_of(connection, study.id)
    )


def _values_at_end(study: AnyRow, reported: Mapping[int, Mapping[str, float]]) -> tuple[float, ...]:
    """Return the objectives of a trial that ends after the reported epochs; empty if one is not finite."""
    weights = cast("At", study.definition.get("at", "end"))
    values = []
    for objective in objectives_of(study):
        reported_values = [m[objective.name] for m in reported.values() if objective.name in m]
        values.append(
            value_at(reported_values, weights, objective.direction) if reported_values else math.nan
        )
    return tuple(values) if all(map(math.isfinite, values)) else ()


def plan_extension(connection: Connection, study: str, extension: Extension) -> ExtensionPlan:
    """Return the changes that the extension would make; empty if all were already made."""
    return _plan(connection, find_study(connection, study), extension)


def _plan(connection: Connection, study: AnyRow, extension: Extension) -> ExtensionPlan:
    definition = study.definition
    if definition.get("budget") is not None:
        raise UsageError(
            f"study {study.name!r} cannot be extended, because its budget determines the epochs "
            "of each trial. Run its best parameters in a new study (enqueue=…)"
        )
    first = int(definition["epochs"])
    present = study.epochs or first
    trials = begun_trials(connection, study.id)
    if extension.trials is not None:
        selected = _requested_trials(connection, study, extension, first, trials)
    elif extension.epochs < present:
        complete = sum(trial.result == "complete" for trial in trials)
        raise UsageError(
            f"--epochs {extension.epochs} for study {study.name!r}, whose trials train for {present} "
            f"epochs ({complete} of them have); a study can only be extended: give more than {present}"
        )
    else:
        # Trials of another definition are not extended, and are ranked separately.
        continuing = [trial for trial in trials if trial.result in (None, "complete")]
        selected = [t for t in continuing if not ran_under_another_definition(connection, study, t)]
    # Trials with one result continue together, and have one result again.
    numbers = {t.number if t.reuses is None else t.reuses for t in selected}
    selected = [t for t in trials if t in selected or t.number in numbers or t.reuses in numbers]
    shorter = {t: t.epochs or first for t in selected if (t.epochs or first) < extension.epochs}
    plan = ExtensionPlan(
        reopened={t.number: length for t, length in shorter.items() if t.result is not None},
        lengthened={t.number: length for t, length in shorter.items() if t.result is None},
        raised=extension.trials is None and extension.epochs > present,
    )
    running = [str(trial.number) for trial in trials if trial.running]
    if plan and running:
        several = len(running) > 1
        raise UsageError(
            f"trial{'s' * several} {', '.join(running)} of study {study.name!r} "
            f"{'are' if several else 'is'} running; only a stopped study can be extended: wait, "
            f"or stop it first (sweeper stop {study.name})"
        )
    return plan


def _requested_trials(
    connection: Connection,
    study: AnyRow,
    extension: Extension,
    first: int,
    trials: Sequence[AnyRow],
) -> list[AnyRow]:
    """Return the requested trials by number, also pruned ones."""
    epochs = extension.epochs
    by_number = {trial.number: trial for trial in trials}
    epochs_by_id = _epochs_trained(connection, (trial.id for trial in trials))
    selected = []
    for number in dict.fromkeys(extension.trials or ()):
        trial = by_number.get(number)
        if trial is None:
            raise no_such_trial(connection, study, number)
        present = trial.epochs or first
        trained_epochs = epochs_by_id.get(trial.id, 0)
        if trial.result == "failed":
            raise UsageError(
                f"trial {number} of study {study.name!r} has failed after {trained_epochs} epochs, so it "
                f"cannot be extended; `sweeper retry {study.name} {number}` gives it another "
                "attempt"
            )
        if ran_under_another_definition(connection, study, trial):
            raise UsageError(
                f"trial {number} of study {study.name!r} ran under an earlier definition or code, "
                "so an extension would belong to neither; run its parameters in a new study "
                "(enqueue=…)"
            )
        if epochs < present:
            raise UsageError(
                f"--epochs {epochs} for trial {number} of study {study.name!r}, which has trained "
                f"{trained_epochs} of {present} epochs; a trial can only be extended: give more than "
                f"{present}"
            )
        selected.append(trial)
    return selected


def extend(connection: Connection, name: str, extension: Extension) -> ExtensionPlan:
    """Extend trials; return the changes. A repeated call has no effect. See `plan_extension` for errors."""
    study = lock_study(connection, name)
    plan = _plan(connection, study, extension)
    if not plan:
        return plan
    changed = connection.execute(
        sa.select(Trial)
        .where(Trial.study_id == study.id, Trial.number.in_(tuple(plan.begun)))
        .order_by(Trial.number)
    ).all()
    finished = [trial for trial in changed if trial.number in plan.reopened]
    # Before the trials are reopened, which deletes these results.
    _store_lengths(connection, finished, plan.reopened)
    for trial in changed:
        columns = UNFINISHED if trial.number in plan.reopened else {}
        change(connection, Trial, trial.id, epochs=extension.epochs, **columns)
    for trial in finished:
        optuna_rows.reopen_trial(connection, trial.optuna_trial_id)
        # The verdicts were made at the former length.
        connection.execute(sa.delete(Verdict).where(Verdict.trial_id == trial.id))
    if plan.raised:
        change(connection, Study, study.id, epochs=extension.epochs)
    return plan


def _store_lengths(
    connection: Connection, trials: Sequence[AnyRow], lengths: Mapping[int, int]
) -> None:
    """Store the trials' results at their present length."""
    values = optuna_rows.values(connection, [trial.optuna_trial_id for trial in trials])
    epochs_by_id = _epochs_trained(connection, (trial.id for trial in trials))
    attempts = rows_by_trial(connection, Attempt, [trial.id for trial in trials], Attempt.number)
    for trial in trials:
        connection.execute(
            sa.insert(Length).values(
                trial_id=trial.id,
                epochs=lengths[trial.number],
                trained=epochs_by_id.get(trial.id, 0),
                result=trial.result,
                objectives=list(values[trial.optuna_trial_id]),
                digest=trial.digest,
                ended_at=attempts[trial.id][-1].ended_at,
            )
        )


def _epochs_trained(connection: Connection, trial_ids: Iterable[int]) -> dict[int, int]:
    rows = connection.execute(
        sa.select(Epoch.trial_id, sa.func.max(Epoch.epoch))
        .where(Epoch.trial_id.in_(list(trial_ids)))
        .group_by(Epoch.trial_id)
    )
    return {trial_id: int(last) + 1 for trial_id, last in rows}
