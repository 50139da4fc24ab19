"""Reads of a study's results: statuses and trials.

Each read is a fixed number of queries in one transaction, so a record never mixes two states. An
open attempt whose worker is gone from this host, or whose lease has expired, is shown as lost even
before a worker has closed it.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows, studies
from sweeper.db.leases import is_lost, lease_has_ended, open_attempts, read_workers
from sweeper.db.observations import observations_of
from sweeper.db.repeats import hidden_numbers, repeating_of
from sweeper.db.rungs import rungs_of_trials
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Audit,
    Checkpoint,
    Epoch,
    Evaluation,
    Length,
    RungMember,
    Study,
    Trial,
    UtcNow,
    Verdict,
    count,
    record_of,
    rows_by_trial,
)
from sweeper.db.verdicts import read_exactness
from sweeper.declarations.repeating import confirmation_name
from sweeper.declarations.searching import Objective, cost_sign
from sweeper.files.uses import FileUse, uses_from_json
from sweeper.records import results
from sweeper.records.code import CodeGroup, Environment, short_code
from sweeper.records.conditions import matching
from sweeper.records.configurations import ConfigurationRecord, TrialState, configurations_of
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import AuditRecord, VerificationRecord
from sweeper.records.lengths import LengthRecord

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?([eE][+-]?\d+)?")
"""Parts of an error message that differ in the same error of two trials."""

_ENVIRONMENT_KEYS = ("versions", "processor", "devices", "threads", "deterministic")
"""Keys of an attempt's fingerprint that an `Environment` has."""

_RECENT_TRIALS = 64
"""Number of latest trials for the duration of an epoch."""

_FIRST_EPOCHS = 3
"""Number of epochs after which a running trial counts for it."""

_COUNTED = ("complete", "running", "interrupted", "paused", "pruned", "failed")


def read_status(
    connection: Connection,
    name: str,
    *,
    all_code: bool = False,
    each: bool = True,
    where: Sequence[str] = (),
) -> results.StudyStatus:
    """Count the study's trials by state, and find its best one among those that meet the conditions ``where``.

    If trials ran under several definitions, it is the best under the present one, unless
    ``all_code``. Configurations, whose statistics import SciPy, are included only with ``each``.
    """
    study = studies.find_study(connection, name)
    rows = connection.execute(sa.select(Trial).where(Trial.study_id == study.id)).all()
    live = {
        row.trial_id
        for row in connection.execute(open_attempts().where(Trial.study_id == study.id))
        if not is_lost(row)
    }
    objectives = studies.objectives_of(study)
    several = len(objectives) > 1
    trials = trial_statuses(connection, study, rows, live, objectives)

    def configured(
        group: Sequence[results.TrialStatus], *, compared: bool
    ) -> tuple[ConfigurationRecord, ...]:
        if repeating_of(study).is_single:
            return ()
        return configurations_of(group, study.direction, study.definition, compared=compared)

    def best_of(group: Sequence[results.TrialStatus]) -> results.BestTrial | None:
        if several:
            return None
        if repeating_of(study).is_single:
            return best_trial(group, study.direction)
        return results.leader_of(configured(group, compared=False))

    codes: tuple[CodeGroup, ...] = ()
    ranked: Sequence[results.TrialStatus] = matching(trials, where)
    if is_mixed(connection, study):
        by_id = codes_of_trials(connection, studies.trials_of(study.id))
        numbered = {row.number: by_id[row.id] for row in rows if row.id in by_id}
        codes = code_groups(study, trials, numbered, best_of)
        if codes and not all_code:
            current = {number for group in codes if group.current for number in group.trials}
            ranked = [trial for trial in ranked if trial.number in current]
    confirmed: tuple[ConfigurationRecord, ...] = ()
    confirmation = confirmation_name(name)
    if each and confirmation in studies.study_names(connection):
        confirmed = read_status(connection, confirmation).configurations
    counts: Counter[str] = Counter(trial.state for trial in trials)
    return results.StudyStatus(
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
        observations=observations_of(connection, study.id),
        seconds_left=seconds_left(connection, study, trials),
    )


def read_statuses(connection: Connection, *, each: bool = True) -> tuple[results.StudyStatus, ...]:
    """Return the status of every study, the oldest first."""
    return tuple(
        read_status(connection, name, each=each) for name in studies.study_names(connection)
    )


def read_trial(connection: Connection, name: str, number: int) -> results.TrialRecord:
    study = studies.find_study(connection, name)
    records = _records(connection, study, Trial.number == number)
    if not records:
        raise studies.no_such_trial(connection, study, number)
    return records[0]


def read_trials(
    connection: Connection, name: str, numbers: Collection[int] | None = None
) -> tuple[results.TrialRecord, ...]:
    """Return every trial that has started with all details, by number; only those of ``numbers``, if given."""
    condition = sa.true() if numbers is None else Trial.number.in_(list(numbers))
    return _records(connection, studies.find_study(connection, name), condition)


def read_results(connection: Connection, name: str) -> results.StudyResults:
    return results.StudyResults(read_status(connection, name), read_trials(connection, name))


def read_unfinished(connection: Connection, name: str) -> tuple[results.TrialRecord, ...]:
    """Return the trials that have started and have no result, with all details, by number."""
    return _records(connection, studies.find_study(connection, name), Trial.result.is_(None))


def read_environments(connection: Connection, name: str) -> tuple[Environment, ...]:
    """Return the environments of the study's attempts, each with its number of attempts."""
    study = studies.find_study(connection, name)
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for row in connection.execute(
        sa.select(Attempt.fingerprint, Attempt.host, sa.func.count().label("attempts"))
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(
            Trial.study_id == study.id,
            # An attempt that ended as reused has reported none.
            sa.or_(Attempt.outcome.is_(None), Attempt.outcome != "reused"),
        )
        .group_by(Attempt.fingerprint, Attempt.host)
        .order_by(sa.func.min(Attempt.id))
    ):
        fingerprint = row.fingerprint or {}
        environment = {part: fingerprint[part] for part in _ENVIRONMENT_KEYS if part in fingerprint}
        hosts[json.dumps(environment)] += [row.host] * row.attempts
    environments = []
    for text, host_names in hosts.items():
        environment = json.loads(text)
        environments.append(
            Environment(
                versions=environment.get("versions", {}),
                processor=environment.get("processor", ""),
                devices=tuple(environment.get("devices", ())),
                threads=tuple(environment.get("threads", ())),
                deterministic=environment.get("deterministic"),
                hosts=tuple(dict.fromkeys(host_names)),
                attempts=len(host_names),
            )
        )
    return tuple(environments)


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


def _shown_files(stored: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the files of ``show --json`` from those stored with a trial's attempts.

    ``"sought"`` marks a written file that the trial had looked for, or tried to read, and not found.
    """
    entries: dict[str, list[Any]] = {"read": [], "written": [], "notices": []}
    latest: dict[str, FileUse] = {}
    for files in stored:
        latest |= {use.path: use for use in uses_from_json(files)}
        entries["notices"] += [n for n in files.get("notices", ()) if n not in entries["notices"]]
    for use in latest.values():
        if use.read_digest:
            entries["read"].append({"path": use.path, "digest": use.read_digest})
        if use.wrote or use.left:
            sought = {"sought": True} if use.asked and not use.existed else {}
            entries["written"].append({"path": use.path, "digest": use.digest or None, **sought})
    return entries


def _records(
    connection: Connection,
    study: AnyRow,
    condition: sa.ColumnElement[bool],
) -> tuple[results.TrialRecord, ...]:
    selected = sa.and_(Trial.study_id == study.id, condition)
    trials = connection.execute(sa.select(Trial).where(selected).order_by(Trial.number)).all()
    ids = sa.select(Trial.id).where(selected)
    optuna_ids = sa.select(Trial.optuna_trial_id).where(selected)
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
    objectives = studies.objectives_of(study)
    codes = codes_of_trials(connection, ids)
    rungs = rungs_of_trials(connection, study.id, ids)
    every_trial = sa.select(Trial.number, Trial.hidden, Trial.reuses)
    others = connection.execute(every_trial.where(Trial.study_id == study.id))
    hidden = hidden_numbers(study, others)
    records = []
    for trial in trials:
        trial_values = values[trial.optuna_trial_id]
        trial_attempts = attempts[trial.id]
        environments = [row.fingerprint for row in trial_attempts if row.fingerprint is not None]
        reports = (environment.get("warm_start_report") for environment in reversed(environments))
        paths = {(row.step, row.digest): row.path for row in checkpoints[trial.id]}
        records.append(
            record_of(
                results.TrialRecord,
                trial,
                study=study.name,
                tags=tuple(trial.tags or ()),
                hidden=trial.number in hidden,
                state=trial_state(trial, running=any(not _ended(row) for row in trial_attempts)),
                params=drawn[trial.optuna_trial_id].params,
                distributions=drawn[trial.optuna_trial_id].distributions,
                value=next(iter(trial_values), None),
                values=values_by_name(objectives, trial_values),
                epochs=tuple(record_of(results.EpochRecord, row) for row in epochs[trial.id]),
                attempts=tuple(
                    record_of(results.AttemptRecord, row, outcome=_ended(row))
                    for row in trial_attempts
                ),
                checkpoints=tuple(
                    record_of(results.CheckpointRecord, row) for row in checkpoints[trial.id]
                ),
                verification=next(
                    (record_of(VerificationRecord, row) for row in verdicts[trial.id][-1:]), None
                ),
                audits=tuple(
                    record_of(AuditRecord, row, message=row.report.get("message"))
                    for row in audits[trial.id]
                ),
                code=codes.get(trial.id),
                output_only=tuple(environments[-1].get("output_only", ())) if environments else (),
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
                files=_shown_files([row.files for row in trial_attempts if row.files is not None]),
            )
        )
    return tuple(records)


def _ended(attempt: AnyRow) -> str | None:
    """Return how an attempt ended; an open one is lost if its worker is."""
    return "lost" if attempt.outcome is None and is_lost(attempt) else attempt.outcome


def best_trial(trials: Sequence[results.TrialStatus], direction: str) -> results.BestTrial | None:
    """Return the complete trial with the best objective, the first of equal ones."""
    sign = cost_sign(direction)
    ended = [(sign * t.value, t.number, t) for t in _complete(trials) if t.value is not None]
    if not ended:
        return None
    _, number, best = min(ended)
    return results.BestTrial(number, cast("float", best.value), best.params)


def pareto_front(
    trials: Sequence[results.TrialStatus], objectives: Sequence[Objective]
) -> tuple[results.ParetoTrial, ...]:
    """Return the complete trials, by number, that no other beats in an objective and matches in all."""
    signs = {objective.name: cost_sign(objective.direction) for objective in objectives}
    points = sorted(
        (tuple(sign * trial.values[name] for name, sign in signs.items()), trial.number, trial)
        for trial in _complete(trials)
        if trial.values is not None
    )
    # In sorted order, a point can only be beaten by an earlier point of the front.
    front: list[tuple[tuple[float, ...], int, results.TrialStatus]] = []
    for point in points:
        beaten = (
            other != point[0] and all(a <= b for a, b in zip(other, point[0], strict=True))
            for other, _, _ in front
        )
        if not any(beaten):
            front.append(point)
    return tuple(
        results.ParetoTrial(number, trial.values or {}, trial.params)
        for _, number, trial in sorted(front, key=lambda point: point[1])
    )


def _complete(trials: Sequence[results.TrialStatus]) -> list[results.TrialStatus]:
    return [trial for trial in trials if trial.state == "complete" and not trial.hidden]


def trial_state(trial: AnyRow, *, running: bool) -> TrialState:
    """Return a trial's state, from its columns and whether it has a live attempt."""
    if trial.result is not None:
        return cast("TrialState", trial.result)
    if running:
        return "running"
    if trial.current_attempt == 0 or trial.reuses is not None:
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
) -> tuple[results.TrialStatus, ...]:
    """Return the progress of each of the study's trials, by number.

    ``trials`` are the columns of all its trials; ``live`` are the ids of those with a live attempt.
    """
    optuna_ids = sa.select(Trial.optuna_trial_id).where(Trial.study_id == study.id)
    drawn = optuna_rows.parameters(connection, optuna_ids)
    values = optuna_rows.values(connection, optuna_ids)
    last = (
        sa.select(Epoch.trial_id, sa.func.max(Epoch.epoch).label("epoch"))
        .where(Epoch.trial_id.in_(studies.trials_of(study.id)))
        .group_by(Epoch.trial_id)
        .subquery()
    )
    is_last = sa.and_(Epoch.trial_id == last.c.trial_id, Epoch.epoch == last.c.epoch)
    rows = connection.execute(sa.select(Epoch).join(last, is_last))
    latest = {row.trial_id: (row.epoch + 1, row.metrics) for row in rows}
    definition = study.definition
    epochs = definition.get("epochs")
    errors = _errors(connection, study.id)
    hidden = hidden_numbers(study, trials)
    statuses = []
    for trial in sorted(trials, key=lambda t: t.number):
        trial_values = values[trial.optuna_trial_id]
        epoch, metrics = latest.get(trial.id, (0, {}))
        error, error_kind = errors.get(trial.id, (None, None))
        statuses.append(
            results.TrialStatus(
                number=trial.number,
                state=trial_state(trial, running=trial.id in live),
                params=drawn[trial.optuna_trial_id].params,
                value=next(iter(trial_values), None),
                value_of=trial.value_of,
                reuses=trial.reuses,
                proposals=trial.proposals,
                tags=tuple(trial.tags or ()),
                note=trial.note,
                hidden=trial.number in hidden,
                epoch=epoch,
                epochs=trial.epochs or epochs,
                metrics=metrics,
                values=values_by_name(objectives, trial_values),
                attempts=trial.current_attempt,
                error=error,
                error_kind=error_kind,
            )
        )
    return tuple(statuses)


def _errors(connection: Connection, study: int) -> dict[int, tuple[str, results.ErrorKind | None]]:
    """Return the last line and the kind of the error that ended each failed or interrupted trial, by the trial's id."""
    rows = connection.execute(
        sa.select(Trial.id, Attempt.error, Attempt.error_kind)
        .join(
            Attempt, sa.and_(Trial.id == Attempt.trial_id, Attempt.number == Trial.current_attempt)
        )
        .where(
            Trial.study_id == study,
            # An attempt that was stopped or killed on request has a reason, and no error.
            sa.or_(
                Trial.result == "failed",
                sa.and_(Attempt.outcome == "interrupted", Attempt.error_kind.is_not(None)),
            ),
            Attempt.error.is_not(None),
        )
    )
    return {row.id: (row.error.strip().rpartition("\n")[2], row.error_kind) for row in rows}


def seconds_left(
    connection: Connection, study: AnyRow, trials: Sequence[results.TrialStatus]
) -> float | None:
    """Estimate the seconds until the study's total is reached; None if too little is known.

    The duration of an epoch is the median of the latest trials, including their overhead; a running trial counts
    after its first epochs, because building and tracing may take longer than these. A trial
    that does not exist yet counts as the median of complete and pruned trials, or as a whole one.
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

    def has_pace(trial: results.TrialStatus) -> bool:
        needed = _FIRST_EPOCHS if trial.number in running else 1
        return trial.epoch >= needed and trial.number in spent and trial.reuses is None

    paces = [spent[trial.number] / trial.epoch for trial in recent if has_pace(trial)]
    if not paces:
        return None
    ended = [trial.epoch for trial in trials if trial.state in ("complete", "pruned")]
    whole = median(ended) if ended else float(trials[0].epochs or 0)
    unfinished = ("running", "interrupted", "waiting")
    remaining = [max((t.epochs or 0) - t.epoch, 0.0) for t in trials if t.state in unfinished]
    remaining += [whole] * max(study.target - len(trials), 0)
    return median(paces) * max(*remaining, sum(remaining) / len(running))


def is_mixed(connection: Connection, study: AnyRow) -> bool:
    """Return whether attempts of the study ran under an earlier definition."""
    other = Attempt.definition != study.fingerprint
    return count(connection, Attempt.trial_id.in_(studies.trials_of(study.id)), other) > 0


def codes_of_trials(connection: Connection, trial_ids: sa.Select[int]) -> dict[int, str]:
    """Return the short form of each trial's definition and code, by the trial's id.

    A trial that was resumed under another definition has both, joined by ``+``. Attempts before a
    start from scratch, and attempts without training, do not count.
    """
    rows = connection.execute(
        sa.select(Attempt.trial_id, Attempt.definition, Attempt.start_step)
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Attempt.trial_id.in_(trial_ids), Attempt.number > Trial.ignore_checkpoints_through)
        .order_by(Attempt.id)
    )
    codes: dict[int, list[str]] = {}
    latest: dict[int, str] = {}
    for row in rows:
        if row.definition is None:
            continue
        code = short_code(row.definition)
        latest[row.trial_id] = code
        if row.start_step == 0:
            codes[row.trial_id] = [code]
        elif row.start_step is not None:
            trial_codes = codes.setdefault(row.trial_id, [])
            trial_codes += [code] if code not in trial_codes else []
    return {trial: "+".join(codes.get(trial, [code])) for trial, code in latest.items()}


def code_groups(
    study: AnyRow,
    trials: Sequence[results.TrialStatus],
    codes: Mapping[int, str],
    best: Callable[[Sequence[results.TrialStatus]], results.BestTrial | None],
) -> tuple[CodeGroup, ...]:
    """Return the study's trials by definition and code, in the order of their first trials.

    Empty if all are of the present code, because those of another one started again. ``codes`` are those of
    trials by number; ``best`` returns the best of some trials, or None.
    """
    present = short_code(study.fingerprint)
    by_code: dict[str, list[results.TrialStatus]] = {}
    for trial in trials:
        by_code.setdefault(codes.get(trial.number, present), []).append(trial)
    groups = []
    for code, group in by_code.items():
        leader = best(group)
        groups.append(
            CodeGroup(
                code=code,
                current=code == present,
                trials=tuple(trial.number for trial in group),
                best=None if leader is None else leader.number,
                value=None if leader is None else leader.value,
            )
        )
    return () if all(group.current for group in groups) else tuple(groups)


@dataclass(frozen=True, slots=True)
class Stamps:
    """State of a study's rows, by which an open page sees what has changed; equal as long as no record has.

    A page polls every two seconds, and the records of a thousand trials take seconds to read. So one query
    reads, for each trial, the columns that change and the newest key of each table that only grows.

    Attributes:
        identity: The study's identity, another one if it was deleted and run again.
        study: State of the study itself, of its workers and of its confirmation.
        trials: State of each trial, by its number: all but its progress, and its progress (epochs and
            checkpoints), on which no other part of the status depends.
        is_repeated: Whether it has configurations with repeats, or a confirmation.
    """

    identity: str
    study: tuple[Any, ...]
    trials: Mapping[int, tuple[Any, Any]]
    is_repeated: bool

    @property
    def but_progress(self) -> tuple[Any, ...]:
        """Return the state of all but the trials' progress."""
        return self.study, {number: state for number, (state, _) in self.trials.items()}


def read_stamps(connection: Connection, name: str) -> Stamps:
    study = studies.find_study(connection, name)
    confirming = sa.select(Study).where(Study.name == confirmation_name(name))
    confirmation = connection.execute(confirming).first()
    workers = tuple((worker.key, worker.live) for worker in read_workers(connection, name))
    state = (
        *(study.target, study.epochs, study.inexact_accepted_at, study.fingerprint),
        studies.number_of_changes(connection, study.id),
        workers,
        observations_of(connection, study.id),
        None if confirmation is None else tuple(_trial_stamps(connection, confirmation.id).items()),
    )
    repeated = confirmation is not None or not repeating_of(study).is_single
    return Stamps(study.identity, state, _trial_stamps(connection, study.id), repeated)


def _trial_stamps(connection: Connection, study_id: int) -> dict[int, tuple[Any, Any]]:
    lost = {
        row.trial_id
        for row in connection.execute(open_attempts().where(Trial.study_id == study_id))
        if is_lost(row)
    }
    last = sa.and_(Attempt.trial_id == Trial.id, Attempt.number == Trial.current_attempt)
    decided = sa.func.count(Audit.outcome)
    rows = connection.execute(
        sa.select(
            *(Trial.id, Trial.number),
            _of_trial(Epoch.trial_id, sa.func.max(Epoch.epoch)),
            _of_trial(Checkpoint.trial_id, sa.func.max(Checkpoint.id)),
            _of_trial(Checkpoint.trial_id, sa.func.count()),
            *(Trial.result, Trial.current_attempt, Trial.paused),
            *(Trial.hidden, Trial.note, sa.type_coerce(Trial.tags, sa.Text)),
            *(
                Trial.digest,
                Trial.epochs,
                Trial.ignore_checkpoints_through,
                Attempt.outcome,
                Attempt.pid,
            ),
            *(Attempt.start_step, Attempt.end_step),
            *(sa.func.length(Attempt.files), sa.func.length(Attempt.fingerprint)),
            _of_trial(Evaluation.trial_id, sa.func.max(Evaluation.id)),
            _of_trial(Verdict.trial_id, sa.func.max(Verdict.id)),
            _of_trial(Length.trial_id, sa.func.count()),
            _of_trial(RungMember.trial_id, sa.func.count()),
            _of_trial(RungMember.trial_id, sa.func.count(RungMember.promoted)),
            _of_trial(Audit.trial_id, decided),
            optuna_rows.parameter_count(Trial.optuna_trial_id),
        )
        .outerjoin(Attempt, last)
        .where(Trial.study_id == study_id)
        .order_by(Trial.number)
    )
    return {row[1]: ((*row[5:], row[0] in lost), row[2:5]) for row in rows.all()}


def _of_trial(column: Any, value: Any) -> sa.ScalarSelect[Any]:
    return sa.select(value).where(column == Trial.id).correlate(Trial.__table__).scalar_subquery()
