"""The audits of a study: which intervals are to be compared, who compares one, and what was found.

An interval is recorded by the attempt that pinned it, claimed by whoever compares it, and decided
once. All of it is in the database: any worker of the machine may take over from one that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.records.exactness import AuditOutcome, Exactness
from sweeper.storage.database import Database
from sweeper.storage.exactness import claims as audit_claims
from sweeper.storage.exactness.claims import (
    FIRST_INTERVALS,
    AuditClaim,
    Pinned,
    Wanted,
    count_of,
    seconds_of,
    undecided,
)
from sweeper.storage.exactness.reading import read_exactness
from sweeper.storage.queries.attempts import lock_current
from sweeper.storage.queries.studies import find_study, lock_study, trials_of
from sweeper.storage.tables import Attempt, Audit, Study, Trial, UtcNow

WhichIntervals = Literal["first", "drawn", "all", "none"]
"""What of a trial is audited: its first intervals, one that is drawn, every one, or none."""


class Audits:
    """A study's audits. Every method is one transaction; see `Repository` for the errors of all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def plan(self, study: str, number: int, *, drawn: bool) -> tuple[WhichIntervals, int]:
        """Decide what of a trial is audited, once for all of its attempts.

        The first trial is; where it failed before it had enough, the next one to begin.

        Args:
            study: The study's name.
            number: The trial's.
            drawn: Whether one interval of it is audited if it is not the first.

        Returns:
            What, and how many intervals it has already.
        """
        return self._database.write(lambda c: _plan(c, study, number, drawn=drawn))

    def add(self, token: int, pinned: Pinned) -> bool:
        """Record an interval for the attempt ``token``; whether it is wanted.

        One that another attempt has recorded is not; nor is it recorded twice.

        Raises:
            SupersededError: The attempt is no longer the trial's current one.
        """
        return self._database.write(lambda c: _add(c, token, pinned))

    def claim(
        self,
        study: str,
        *,
        worker_key: str,
        host: str,
        key: str,
        lease_seconds: float = 60.0,
        first_only: bool = False,
        unbounded: bool = False,
        waited: float = 0.0,
    ) -> AuditClaim | None:
        """Claim the oldest interval that can be compared on this machine, if there is one.

        Args:
            study: The study's name.
            worker_key: The key that the worker joined the study with.
            host: The machine's name: what is pinned on another cannot be read here.
            key: This claim's own, 32 characters; called again with it, the same claim is returned.
            lease_seconds: A lease's length.
            first_only: Whether only intervals are wanted that other trials wait for.
            unbounded: Whether the share of the study's time that audits may take is no bound.
            waited: Seconds that an interval which nobody waits for has had to find an idle slot.
        """
        wanted = Wanted(worker_key, host, key, lease_seconds, first_only, unbounded, waited)
        # Most looks find nothing, and a look need not wait for its turn to write.
        if not self._database.read(lambda c: audit_claims.is_any_undecided(c, study)):
            return None
        return self._database.write(lambda c: audit_claims.claim(c, study, wanted))

    def decide(
        self,
        claim: AuditClaim,
        outcome: AuditOutcome,
        *,
        seconds: float,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the verdict; the same one written again changes nothing.

        Raises:
            SupersededError: Another claim has the audit, or another verdict.
        """
        self._database.write(
            lambda c: audit_claims.decide(c, claim, outcome, seconds, dict(report or {}))
        )

    def release(self, claim: AuditClaim) -> None:
        """Give an audit back that was not finished; nothing if it is another's by now."""
        self._database.write(
            lambda c: c.execute(
                sa.update(Audit).where(audit_claims.held_by(claim)).values(worker_key=None)
            )
        )

    def is_settled(self, study: str) -> bool:
        """Return whether the study has all its first intervals, so that no other trial supplies them."""
        return self._database.read(
            lambda c: (
                c.scalar(
                    sa.select(Trial.id)
                    .where(_has_first(find_study(c, study).id), Trial.result.is_not(None))
                    .limit(1)
                )
                is not None
            )
        )

    def drop_rest(self, study: str, host: str, reason: str) -> tuple[str, ...]:
        """Drop what nobody compares, pinned on ``host``; return the directories that are free."""
        return self._database.write(lambda c: audit_claims.drop_rest(c, study, host, reason))

    def directories_in_use(self, study: str) -> frozenset[str]:
        """Return the directories of the intervals that have no verdict yet."""
        return self._database.read(
            lambda c: frozenset(
                c.scalars(
                    sa.select(Audit.directory).where(
                        Audit.trial_id.in_(trials_of(find_study(c, study).id)), undecided()
                    )
                )
            )
        )

    def accept_inexact(self, study: str) -> None:
        """Note that the study goes on although an audit found, or may find, a difference."""
        self._database.write(
            lambda c: c.execute(
                sa.update(Study)
                .where(Study.name == study, Study.inexact_accepted_at.is_(None))
                .values(inexact_accepted_at=UtcNow())
            )
        )

    def exactness(self, study: str) -> Exactness:
        """Return what the study's audits found.

        Raises:
            UnknownStudyError: There is no such study.
        """
        return self._database.read(lambda c: read_exactness(c, find_study(c, study)))

    def share(self, study: str) -> tuple[float, float]:
        """Return the seconds of the study's audits, and of its attempts."""
        return self._database.read(lambda c: seconds_of(c, find_study(c, study).id)[:2])


def _plan(
    connection: Connection, study: str, number: int, *, drawn: bool
) -> tuple[WhichIntervals, int]:
    study_id = lock_study(connection, study).id
    trial = connection.execute(
        sa.select(Trial).where(Trial.study_id == study_id, Trial.number == number)
    ).one()
    which = trial.audited
    if which is None:
        first = connection.scalar(sa.select(Trial.id).where(_has_first(study_id)).limit(1))
        if first is None:
            first = _begun_first(connection, study_id)
            connection.execute(sa.update(Trial).where(Trial.id == first).values(audited="first"))
        which = "first" if first == trial.id else "drawn" if drawn else "none"
        connection.execute(sa.update(Trial).where(Trial.id == trial.id).values(audited=which))
    count = connection.scalar(sa.select(count_of(trial.id)))
    return cast("WhichIntervals", which), int(count or 0)


def _has_first(study_id: int) -> sa.ColumnElement[bool]:
    """Return the condition for the trial that supplies the first audited intervals, unless it failed too early."""
    enough = count_of(Trial.id) >= FIRST_INTERVALS
    return sa.and_(
        Trial.study_id == study_id,
        Trial.audited == "first",
        sa.or_(Trial.result.is_(None), Trial.result != "failed", enough),
    )


def _begun_first(connection: Connection, study_id: int) -> int | None:
    """Return the lowest running trial without a plan; it may have been claimed before the asking one."""
    return connection.scalar(
        sa.select(Trial.id)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(
            Trial.study_id == study_id,
            Trial.audited.is_(None),
            Trial.result.is_(None),
            Attempt.outcome.is_(None),
        )
        .order_by(Trial.number)
        .limit(1)
    )


def _add(connection: Connection, token: int, pinned: Pinned) -> bool:
    trial = lock_current(connection, token)
    known = connection.scalar(
        sa.select(Audit.directory).where(
            Audit.trial_id == trial.id,
            Audit.from_step == pinned.from_step,
            Audit.to_step == pinned.to_step,
        )
    )
    if known is not None:
        return bool(known == pinned.directory and pinned.problem is None)
    problem = pinned.problem
    connection.execute(
        sa.insert(Audit).values(
            trial_id=trial.id,
            attempt=trial.attempt,
            from_step=pinned.from_step,
            to_step=pinned.to_step,
            to_epoch=pinned.to_epoch,
            host=pinned.host,
            directory=pinned.directory,
            from_path=pinned.from_path,
            to_path=pinned.to_path,
            created_at=UtcNow(),
            outcome=None if problem is None else "dropped",
            decided_at=None if problem is None else UtcNow(),
            report=None if problem is None else json.dumps({"message": problem}),
        )
    )
    return problem is None
