"""Rungs: which trials wait at one, and the decision when it is full.

A rung is full when each of its members has reached it, or is over. Then the best are promoted and
the others end as pruned, in the transaction that finds it full and under the study's lock, so that
it is decided once and by nobody who lacks a value. What was decided stays: who was compared, with
which value, and who was promoted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.budgets import Round, RungSchedule, promoted
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.rungs.standing import PROMOTED, WAITS, round_starts, schedule_of
from sweeper.storage.tables import AnyRow, Attempt, Study, Trial, UtcNow
from sweeper.storage.trial_tables.rungs import Rung, RungMember


@dataclass(frozen=True, slots=True)
class DecidedRung:
    """A rung that was decided just now.

    Attributes:
        bracket: Of its round, from 0.
        epochs: After which its trials paused.
        promoted: The trials that go on, by number.
        ended: The other ones that were compared.
    """

    bracket: int
    epochs: int
    promoted: tuple[int, ...]
    ended: tuple[int, ...]


def reach(
    connection: Connection, trial_id: int, epochs: int, value: float, digest: str | None
) -> None:
    """Write down that a trial has stopped at a rung; a value that is NaN is none, and not promoted."""
    reached = None if math.isnan(value) else value
    at_rung = sa.and_(RungMember.trial_id == trial_id, RungMember.epochs == epochs)
    connection.execute(sa.delete(RungMember).where(at_rung, RungMember.promoted.is_(None)))
    connection.execute(
        sa.insert(RungMember).values(trial_id=trial_id, epochs=epochs, value=reached, digest=digest)
    )
    connection.execute(sa.update(Trial).where(Trial.id == trial_id).values(paused=WAITS))


def lock_rounds(connection: Connection, token: int) -> None:
    """Under a budget with rungs, lock the study of the attempt, before anything else is locked.

    A claim has the study first and then the trials of a rung that it decides; who had a trial and then
    asked for the study would wait for the claim, and the claim for it.
    """
    of_attempt = sa.select(Trial.study_id).join(Attempt, Attempt.trial_id == Trial.id)
    found = sa.select(Study).where(
        Study.id == of_attempt.where(Attempt.id == token).scalar_subquery()
    )
    study = connection.execute(found).first()
    if study is not None and schedule_of(study) is not None:
        connection.execute(found.with_for_update()).one()


def settle(connection: Connection, study_id: int, number: int) -> tuple[DecidedRung, ...]:
    """Decide every rung of the trial's round that is full by now; lock the study for it."""
    found = sa.select(Study).where(Study.id == study_id)
    schedule = schedule_of(connection.execute(found).one())
    if schedule is None:
        return ()
    study = connection.execute(found.with_for_update()).one()
    starts = round_starts(connection, study_id)
    return _decide(connection, study, schedule, schedule.round_of(number, starts), starts)


def settle_all(connection: Connection, study: AnyRow) -> tuple[DecidedRung, ...]:
    """Decide every rung of the study that is full; it must be locked."""
    schedule = schedule_of(study)
    if schedule is None:
        return ()
    starts = round_starts(connection, study.id)
    waiting = connection.scalars(
        sa.select(Trial.number)
        .where(Trial.study_id == study.id, Trial.result.is_(None), Trial.paused == WAITS)
        .order_by(Trial.number)
    )
    rounds = {schedule.round_of(number, starts): None for number in waiting}
    return tuple(
        decided for each in rounds for decided in _decide(connection, study, schedule, each, starts)
    )


def _decide(
    connection: Connection,
    study: AnyRow,
    schedule: RungSchedule,
    each: Round,
    starts: Sequence[int],
) -> tuple[DecidedRung, ...]:
    done = set(
        connection.scalars(
            sa.select(Rung.epochs).where(Rung.study_id == study.id, Rung.first == each.first)
        )
    )
    end = each.end(study.target, starts)
    decided: list[DecidedRung] = []
    before: int | None = None
    for epochs in each.rungs:
        if epochs not in done:
            rows = _members(connection, study, each.first, end, epochs, before)
            expected = end - each.first if before is None else len(rows)
            if not _is_full(rows, expected):
                break
            decided.append(_write(connection, study, schedule, each, epochs, rows))
        before = epochs
    return tuple(decided)


def _is_full(rows: Sequence[AnyRow], expected: int) -> bool:
    """Return whether all expected members have begun, and each has reached the rung or ended."""
    return len(rows) >= expected and all(r.result or r.reached is not None for r in rows)


def _members(  # noqa: PLR0917 - what a rung is
    connection: Connection, study: AnyRow, first: int, end: int, epochs: int, before: int | None
) -> Sequence[AnyRow]:
    """Return the values of the rung's begun members; beyond the first rung, of the promoted ones."""
    query = (
        sa.select(
            Trial.id,
            Trial.number,
            Trial.optuna_trial_id,
            Trial.result,
            RungMember.trial_id.label("reached"),
            RungMember.value,
            RungMember.digest,
        )
        .outerjoin(
            RungMember, sa.and_(RungMember.trial_id == Trial.id, RungMember.epochs == epochs)
        )
        .where(Trial.study_id == study.id, Trial.number >= first, Trial.number < end)
        .order_by(Trial.number)
    )
    if before is not None:
        query = query.where(
            Trial.id.in_(
                sa.select(RungMember.trial_id).where(
                    RungMember.epochs == before, RungMember.promoted.is_(True)
                )
            )
        )
    return connection.execute(query).all()


def _write(  # noqa: PLR0917 - what a decision is
    connection: Connection,
    study: AnyRow,
    schedule: RungSchedule,
    each: Round,
    epochs: int,
    rows: Sequence[AnyRow],
) -> DecidedRung:
    # A trial that was over before the rung is compared by its value, if it has one.
    over = [row for row in rows if row.reached is None]
    ended = optuna_rows.values(
        connection, [row.optuna_trial_id for row in over if row.result == "complete"]
    )
    values = {
        row.number: row.value if row.reached is not None else ended.get(row.optuna_trial_id)
        for row in rows
    }
    chosen = set(promoted(values, schedule.factor, study.direction))
    rung = connection.execute(
        sa.insert(Rung)
        .values(
            study_id=study.id,
            bracket=each.bracket,
            first=each.first,
            epochs=epochs,
            decided_at=UtcNow(),
        )
        .returning(Rung.id)
    ).scalar_one()
    if over:
        connection.execute(
            sa.insert(RungMember),
            [
                {
                    "trial_id": row.id,
                    "epochs": epochs,
                    "value": values[row.number],
                    "digest": None,
                    "rung_id": rung,
                    "promoted": row.number in chosen,
                }
                for row in over
            ],
        )
    paused = [row for row in rows if row.reached is not None]
    for going_on in (True, False):
        ids = [row.id for row in paused if (row.number in chosen) is going_on]
        if ids:
            connection.execute(
                sa.update(RungMember)
                .where(RungMember.epochs == epochs, RungMember.trial_id.in_(ids))
                .values(promoted=going_on, rung_id=rung)
            )
            connection.execute(
                sa.update(Trial)
                .where(Trial.id.in_(ids))
                .values(**({"paused": PROMOTED} if going_on else _pruned(epochs)))
            )
    optuna_rows.prune_trials(
        connection,
        {row.optuna_trial_id: row.value for row in paused if row.number not in chosen},
    )
    return DecidedRung(
        each.bracket,
        epochs,
        tuple(sorted(chosen)),
        tuple(row.number for row in rows if row.number not in chosen),
    )


def _pruned(epochs: int) -> dict[str, object]:
    digest = (
        sa.select(RungMember.digest)
        .where(RungMember.trial_id == Trial.id, RungMember.epochs == epochs)
        .correlate(Trial.__table__)
        .scalar_subquery()
    )
    return {"paused": None, "result": "pruned", "digest": digest}
