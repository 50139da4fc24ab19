"""Position of a study's trials among its rungs, and the trials that must wait for it.

What it asks of the database is a fixed number of queries, none of which grows with the trials that
are over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.budgets import RungSchedule, rung_schedule
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.status import are
from sweeper.storage.tables import AnyRow, Epoch, Trial
from sweeper.storage.trial_tables.rungs import RoundStart, Rung, RungMember

WAITS, PROMOTED = "waits", "promoted"
"""What `Trial.paused` says of a trial that has stopped at a rung."""


def schedule_of(study: AnyRow) -> RungSchedule | None:
    """Return the rungs of a study's trials; None where it has no budget of rungs."""
    definition = json.loads(study.definition)
    return rung_schedule(definition.get("budget"), definition.get("epochs", 0))


def next_rung(connection: Connection, study: AnyRow, trial: AnyRow) -> int | None:
    """Return after how many epochs a trial pauses next; None where it trains to its end."""
    schedule = schedule_of(study)
    if schedule is None:
        return None
    rungs = schedule.round_of(trial.number, round_starts(connection, study.id)).rungs
    passed: int | None = connection.scalar(
        sa.select(sa.func.max(RungMember.epochs)).where(
            RungMember.trial_id == trial.id, RungMember.promoted.is_(True)
        )
    )
    return next((epochs for epochs in rungs if epochs > (passed or 0)), None)


def round_starts(connection: Connection, study_id: int) -> tuple[int, ...]:
    """Return the numbers from which rounds are dealt anew, ascending; see `raise_total`."""
    return tuple(
        connection.scalars(
            sa.select(RoundStart.number)
            .where(RoundStart.study_id == study_id)
            .order_by(RoundStart.number)
        )
    )


def change_total(connection: Connection, study: AnyRow, target: int, begun: int) -> None:
    """Keep rounds as they are when the total changes: one that is raised opens new ones.

    Otherwise a round that the total had cut off, and whose rungs may be decided, would gain trials.
    """
    if schedule_of(study) is None or target == study.target:
        return
    connection.execute(
        sa.delete(RoundStart).where(RoundStart.study_id == study.id, RoundStart.number >= target)
    )
    if target > study.target and begun and study.target not in round_starts(connection, study.id):
        connection.execute(sa.insert(RoundStart).values(study_id=study.id, number=study.target))


def held_up(
    connection: Connection, study: AnyRow, schedule: RungSchedule, begun: int
) -> str | None:
    """Return why no trial can begin now; None where one can, or all are finished.

    A sampler sees what trials gave after the first rung's epochs, so that it waits for no more.
    """
    unfinished = sa.and_(Trial.study_id == study.id, Trial.result.is_(None))
    rows = connection.execute(
        sa.select(Trial.number, Trial.paused, Epoch.epoch)
        .outerjoin(Epoch, sa.and_(Epoch.trial_id == Trial.id, Epoch.epoch == schedule.rungs[0] - 1))
        .where(unfinished)
        .order_by(Trial.number)
    ).all()
    running = sum(row.paused is None for row in rows)
    if begun >= study.target:
        if not rows:
            return None
        paused = len(rows) - running
        if paused:
            return (
                f"all {begun} trials have begun; {paused} {are(paused)} paused until the other trials "
                f"of their rungs have come as far, and {running} {are(running)} running"
            )
        return f"all {begun} trials have begun, and {running} {are(running)} still running"
    if study.window is None:
        return None
    lowest = next((row.number for row in rows if row.epoch is None), None)
    if lowest is not None and lowest <= begun - study.window:
        return f"trial {begun} learns from trial {lowest}, which has not come to its first rung"
    return at_most(study, running)


def at_most(study: AnyRow, running: int) -> str | None:
    """Return why no further trial may run beside so many; None where one may."""
    concurrency = json.loads(study.definition).get("concurrency", study.window)
    if study.window is None or running < concurrency:
        return None
    return f"{running} trials are running (concurrency={concurrency})"


def running_trials(connection: Connection, study: AnyRow) -> int:
    """Return how many trials have begun, are not over and do not pause."""
    return int(
        connection.scalar(
            sa.select(sa.func.count())
            .select_from(Trial)
            .where(Trial.study_id == study.id, Trial.result.is_(None), Trial.paused.is_(None))
        )
        or 0
    )


def check_not_compared(connection: Connection, study: str, trial: AnyRow) -> None:
    """Check that a failed trial was not ranked last at a rung.

    Raises:
        UsageError: It was, and that is decided.
    """
    epochs = connection.scalar(
        sa.select(RungMember.epochs).where(
            RungMember.trial_id == trial.id, RungMember.promoted.is_(False)
        )
    )
    if epochs is not None:
        msg = (
            f"trial {trial.number} of study {study!r} failed, and its rung after {epochs} epochs was "
            "decided without it; another attempt would change nothing there, so it stays failed. "
            "Give its parameters to a further trial: enqueue= in a study of another name"
        )
        raise UsageError(msg)


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
    """Check that no rung would change that a trial has come to.

    Raises:
        DefinitionError: Trials have come to rungs, and these are others under ``definition``.
    """
    before = json.loads(study.definition)
    if all(before.get(key) == definition.get(key) for key in ("budget", "epochs")):
        return
    reached = sa.select(RungMember.epochs).join(Trial).where(Trial.study_id == study.id).limit(1)
    if connection.scalar(reached) is not None:
        msg = (
            f"study {study.name!r} has trials that have come to rungs of its budget, and these would "
            "be others now; give the changed study another name"
        )
        raise DefinitionError(msg)


def forget_rungs(connection: Connection, trial_id: int) -> None:
    """Have a trial that begins anew be at no rung; with a rung's last member goes its decision."""
    rungs = sa.select(RungMember.rung_id).where(RungMember.trial_id == trial_id)
    decided = connection.scalars(rungs.where(RungMember.rung_id.is_not(None))).all()
    connection.execute(sa.delete(RungMember).where(RungMember.trial_id == trial_id))
    if decided:
        connection.execute(
            sa.delete(Rung).where(
                Rung.id.in_(decided), ~sa.exists().where(RungMember.rung_id == Rung.id)
            )
        )
    connection.execute(sa.update(Trial).where(Trial.id == trial_id).values(paused=None))
