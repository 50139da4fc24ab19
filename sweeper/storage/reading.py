"""Read what a study has produced: statuses, whole trials, and what its sampler may see.

Whatever the number of trials, a fixed number of queries in one transaction, so that a record never
mixes two moments. An open attempt whose worker is gone from this host, or elsewhere has let its lease
end, is shown as lost even before a worker has closed it: nothing stays "running" when its process
is gone.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sweeper.code import CodeGroup
from sweeper.errors import UnknownStudyError
from sweeper.processes import ProcessIdentity as WorkerIdentity
from sweeper.processes import is_gone
from sweeper.results import (
    AttemptRecord,
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    Outcome,
    StudyStatus,
    TrialRecord,
    TrialState,
)
from sweeper.search.spaces import Observation
from sweeper.searching import Objective
from sweeper.storage import optuna_rows
from sweeper.storage.audit_reading import audits_of_trials, read_exactness
from sweeper.storage.grouping import code_groups, codes_of_trials, is_mixed
from sweeper.storage.leading import best_trial, objectives_of, pareto_front
from sweeper.storage.leases import lease_has_ended
from sweeper.storage.studies import find_study, study_names
from sweeper.storage.tables import Attempt, Checkpoint, Epoch, Trial
from sweeper.storage.verdicts import latest_verdicts

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?([eE][+-]?\d+)?")
"""What differs in the same error of two trials."""

__all__ = [
    "failing_alike",
    "finished_before",
    "read_status",
    "read_statuses",
    "read_trial",
    "read_trials",
]


def read_status(connection: Connection, name: str, *, all_code: bool = False) -> StudyStatus:
    """Count the study's trials by state, and find its best one.

    Where trials ran under several definitions, it is the best of those under the present one,
    unless ``all_code``.

    Raises:
        UnknownStudyError: There is no such study.
    """
    study = find_study(connection, name)
    trials = connection.execute(
        sa.select(Trial.id, Trial.number, Trial.optuna_trial_id, Trial.result).where(
            Trial.study_id == study.id
        )
    ).all()
    live = {
        row.trial_id
        for row in connection.execute(
            sa.select(Attempt, lease_has_ended().label("lease_ended"))
            .join(Trial, Trial.id == Attempt.trial_id)
            .where(Trial.study_id == study.id, Trial.result.is_(None), Attempt.outcome.is_(None))
        )
        if not _is_gone(row)
    }
    objectives = objectives_of(study)
    several = len(objectives) > 1
    codes: tuple[CodeGroup, ...] = ()
    ranked = trials
    if is_mixed(connection, study):

        def best_of(group: Sequence[Row[*tuple[Any, ...]]]) -> BestTrial | None:
            return None if several else best_trial(connection, study, group)

        codes = code_groups(connection, study, trials, best_of)
        if not all_code:
            current = {number for group in codes if group.current for number in group.trials}
            ranked = [trial for trial in trials if trial.number in current]
    counts = Counter(_state(trial.result, running=trial.id in live) for trial in trials)
    return StudyStatus(
        study=study.name,
        target=study.target,
        complete=counts["complete"],
        running=counts["running"],
        interrupted=counts["interrupted"],
        pruned=counts["pruned"],
        failed=counts["failed"],
        waiting=max(study.target - len(trials), 0),
        best=None if several else best_trial(connection, study, ranked),
        objectives=objectives if several else (),
        pareto=pareto_front(connection, study, ranked, objectives) if several else (),
        exactness=read_exactness(connection, study),
        codes=codes,
    )


def read_statuses(connection: Connection) -> tuple[StudyStatus, ...]:
    """Return the status of every study, the oldest first."""
    return tuple(read_status(connection, name) for name in study_names(connection))


def read_trial(connection: Connection, name: str, number: int) -> TrialRecord:
    """Return one trial, whole.

    Raises:
        UnknownStudyError: There is no such study, or no such trial has begun in it.
    """
    study = find_study(connection, name)
    records = _records(connection, study, Trial.number == number)
    if not records:
        begun = connection.scalar(
            sa.select(sa.func.count()).select_from(Trial).where(Trial.study_id == study.id)
        )
        hint = f"it has trials 0 to {begun - 1}" if begun else "none has begun"
        msg = f"study {name!r} has no trial {number}; {hint} (of {study.target})"
        raise UnknownStudyError(msg)
    return records[0]


def read_trials(connection: Connection, name: str) -> tuple[TrialRecord, ...]:
    """Return every trial that has begun, whole, in the order of their numbers.

    Raises:
        UnknownStudyError: There is no such study.
    """
    return _records(connection, find_study(connection, name), sa.true())


def read_unfinished(connection: Connection, name: str) -> tuple[TrialRecord, ...]:
    """Return the trials that have begun and have no result, whole, in the order of their numbers.

    Raises:
        UnknownStudyError: There is no such study.
    """
    return _records(connection, find_study(connection, name), Trial.result.is_(None))


def finished_before(connection: Connection, name: str, number: int) -> tuple[Observation, ...]:
    """Return the finished trials numbered below ``number``, in order, as a sampler sees them.

    Raises:
        UnknownStudyError: There is no such study.
    """
    study = find_study(connection, name)
    several = len(objectives_of(study)) > 1
    chosen = sa.and_(Trial.study_id == study.id, Trial.number < number, Trial.result.is_not(None))
    rows = connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id, Trial.result)
        .where(chosen)
        .order_by(Trial.number)
    ).all()
    ids = sa.select(Trial.optuna_trial_id).where(chosen)
    parameters = optuna_rows.parameters(connection, ids)
    values = optuna_rows.all_values(connection, ids)
    intermediate = optuna_rows.intermediate_values(connection, ids)
    return tuple(
        Observation(
            number=row.number,
            state=cast("optuna_rows.TrialResult", row.result),
            params={n: p.value for n, p in parameters.get(row.optuna_trial_id, {}).items()},
            distributions={
                n: p.distribution for n, p in parameters.get(row.optuna_trial_id, {}).items()
            },
            value=next(iter(values.get(row.optuna_trial_id, ())), None),
            values=values.get(row.optuna_trial_id) if several else None,
            intermediate=intermediate.get(row.optuna_trial_id, {}),
        )
        for row in rows
    )


def failing_alike(connection: Connection, name: str, least: int) -> tuple[int, str] | None:
    """Whether all trials that have ended, ``least`` or more, failed with the same error.

    Numbers in it may differ. A study whose last trial has ended is no longer asked.

    Returns:
        How many, and the last line of the newest one's error; None where it is not so.

    Raises:
        UnknownStudyError: There is no such study.
    """
    study = find_study(connection, name)
    of_study = Trial.study_id == study.id
    ended = sa.select(sa.func.count()).where(of_study, Trial.result.is_not(None))
    good = sa.select(sa.func.count()).where(of_study, Trial.result != "failed")
    count = int(connection.scalar(ended) or 0)
    if count < least or count >= study.target or connection.scalar(good):
        return None
    errors = connection.scalars(
        sa.select(Attempt.error)
        .join(Trial, sa.and_(Trial.id == Attempt.trial_id, Trial.current_attempt == Attempt.number))
        .where(of_study, Trial.result == "failed")
        .order_by(Attempt.id)
    )
    lines = [(error or "").strip().rpartition("\n")[2] for error in errors]
    if not lines[-1] or len({_NUMBER.sub("#", line) for line in lines}) > 1:
        return None
    return count, lines[-1]


def _records(
    connection: Connection, study: Row[Any], condition: sa.ColumnElement[bool]
) -> tuple[TrialRecord, ...]:
    chosen = sa.and_(Trial.study_id == study.id, condition)
    trials = connection.execute(sa.select(Trial).where(chosen).order_by(Trial.number)).all()
    ids = sa.select(Trial.id).where(chosen)
    optuna_ids = sa.select(Trial.optuna_trial_id).where(chosen)

    attempts: defaultdict[int, list[AttemptRecord]] = defaultdict(list)
    exempted: dict[int, tuple[str, ...]] = {}
    for row in connection.execute(
        sa.select(Attempt, lease_has_ended().label("lease_ended"))
        .where(Attempt.trial_id.in_(ids))
        .order_by(Attempt.id)
    ):
        attempts[row.trial_id].append(_attempt(row))
        if row.fingerprint is not None:
            exempted[row.trial_id] = tuple(json.loads(row.fingerprint).get("output_only", ()))
    epochs: defaultdict[int, list[EpochRecord]] = defaultdict(list)
    for epoch in connection.execute(
        sa.select(Epoch).where(Epoch.trial_id.in_(ids)).order_by(Epoch.epoch)
    ):
        epochs[epoch.trial_id].append(EpochRecord(epoch.epoch, json.loads(epoch.metrics)))
    checkpoints: defaultdict[int, list[CheckpointRecord]] = defaultdict(list)
    for kept in connection.execute(
        sa.select(Checkpoint).where(Checkpoint.trial_id.in_(ids)).order_by(Checkpoint.id)
    ):
        checkpoints[kept.trial_id].append(
            CheckpointRecord(kept.step, kept.epoch, kept.digest, kept.bytes, kept.path)
        )
    parameters = optuna_rows.parameters(connection, optuna_ids)
    values = optuna_rows.all_values(connection, optuna_ids)
    objectives = objectives_of(study)
    verified = latest_verdicts(connection, ids)
    audits = audits_of_trials(connection, ids)
    codes = codes_of_trials(connection, ids)
    return tuple(
        TrialRecord(
            study=study.name,
            number=trial.number,
            state=_state(trial.result, running=any(a.outcome is None for a in attempts[trial.id])),
            params={n: p.value for n, p in parameters.get(trial.optuna_trial_id, {}).items()},
            value=next(iter(values.get(trial.optuna_trial_id, ())), None),
            values=_by_name(objectives, values.get(trial.optuna_trial_id)),
            seed=trial.seed,
            digest=trial.digest,
            epochs=tuple(epochs[trial.id]),
            attempts=tuple(attempts[trial.id]),
            checkpoints=tuple(checkpoints[trial.id]),
            verification=verified.get(trial.id),
            audits=tuple(audits.get(trial.id, ())),
            code=codes.get(trial.id),
            anew_after=trial.anew_after,
            output_only=exempted.get(trial.id, ()),
        )
        for trial in trials
    )


def _attempt(row: Row[*tuple[Any, ...]]) -> AttemptRecord:
    outcome = row.outcome
    if outcome is None and _is_gone(row):
        outcome = "lost"
    return AttemptRecord(
        number=row.number,
        outcome=cast("Outcome | None", outcome),
        start_step=row.start_step,
        end_step=row.end_step,
        host=row.host,
        pid=row.pid,
        started_at=_aware(row.started_at),
        ended_at=None if row.ended_at is None else _aware(row.ended_at),
        error=row.error,
    )


def _state(result: str | None, *, running: bool) -> TrialState:
    if result is not None:
        return cast("TrialState", result)
    return "running" if running else "interrupted"


def _is_gone(attempt: Row[*tuple[Any, ...]]) -> bool:
    worker = WorkerIdentity(
        attempt.host, attempt.boot_id, attempt.worker_pid, attempt.worker_started
    )
    gone = is_gone(worker)
    return bool(attempt.lease_ended) if gone is None else gone


def _by_name(
    objectives: Sequence[Objective], values: Sequence[float] | None
) -> dict[str, float] | None:
    if values is None or len(objectives) == 1:
        return None
    return {o.name: value for o, value in zip(objectives, values, strict=True)}


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
