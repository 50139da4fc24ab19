"""Reads of a study's results: statuses, trials, and observations for its sampler.

Each read is a fixed number of queries in one transaction, so a record never mixes two states. An
open attempt whose worker is gone from this host, or whose lease has expired, is shown as lost even
before a worker has closed it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.leases import is_lost, lease_has_ended, open_attempts
from sweeper.db.lengths import at_first_length, lengths_of_trials, was_extended
from sweeper.db.progress import (
    best_trial,
    code_groups,
    codes_of_trials,
    is_mixed,
    pareto_front,
    seconds_left,
    trial_state,
    trial_statuses,
    values_by_name,
)
from sweeper.db.repeats import repeating_of
from sweeper.db.rungs import rungs_of_trials, schedule_of, seen_at_first_rung
from sweeper.db.studies import find_study, no_such_trial, objectives_of, study_names, trials_of
from sweeper.db.tables import AnyRow, Attempt, Checkpoint, Epoch, Trial, record_of
from sweeper.db.verdicts import (
    audits_of_trials,
    evaluations_of_trials,
    latest_verdicts,
    read_exactness,
)
from sweeper.files.uses import shown_files
from sweeper.records.code import CodeGroup, Environment
from sweeper.records.configurations import ConfigurationRecord, configurations_of
from sweeper.records.results import (
    AttemptRecord,
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    TrialStatus,
    leader_of,
)
from sweeper.search.spaces import Observation
from sweeper.spec.repeating import confirmation_name

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?([eE][+-]?\d+)?")
"""Parts of an error message that differ in the same error of two trials."""

_SURROUNDINGS = ("versions", "processor", "devices", "threads", "deterministic")
"""Keys of an attempt's fingerprint that an `Environment` has."""


_COUNTED = ("complete", "running", "interrupted", "paused", "pruned", "failed")


def read_status(
    connection: Connection, name: str, *, all_code: bool = False, each: bool = True
) -> StudyStatus:
    """Count the study's trials by state, and find its best one.

    If trials ran under several definitions, it is the best under the present one, unless
    ``all_code``. Configurations, whose statistics import SciPy, are included only with ``each``.
    """
    study = find_study(connection, name)
    rows = connection.execute(sa.select(Trial).where(Trial.study_id == study.id)).all()
    live = {
        row.trial_id
        for row in connection.execute(open_attempts().where(Trial.study_id == study.id))
        if not is_lost(row)
    }
    objectives = objectives_of(study)
    several = len(objectives) > 1
    trials = trial_statuses(connection, study, rows, live, objectives)

    def configured(
        group: Sequence[TrialStatus], *, compared: bool
    ) -> tuple[ConfigurationRecord, ...]:
        if repeating_of(study).is_plain:
            return ()
        return configurations_of(group, study.direction, study.definition, compared=compared)

    def best_of(group: Sequence[TrialStatus]) -> BestTrial | None:
        if several:
            return None
        if repeating_of(study).is_plain:
            return best_trial(group, study.direction)
        return leader_of(configured(group, compared=False))

    codes: tuple[CodeGroup, ...] = ()
    ranked = trials
    if is_mixed(connection, study):
        by_id = codes_of_trials(connection, trials_of(study.id))
        numbered = {row.number: by_id[row.id] for row in rows if row.id in by_id}
        codes = code_groups(study, trials, numbered, best_of)
        if codes and not all_code:
            current = {number for group in codes if group.current for number in group.trials}
            ranked = tuple(trial for trial in trials if trial.number in current)
    confirmed: tuple[ConfigurationRecord, ...] = ()
    beside = confirmation_name(name)
    if each and beside in study_names(connection):
        confirmed = read_status(connection, beside).configurations
    counts: Counter[str] = Counter(trial.state for trial in trials)
    return StudyStatus(
        study=study.name,
        target=study.target,
        **{state: counts[state] for state in _COUNTED},
        waiting=max(study.target - len(trials), 0) + counts["waiting"],
        best=best_of(ranked),
        configurations=configured(ranked, compared=True) if each else (),
        confirmed=confirmed,
        objectives=objectives if several else (),
        pareto=pareto_front(ranked, objectives) if several else (),
        exactness=read_exactness(connection, study),
        codes=codes,
        objective=study.objective,
        direction=study.direction,
        trials=trials,
        seconds_left=seconds_left(connection, study, trials),
    )


def read_statuses(connection: Connection, *, each: bool = True) -> tuple[StudyStatus, ...]:
    """Return the status of every study, the oldest first."""
    return tuple(read_status(connection, name, each=each) for name in study_names(connection))


def read_trial(connection: Connection, name: str, number: int) -> TrialRecord:
    """Return one trial with all details."""
    study = find_study(connection, name)
    records = _records(connection, study, Trial.number == number)
    if not records:
        raise no_such_trial(connection, study, number)
    return records[0]


def read_trials(
    connection: Connection, name: str, numbers: Collection[int] | None = None
) -> tuple[TrialRecord, ...]:
    """Return every trial that has begun with all details, by number; only those of ``numbers``, if given."""
    wanted = sa.true() if numbers is None else Trial.number.in_(list(numbers))
    return _records(connection, find_study(connection, name), wanted)


def read_results(connection: Connection, name: str) -> StudyResults:
    """Return the study's status and every trial that has begun."""
    return StudyResults(read_status(connection, name), read_trials(connection, name))


def read_unfinished(connection: Connection, name: str) -> tuple[TrialRecord, ...]:
    """Return the trials that have begun and have no result, with all details, by number."""
    return _records(connection, find_study(connection, name), Trial.result.is_(None))


def read_environments(connection: Connection, name: str) -> tuple[Environment, ...]:
    """Return the environments of the study's attempts, each with its number of attempts."""
    study = find_study(connection, name)
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for row in connection.execute(
        sa.select(Attempt.fingerprint, Attempt.host, sa.func.count().label("attempts"))
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Trial.study_id == study.id)
        .group_by(Attempt.fingerprint, Attempt.host)
        .order_by(sa.func.min(Attempt.id))
    ):
        known = row.fingerprint or {}
        kept = {part: known[part] for part in _SURROUNDINGS if part in known}
        hosts[json.dumps(kept)] += [row.host] * row.attempts
    return tuple(
        Environment(
            versions=known.get("versions", {}),
            processor=known.get("processor", ""),
            devices=tuple(known.get("devices", ())),
            threads=tuple(known.get("threads", ())),
            deterministic=known.get("deterministic"),
            hosts=tuple(dict.fromkeys(found)),
            attempts=len(found),
        )
        for known, found in ((json.loads(text), found) for text, found in hosts.items())
    )


def finished_before(connection: Connection, name: str, number: int) -> tuple[Observation, ...]:
    """Return the finished trials below ``number``, in order, in the form for a sampler.

    With a budget, values are those at the first rung; extended trials have their values at the
    study's first length.
    """
    study = find_study(connection, name)
    schedule = schedule_of(study)
    if schedule is not None:
        return seen_at_first_rung(connection, study, schedule, number)
    several = len(objectives_of(study)) > 1
    finished = Trial.result.is_not(None)
    chosen = sa.and_(
        Trial.study_id == study.id,
        Trial.number < number,
        sa.or_(finished, was_extended()),
    )
    rows = connection.execute(
        sa.select(Trial.id, Trial.number, Trial.optuna_trial_id, Trial.result, Trial.epochs)
        .where(chosen)
        .order_by(Trial.number)
    ).all()
    ids = sa.select(Trial.optuna_trial_id).where(chosen)
    parameters = optuna_rows.parameters(connection, ids)
    values = optuna_rows.values(connection, ids)
    intermediate = optuna_rows.intermediate_values(connection, ids)
    observed = tuple(
        Observation(
            number=row.number,
            state=cast("optuna_rows.TrialResult", row.result),
            params=parameters[row.optuna_trial_id].params,
            distributions=parameters[row.optuna_trial_id].distributions,
            value=next(iter(values[row.optuna_trial_id]), None),
            values=(values[row.optuna_trial_id] or None) if several else None,
            intermediate=intermediate.get(row.optuna_trial_id, {}),
        )
        for row in rows
    )
    return at_first_length(connection, study, rows, observed)


def failing_alike(connection: Connection, name: str, least: int) -> tuple[int, str] | None:
    """Return the number of ended trials and their common error, if all failed with the same error.

    Errors that differ only in numbers are the same. A study without further trials is not judged.

    Returns:
        The number, and the last line of the last trial's error; None if fewer than ``least`` have ended,
        or their errors differ.
    """
    status = read_status(connection, name, each=False)
    lines = [trial.error or "" for trial in status.trials if trial.state == "failed"]
    if len(lines) < status.finished or not least <= len(lines) < status.target:
        return None
    if not lines[-1] or len({_NUMBER.sub("#", line) for line in lines}) > 1:
        return None
    return len(lines), lines[-1]


def _records(
    connection: Connection,
    study: AnyRow,
    condition: sa.ColumnElement[bool],
) -> tuple[TrialRecord, ...]:
    chosen = sa.and_(Trial.study_id == study.id, condition)
    trials = connection.execute(sa.select(Trial).where(chosen).order_by(Trial.number)).all()
    ids = sa.select(Trial.id).where(chosen)
    optuna_ids = sa.select(Trial.optuna_trial_id).where(chosen)

    attempts: defaultdict[int, list[AttemptRecord]] = defaultdict(list)
    files: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    exempted: dict[int, tuple[str, ...]] = {}
    warm_starts: dict[int, Mapping[str, Any]] = {}
    for row in connection.execute(
        sa.select(Attempt, lease_has_ended().label("lease_ended"))
        .where(Attempt.trial_id.in_(ids))
        .order_by(Attempt.id)
    ):
        attempts[row.trial_id].append(_attempt(row))
        if row.files is not None:
            files[row.trial_id].append(row.files)
        if row.fingerprint is not None:
            surroundings = row.fingerprint
            exempted[row.trial_id] = tuple(surroundings.get("output_only", ()))
            if "warm_start_report" in surroundings:
                warm_starts[row.trial_id] = surroundings["warm_start_report"]
    epochs: defaultdict[int, list[EpochRecord]] = defaultdict(list)
    for epoch in connection.execute(
        sa.select(Epoch).where(Epoch.trial_id.in_(ids)).order_by(Epoch.epoch)
    ):
        epochs[epoch.trial_id].append(EpochRecord(epoch.epoch, epoch.metrics))
    checkpoints: defaultdict[int, list[CheckpointRecord]] = defaultdict(list)
    for kept in connection.execute(
        sa.select(Checkpoint).where(Checkpoint.trial_id.in_(ids)).order_by(Checkpoint.id)
    ):
        checkpoints[kept.trial_id].append(record_of(CheckpointRecord, kept))
    drawn = optuna_rows.parameters(connection, optuna_ids)
    values = optuna_rows.values(connection, optuna_ids)
    objectives = objectives_of(study)
    verified = latest_verdicts(connection, ids)
    audits = audits_of_trials(connection, ids)
    codes = codes_of_trials(connection, ids)
    evaluations = evaluations_of_trials(connection, ids)
    rungs = rungs_of_trials(connection, study.id, ids)
    length = study.definition.get("epochs")
    lengths = lengths_of_trials(connection, ids, objectives)
    return tuple(
        record_of(
            TrialRecord,
            trial,
            study=study.name,
            state=trial_state(trial, running=any(a.outcome is None for a in attempts[trial.id])),
            params=drawn[trial.optuna_trial_id].params,
            distributions=drawn[trial.optuna_trial_id].distributions,
            value=next(iter(values[trial.optuna_trial_id]), None),
            values=values_by_name(objectives, values[trial.optuna_trial_id]),
            epochs=tuple(epochs[trial.id]),
            attempts=tuple(attempts[trial.id]),
            checkpoints=tuple(checkpoints[trial.id]),
            verification=verified.get(trial.id),
            audits=tuple(audits.get(trial.id, ())),
            code=codes.get(trial.id),
            output_only=exempted.get(trial.id, ()),
            evaluations=tuple(evaluations.get(trial.id, ())),
            warm_start=warm_starts.get(trial.id),
            rungs=tuple(rungs.get(trial.id, ())),
            length=trial.epochs or length,
            earlier_lengths=tuple(lengths.get(trial.id, ())),
            files=shown_files(files[trial.id]),
        )
        for trial in trials
    )


def _attempt(row: AnyRow) -> AttemptRecord:
    outcome = "lost" if row.outcome is None and is_lost(row) else row.outcome
    return record_of(AttemptRecord, row, outcome=outcome)
