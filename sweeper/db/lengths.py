"""Lengths of trials in epochs: extensions, results at each length, and the search's view.

An extended trial is unfinished again: the next claim resumes from its last checkpoint, as after an
interruption. Its former result is moved to a separate row in the same transaction. The study's
definition does not change, and its number of epochs is the first length. The search uses every
trial's result at the first length, whether it was extended or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.claims import is_open
from sweeper.db.progress import values_by_name
from sweeper.db.requests import ran_under_another_definition
from sweeper.db.studies import find_study, lock_study, no_such_trial, objectives_of
from sweeper.db.tables import (
    UNFINISHED,
    AnyRow,
    Attempt,
    Epoch,
    Length,
    Study,
    Trial,
    Verdict,
    record_of,
)
from sweeper.errors import UsageError
from sweeper.records.lengths import Extension, ExtensionPlan, LengthRecord
from sweeper.search.spaces import Observation
from sweeper.spec.searching import At, Objective, value_at


def was_extended() -> sa.Exists:
    """Return the condition that the trial of the enclosing query ended at an earlier length."""
    return sa.exists().where(Length.trial_id == Trial.id).correlate(Trial.__table__)


def lengths_of_trials(
    connection: Connection, trial_ids: sa.Select[int], objectives: Sequence[Objective]
) -> dict[int, list[LengthRecord]]:
    """Return each trial's results at its former lengths, by the trial's id."""
    found: dict[int, list[LengthRecord]] = {}
    for row in connection.execute(
        sa.select(Length).where(Length.trial_id.in_(trial_ids)).order_by(Length.epochs)
    ):
        values = tuple(row.objectives)
        record = record_of(
            LengthRecord,
            row,
            state=row.result,
            value=next(iter(values), None),
            at=row.ended_at,
            values=values_by_name(objectives, values),
        )
        found.setdefault(row.trial_id, []).append(record)
    return found


def at_first_length(
    connection: Connection,
    study: AnyRow,
    trials: Sequence[AnyRow],
    observed: Sequence[Observation],
) -> tuple[Observation, ...]:
    """Return the observations of trials for the search, at the study's first length.

    So an extension does not affect later draws. ``observed`` are the same trials with their present
    results.
    """
    if all(trial.epochs is None for trial in trials):
        return tuple(observed)
    first = int(study.definition["epochs"])
    longer = {trial.id for trial in trials if trial.epochs is not None and trial.epochs > first}
    if not longer:
        return tuple(observed)
    rows = connection.execute(
        sa.select(Length).where(Length.trial_id.in_(longer)).order_by(Length.epochs.desc())
    )
    kept = {row.trial_id: row for row in rows}  # of each trial, the shortest length
    epochs: dict[int, dict[int, Mapping[str, float]]] = {}
    for row in connection.execute(
        sa.select(Epoch)
        .where(Epoch.trial_id.in_(longer), Epoch.epoch < first)
        .order_by(Epoch.epoch)
    ):
        epochs.setdefault(row.trial_id, {})[row.epoch] = row.metrics
    found = []
    for trial, seen in zip(trials, observed, strict=True):
        if trial.id not in longer:
            found.append(seen)
            continue
        stored, reported = kept.get(trial.id), epochs.get(trial.id, {})
        if stored is not None:
            ended = _ended_as(seen, stored.result, tuple(stored.objectives))
            end = stored.trained
        elif len(reported) == first:
            ended, end = _computed(study, seen, reported), first
        else:
            # It ended before the first length, so its present result is that at the first length.
            ended, end = seen, first
        shown = {epoch: value for epoch, value in seen.intermediate.items() if epoch < end}
        found.append(replace(ended, intermediate=shown))
    return tuple(found)


def _computed(
    study: AnyRow, seen: Observation, reported: Mapping[int, Mapping[str, float]]
) -> Observation:
    """Return a trial that trained past the first length without a stop, as if it had ended there."""
    at = cast("At", study.definition.get("at", "end"))
    values = []
    for objective in objectives_of(study):
        own = [m[objective.name] for m in reported.values() if objective.name in m]
        values.append(value_at(own, at, objective.direction) if own else math.nan)
    if not all(map(math.isfinite, values)):
        return replace(seen, state="failed", value=None, values=None)
    return _ended_as(seen, "complete", tuple(values))


def _ended_as(seen: Observation, state: str, values: tuple[float, ...]) -> Observation:
    several = seen.values is not None or len(values) > 1
    return replace(
        seen,
        state=cast("Literal['complete', 'pruned']", state),
        value=next(iter(values), None),
        values=values if several else None,
    )


def plan_extension(connection: Connection, study: str, extension: Extension) -> ExtensionPlan:
    """Return the changes that the extension would make; empty if all were already made."""
    return _plan(connection, find_study(connection, study), extension)


def _plan(connection: Connection, study: AnyRow, extension: Extension) -> ExtensionPlan:
    definition = study.definition
    if definition.get("budget") is not None:
        msg = (
            f"study {study.name!r} cannot be extended, because its budget determines the epochs "
            "of each trial. Run its best parameters in a new study (enqueue=…)"
        )
        raise UsageError(msg)
    first = int(definition["epochs"])
    trials = connection.execute(
        sa.select(Trial, is_open().label("running"))
        .where(Trial.study_id == study.id)
        .order_by(Trial.number)
    ).all()
    if extension.trials is None:
        # Trials of another definition are not extended, and are ranked separately.
        own = [t for t in trials if not ran_under_another_definition(connection, study, t)]
        plan = _whole(study, extension.epochs, first, own)
    else:
        plan = _chosen(connection, study, extension, first, trials)
    running = [str(trial.number) for trial in trials if trial.running]
    if plan and running:
        several = len(running) > 1
        msg = (
            f"trial{'s' * several} {', '.join(running)} of study {study.name!r} "
            f"{'are' if several else 'is'} running; only a stopped study can be extended: wait, "
            f"or stop it first (sweeper stop {study.name})"
        )
        raise UsageError(msg)
    return plan


def _whole(study: AnyRow, epochs: int, first: int, trials: Sequence[AnyRow]) -> ExtensionPlan:
    """Return the trials to extend in a whole study: no pruned, failed or longer ones."""
    present = study.epochs or first
    if epochs < present:
        done = sum(trial.result == "complete" for trial in trials)
        msg = (
            f"--epochs {epochs} for study {study.name!r}, whose trials train for {present} epochs "
            f"({done} of them have); a study can only be extended: give more than {present}"
        )
        raise UsageError(msg)
    shorter = {t: t.epochs or first for t in trials if (t.epochs or first) < epochs}
    return ExtensionPlan(
        reopened={t.number: had for t, had in shorter.items() if t.result == "complete"},
        lengthened={t.number: had for t, had in shorter.items() if t.result is None},
        raised=epochs > present,
    )


def _chosen(
    connection: Connection,
    study: AnyRow,
    extension: Extension,
    first: int,
    trials: Sequence[AnyRow],
) -> ExtensionPlan:
    """Return the requested trials by number, also pruned ones."""
    epochs, by_number = extension.epochs, {trial.number: trial for trial in trials}
    trained = _epochs_trained(connection, (trial.id for trial in trials))
    reopened: dict[int, int] = {}
    lengthened: dict[int, int] = {}
    for number in dict.fromkeys(extension.trials or ()):
        trial = by_number.get(number)
        if trial is None:
            raise no_such_trial(connection, study, number)
        present, done = trial.epochs or first, trained.get(trial.id, 0)
        if trial.result == "failed":
            msg = (
                f"trial {number} of study {study.name!r} has failed after {done} epochs, so it "
                f"cannot be extended; `sweeper retry {study.name} {number}` gives it another "
                "attempt"
            )
            raise UsageError(msg)
        if ran_under_another_definition(connection, study, trial):
            msg = (
                f"trial {number} of study {study.name!r} ran under an earlier definition or code, "
                "so an extension would belong to neither; run its parameters in a new study "
                "(enqueue=…)"
            )
            raise UsageError(msg)
        if epochs < present:
            msg = (
                f"--epochs {epochs} for trial {number} of study {study.name!r}, which has trained "
                f"{done} of {present} epochs; a trial can only be extended: give more than "
                f"{present}"
            )
            raise UsageError(msg)
        if epochs > present:
            (reopened if trial.result is not None else lengthened)[number] = present
    return ExtensionPlan(reopened, lengthened, raised=False)


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
    _keep(connection, finished, plan.reopened)
    for trial in changed:
        again = UNFINISHED if trial.number in plan.reopened else {}
        connection.execute(
            sa.update(Trial).where(Trial.id == trial.id).values(epochs=extension.epochs, **again)
        )
    for trial in finished:
        optuna_rows.reopen_trial(connection, trial.optuna_trial_id)
        # The verdicts were made at the former length.
        connection.execute(sa.delete(Verdict).where(Verdict.trial_id == trial.id))
    if plan.raised:
        connection.execute(
            sa.update(Study).where(Study.id == study.id).values(epochs=extension.epochs)
        )
    return plan


def _keep(connection: Connection, trials: Sequence[AnyRow], lengths: Mapping[int, int]) -> None:
    """Store the trials' results at their present length."""
    values = optuna_rows.values(connection, [trial.optuna_trial_id for trial in trials])
    trained = _epochs_trained(connection, (trial.id for trial in trials))
    for trial in trials:
        ended = connection.scalar(
            sa.select(Attempt.ended_at).where(
                Attempt.trial_id == trial.id, Attempt.number == trial.current_attempt
            )
        )
        connection.execute(
            sa.insert(Length).values(
                trial_id=trial.id,
                epochs=lengths[trial.number],
                trained=trained.get(trial.id, 0),
                result=trial.result,
                objectives=list(values[trial.optuna_trial_id]),
                digest=trial.digest,
                ended_at=ended,
            )
        )


def _epochs_trained(connection: Connection, trial_ids: Iterable[int]) -> dict[int, int]:
    rows = connection.execute(
        sa.select(Epoch.trial_id, sa.func.max(Epoch.epoch))
        .where(Epoch.trial_id.in_(list(trial_ids)))
        .group_by(Epoch.trial_id)
    )
    return {trial_id: int(last) + 1 for trial_id, last in rows}
