"""Reads of a study's results: statuses and trials.

Each read is a fixed number of queries in one transaction, so a record never mixes two states. An
open attempt whose worker is gone from this host, or whose lease has expired, is shown as lost even
before a worker has closed it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.leases import is_lost, lease_has_ended, open_attempts
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
from sweeper.db.rungs import rungs_of_trials
from sweeper.db.studies import find_study, no_such_trial, objectives_of, study_names, trials_of
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Audit,
    Checkpoint,
    Epoch,
    Evaluation,
    Length,
    Trial,
    Verdict,
    record_of,
    rows_by_trial,
)
from sweeper.db.verdicts import read_exactness
from sweeper.files.uses import shown_files
from sweeper.records.code import CodeGroup, Environment
from sweeper.records.configurations import ConfigurationRecord, configurations_of
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import AuditRecord, VerificationRecord
from sweeper.records.lengths import LengthRecord
from sweeper.records.results import (
    AttemptRecord,
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    TrialStatus,
)
from sweeper.records.status import leader_of
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
    attempts: defaultdict[int, list[AnyRow]] = defaultdict(list)
    every = sa.select(Attempt, lease_has_ended().label("lease_ended"))
    for row in connection.execute(every.where(Attempt.trial_id.in_(ids)).order_by(Attempt.id)):
        attempts[row.trial_id].append(row)
    epochs = rows_by_trial(connection, Epoch, ids, Epoch.epoch)
    checkpoints = rows_by_trial(connection, Checkpoint, ids, Checkpoint.id)
    audits = rows_by_trial(connection, Audit, ids, Audit.to_step, Audit.id)
    verdicts = rows_by_trial(connection, Verdict, ids, Verdict.id)
    lengths = rows_by_trial(connection, Length, ids, Length.epochs)
    by_data = (Evaluation.data, Evaluation.data_digest, Evaluation.step, Evaluation.id)
    evaluations = rows_by_trial(connection, Evaluation, ids, *by_data)
    drawn = optuna_rows.parameters(connection, optuna_ids)
    values = optuna_rows.values(connection, optuna_ids)
    objectives = objectives_of(study)
    codes = codes_of_trials(connection, ids)
    rungs = rungs_of_trials(connection, study.id, ids)
    found = []
    for trial in trials:
        own, tried = values[trial.optuna_trial_id], attempts[trial.id]
        surroundings = [row.fingerprint for row in tried if row.fingerprint is not None]
        reports = (each.get("warm_start_report") for each in reversed(surroundings))
        paths = {(row.step, row.digest): row.path for row in checkpoints[trial.id]}
        found.append(
            record_of(
                TrialRecord,
                trial,
                study=study.name,
                state=trial_state(trial, running=any(not _ended(row) for row in tried)),
                params=drawn[trial.optuna_trial_id].params,
                distributions=drawn[trial.optuna_trial_id].distributions,
                value=next(iter(own), None),
                values=values_by_name(objectives, own),
                epochs=tuple(record_of(EpochRecord, row) for row in epochs[trial.id]),
                attempts=tuple(record_of(AttemptRecord, row, outcome=_ended(row)) for row in tried),
                checkpoints=tuple(
                    record_of(CheckpointRecord, row) for row in checkpoints[trial.id]
                ),
                verification=next(
                    (record_of(VerificationRecord, row) for row in verdicts[trial.id][-1:]), None
                ),
                audits=tuple(
                    record_of(AuditRecord, row, message=row.report.get("message"))
                    for row in audits[trial.id]
                ),
                code=codes.get(trial.id),
                output_only=tuple(surroundings[-1].get("output_only", ())) if surroundings else (),
                evaluations=tuple(
                    record_of(
                        EvaluationRecord,
                        row,
                        trial=trial.number,
                        path=paths.get((row.step, row.digest)),
                    )
                    for row in evaluations[trial.id]
                ),
                warm_start=next((report for report in reports if report is not None), None),
                rungs=tuple(rungs.get(trial.id, ())),
                length=trial.epochs or study.definition.get("epochs"),
                earlier_lengths=tuple(
                    record_of(
                        LengthRecord,
                        row,
                        state=row.result,
                        value=next(iter(row.objectives), None),
                        at=row.ended_at,
                        values=values_by_name(objectives, row.objectives),
                    )
                    for row in lengths[trial.id]
                ),
                files=shown_files([row.files for row in tried if row.files is not None]),
            )
        )
    return tuple(found)


def _ended(attempt: AnyRow) -> str | None:
    """Return how an attempt ended; an open one is lost if its worker is."""
    return "lost" if attempt.outcome is None and is_lost(attempt) else attempt.outcome
