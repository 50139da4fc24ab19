"""Budgets in the database: paused trials and the decisions at rungs.

Samplers use each trial's value after the first rung's epochs. Every trial that does not fail before
has one, in every bracket, so the search depends on no decision and no order of arrival, and
compares values after equal numbers of epochs.

A rung is full when each of its members has reached it or has ended. Then the best are promoted and
the others end as pruned, in one transaction under the study's lock, so it is decided once and with
all values. The decision is stored: the compared trials, their values, and the promoted ones.

Positions of trials among rungs are read with a fixed number of queries, whose cost does not grow
with the number of finished trials.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Epoch,
    RoundStart,
    Rung,
    RungMember,
    Study,
    Trial,
    UtcNow,
    change,
    count,
    record_of,
    rows_by_trial,
)
from sweeper.declarations.budgets import Round, RungSchedule, promoted, rung_schedule
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.lengths import ComparedTrial, RungDecision, RungRecord
from sweeper.records.results import is_or_are

WAITS = "waits"
PROMOTED = "promoted"
"""Values of `Trial.paused` for a trial that has stopped at a rung."""


def schedule_of(study: AnyRow) -> RungSchedule | None:
    """Return the rungs of a study's trials; None without a budget with rungs."""
    definition = study.definition
    return rung_schedule(definition.get("budget"), definition.get("epochs", 0))


def next_rung(connection: Connection, study: AnyRow, trial: AnyRow) -> int | None:
    """Return the number of epochs after which a trial pauses next; None if it trains to its end."""
    schedule = schedule_of(study)
    if schedule is None:
        return None
    rungs = schedule.round_of(trial.number, round_starts(connection, study.id)).rungs
    passed_rungs = (RungMember.trial_id == trial.id, RungMember.promoted.is_(True))
    passed: int | None = connection.scalar(
        sa.select(sa.func.max(RungMember.epochs)).where(*passed_rungs)
    )
    return next((epochs for epochs in rungs if epochs > (passed or 0)), None)


def round_starts(connection: Connection, study_id: int) -> tuple[int, ...]:
    """Return the ascending trial numbers at which the assignment to rounds starts again."""
    starts = sa.select(RoundStart.number).where(RoundStart.study_id == study_id)
    return tuple(connection.scalars(starts.order_by(RoundStart.number)))


def change_total(connection: Connection, study: AnyRow, target: int, trial_count: int) -> None:
    """Change the total without changing existing rounds: a raised total adds new rounds.

    Otherwise a round that the total had cut off, with decided rungs, would get more trials.
    """
    if schedule_of(study) is None or target == study.target:
        return
    connection.execute(
        sa.delete(RoundStart).where(RoundStart.study_id == study.id, RoundStart.number >= target)
    )
    if (
        target > study.target
        and trial_count
        and study.target not in round_starts(connection, study.id)
    ):
        connection.execute(sa.insert(RoundStart).values(study_id=study.id, number=study.target))


def reason_to_wait(connection: Connection, study: AnyRow, number: int) -> str | None:
    """Return the reason for which no trial can start now; None if one can, or all are finished.

    With a budget, samplers use values at the first rung, so they wait only for these.
    """
    if number < study.target and study.window is None:
        return None
    schedule = schedule_of(study)
    reached = sa.false() if schedule is None else Epoch.epoch == schedule.rungs[0] - 1
    rows = connection.execute(
        sa.select(Trial.number, Trial.paused, Trial.reuses, Epoch.epoch)
        .outerjoin(Epoch, sa.and_(Epoch.trial_id == Trial.id, reached))
        .where(Trial.study_id == study.id, Trial.result.is_(None))
        .order_by(Trial.number)
    ).all()
    running = sum(row.paused is None and row.reuses is None for row in rows)
    if number >= study.target:
        paused = sum(row.paused is not None for row in rows)
        if paused:
            return (
                f"all {number} trials have begun; {paused} {is_or_are(paused)} paused until the other "
                f"trials of their rungs arrive, and {running} {is_or_are(running)} running"
            )
        reason = f"all {number} trials have begun, and {running} {is_or_are(running)} still running"
        return reason if rows else None
    lowest = next((row.number for row in rows if row.epoch is None), None)
    if lowest is not None and lowest <= number - study.window:
        state = "is still running" if schedule is None else "has not reached its first rung"
        return f"trial {number} uses the result of trial {lowest}, which {state}"
    return at_most(study, running)


def at_most(study: AnyRow, running: int) -> str | None:
    """Return the reason for which no further trial may run beside the running ones, or None."""
    concurrency = study.definition.get("concurrency", study.window)
    if study.window is None or running < concurrency:
        return None
    return f"{running} trials are running (concurrency={concurrency})"


def running_trials(connection: Connection, study: AnyRow) -> int:
    """Return the number of trials that have begun, have not ended and are not paused."""
    active = (Trial.result.is_(None), Trial.paused.is_(None), Trial.reuses.is_(None))
    return count(connection, Trial.study_id == study.id, *active)


def check_not_compared(connection: Connection, study: str, trial: AnyRow) -> None:
    """Raise `UsageError` if a rung was decided with a failed trial, which was ranked last."""
    ended = (RungMember.trial_id == trial.id, RungMember.promoted.is_(False))
    epochs = connection.scalar(sa.select(RungMember.epochs).where(*ended))
    if epochs is not None:
        raise UsageError(
            f"trial {trial.number} of study {study!r} failed, and its rung after {epochs} epochs "
            "was decided without it, so it cannot be retried. Run its parameters in a new study "
            "(enqueue=…)"
        )


def is_compared() -> sa.Exists:
    """Return the condition that the trial of the enclosing query was not promoted at a rung."""
    return (
        sa.exists()
        .where(RungMember.trial_id == Trial.id, RungMember.promoted.is_(False))
        .correlate(Trial.__table__)
    )


def check_same_rungs(
    connection: Connection, study: AnyRow, definition: Mapping[str, object]
) -> None:
    """Raise `DefinitionError` if trials are at rungs that differ under ``definition``."""
    stored_definition = study.definition
    if all(stored_definition.get(key) == definition.get(key) for key in ("budget", "epochs")):
        return
    if count(connection, Trial.study_id == study.id, RungMember.trial_id == Trial.id):
        raise DefinitionError(
            f"study {study.name!r} has trials at rungs of its budget, and a changed budget has "
            "other rungs; give the changed study another name"
        )


def forget_rungs(connection: Connection, trial_id: int) -> None:
    """Remove a restarted trial from its rungs; with a rung's last member its decision is deleted."""
    rungs = sa.select(RungMember.rung_id).where(RungMember.trial_id == trial_id)
    decided = connection.scalars(rungs.where(RungMember.rung_id.is_not(None))).all()
    connection.execute(sa.delete(RungMember).where(RungMember.trial_id == trial_id))
    if decided:
        connection.execute(
            sa.delete(Rung).where(
                Rung.id.in_(decided), ~sa.exists().where(RungMember.rung_id == Rung.id)
            )
        )
    change(connection, Trial, trial_id, paused=None)


@dataclass(frozen=True, slots=True)
class DecidedRung:
    """A newly decided rung.

    Attributes:
        bracket: Bracket of its round, from 0.
        epochs: Epochs after which its trials paused.
        promoted: Numbers of the promoted trials.
        ended: Numbers of the other compared trials.
    """

    bracket: int
    epochs: int
    promoted: tuple[int, ...]
    ended: tuple[int, ...]


def record_rung_value(
    connection: Connection, trial_id: int, epochs: int, value: float, digest: str | None
) -> None:
    """Store that a trial has stopped at a rung; NaN counts as no value, and is not promoted."""
    reached = None if math.isnan(value) else value
    at_rung = sa.and_(RungMember.trial_id == trial_id, RungMember.epochs == epochs)
    # An interrupted attempt may have stored a value at this rung before.
    connection.execute(sa.delete(RungMember).where(at_rung, RungMember.promoted.is_(None)))
    connection.execute(
        sa.insert(RungMember).values(trial_id=trial_id, epochs=epochs, value=reached, digest=digest)
    )
    change(connection, Trial, trial_id, paused=WAITS)


def lock_rounds(connection: Connection, token: int) -> AnyRow | None:
    """Lock and return the study of an attempt if it has rungs, before anything else is locked.

    A claim locks the study first and then the trials of a rung that it decides; the reverse order
    would cause a deadlock.
    """
    of_attempt = sa.select(Trial.study_id).join(Attempt).where(Attempt.id == token)
    query = sa.select(Study).where(Study.id == of_attempt.scalar_subquery())
    study = connection.execute(query).first()
    if study is None or schedule_of(study) is None:
        return None
    return connection.execute(query.with_for_update()).one()


def settle(
    connection: Connection, study: AnyRow, number: int | None = None
) -> tuple[DecidedRung, ...]:
    """Decide every full rung of the round of trial ``number``, or of all rounds; the study must be locked."""
    schedule = schedule_of(study)
    if schedule is None:
        return ()
    starts = round_starts(connection, study.id)
    waiting = sa.select(Trial.number).where(
        Trial.study_id == study.id, Trial.result.is_(None), Trial.paused == WAITS
    )
    numbers = connection.scalars(waiting.order_by(Trial.number)) if number is None else [number]
    rounds = dict.fromkeys(schedule.round_of(trial_number, starts) for trial_number in numbers)
    return tuple(
        decided
        for round_of_trials in rounds
        for decided in _decide(connection, study, schedule, round_of_trials, starts)
    )


def _decide(
    connection: Connection,
    study: AnyRow,
    schedule: RungSchedule,
    trial_round: Round,
    starts: Sequence[int],
) -> tuple[DecidedRung, ...]:
    of_round = sa.select(Rung.epochs).where(
        Rung.study_id == study.id, Rung.first == trial_round.first
    )
    decided_epochs = set(connection.scalars(of_round))
    end = trial_round.end(study.target, starts)
    decided: list[DecidedRung] = []
    previous: int | None = None
    for epochs in trial_round.rungs:
        if epochs not in decided_epochs:
            rows = _members(connection, study, trial_round.first, end, epochs, previous)
            expected = end - trial_round.first if previous is None else len(rows)
            if not _is_full(rows, expected):
                break
            decided.append(_write(connection, study, schedule, trial_round, epochs, rows))
        previous = epochs
    return tuple(decided)


def _is_full(rows: Sequence[AnyRow], expected: int) -> bool:
    """Return whether all expected members have begun, and each has reached the rung or ended."""
    return len(rows) >= expected and all(r.result or r.reached is not None for r in rows)


def _members(  # noqa: PLR0917 - these determine a rung
    connection: Connection, study: AnyRow, first: int, end: int, epochs: int, previous: int | None
) -> Sequence[AnyRow]:
    """Return the rows of the rung's members that have begun; beyond the first rung, of the promoted ones."""
    columns = (Trial.id, Trial.number, Trial.optuna_trial_id, Trial.result)
    at_rung = (RungMember.trial_id.label("reached"), RungMember.value, RungMember.digest)
    is_member = sa.and_(RungMember.trial_id == Trial.id, RungMember.epochs == epochs)
    query = sa.select(*columns, *at_rung).outerjoin(RungMember, is_member)
    query = query.where(Trial.study_id == study.id, Trial.number >= first, Trial.number < end)
    if previous is not None:
        promoted_before = (RungMember.epochs == previous, RungMember.promoted.is_(True))
        query = query.where(Trial.id.in_(sa.select(RungMember.trial_id).where(*promoted_before)))
    return connection.execute(query.order_by(Trial.number)).all()


def _write(  # noqa: PLR0917 - these determine a decision
    connection: Connection,
    study: AnyRow,
    schedule: RungSchedule,
    trial_round: Round,
    epochs: int,
    rows: Sequence[AnyRow],
) -> DecidedRung:
    # A trial that ended before the rung is compared by its value, if it has one.
    complete = [r.optuna_trial_id for r in rows if r.reached is None and r.result == "complete"]
    objectives = optuna_rows.values(connection, complete)
    values: dict[int, float | None] = {}
    for member in rows:
        values[member.number] = member.value
        if member.reached is None:
            values[member.number] = next(iter(objectives[member.optuna_trial_id]), None)
    promoted_numbers = set(promoted(values, schedule.factor, study.direction))
    row = {
        "study_id": study.id,
        "bracket": trial_round.bracket,
        "first": trial_round.first,
        "epochs": epochs,
    }
    added = sa.insert(Rung).values(**row, decided_at=UtcNow())
    rung = connection.execute(added.returning(Rung.id)).scalar_one()
    ids = [row.id for row in rows]
    members = sa.and_(RungMember.epochs == epochs, RungMember.trial_id.in_(ids))
    # All members are written again: a trial that ended before the rung has no row yet.
    connection.execute(sa.delete(RungMember).where(members))
    connection.execute(
        sa.insert(RungMember),
        [
            {
                "trial_id": row.id,
                "epochs": epochs,
                "value": values[row.number],
                "digest": row.digest,
                "rung_id": rung,
                "promoted": row.number in promoted_numbers,
            }
            for row in rows
        ],
    )
    paused = [row for row in rows if row.reached is not None]
    digest = sa.select(RungMember.digest).where(members, RungMember.trial_id == Trial.id)
    pruned = {"paused": None, "result": "pruned", "digest": digest.scalar_subquery()}
    for columns, is_promoted in (({"paused": PROMOTED}, True), (pruned, False)):
        trial_ids = [row.id for row in paused if (row.number in promoted_numbers) is is_promoted]
        connection.execute(sa.update(Trial).where(Trial.id.in_(trial_ids)).values(**columns))
    ended_here = {
        row.optuna_trial_id: () if row.value is None else (row.value,)
        for row in paused
        if row.number not in promoted_numbers
    }
    optuna_rows.finish_trials(connection, "pruned", ended_here)
    return DecidedRung(
        trial_round.bracket,
        epochs,
        tuple(sorted(promoted_numbers)),
        tuple(row.number for row in rows if row.number not in promoted_numbers),
    )


def _decisions(connection: Connection, study_id: int) -> dict[int, RungDecision]:
    """Return the study's decided rungs by their ids, in the order of their rounds and epochs."""
    compared: defaultdict[int, list[ComparedTrial]] = defaultdict(list)
    for row in connection.execute(
        sa.select(RungMember.rung_id, RungMember.value, RungMember.promoted, Trial.number)
        .join(Trial)
        .where(Trial.study_id == study_id, RungMember.rung_id.is_not(None))
        .order_by(Trial.number)
    ):
        compared[row.rung_id].append(record_of(ComparedTrial, row))
    rungs = sa.select(Rung).where(Rung.study_id == study_id).order_by(Rung.first, Rung.epochs)
    return {
        rung.id: record_of(RungDecision, rung, compared=tuple(compared[rung.id]))
        for rung in connection.execute(rungs)
    }


def rungs_of_trials(
    connection: Connection, study_id: int, trial_ids: sa.Select[int]
) -> dict[int, list[RungRecord]]:
    """Return the rungs that trials have reached, by the trial's id, in order."""
    members = rows_by_trial(connection, RungMember, trial_ids, RungMember.epochs)
    decided = _decisions(connection, study_id) if members else {}
    return {
        trial: [record_of(RungRecord, row, decision=decided.get(row.rung_id)) for row in rows]
        for trial, rows in members.items()
    }
