"""Adding branches: trials that begin at a checkpoint of another, with numbers of their own.

A branch is none of the study's total, and no sampler sees it. Its number is the first that no trial
has and none of the total will have, so that the trials still to come are what they would have been.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.storage.database import Database
from sweeper.storage.queries.descent.inserting import NewBranch, insert_branch
from sweeper.storage.queries.studies import find_study, lock_study
from sweeper.storage.tables import AnyRow, Trial
from sweeper.storage.trial_tables.branches import Branch

__all__ = ["Branches", "NewBranch"]


class Branches:
    """Adds branches. Every method is one transaction; see `Repository` for the errors of all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_number(self, study: str) -> int:
        """Return the number that the study's next branch has, if none is added before it."""
        return self._database.read(lambda c: _next_number(c, find_study(c, study)))

    def begun_from(self, study: str, number: int) -> tuple[int, ...]:
        """Return the numbers of the trials that begin from a checkpoint of the trial, ascending."""
        return self._database.read(lambda c: _begun_from(c, find_study(c, study), number))

    def add(self, study: str, branch: NewBranch) -> bool:
        """Add a branch, which waits for a worker; whether its number was still free.

        Raises:
            UnknownStudyError: There is no such study, or no such parent in it.
        """
        return self._database.write(lambda c: _add(c, study, branch))


def _next_number(connection: Connection, study: AnyRow) -> int:
    last = connection.scalar(sa.select(sa.func.max(Trial.number)).where(Trial.study_id == study.id))
    return max(int(study.target), 0 if last is None else int(last) + 1)


def _begun_from(connection: Connection, study: AnyRow, number: int) -> tuple[int, ...]:
    parent = sa.select(Trial.id).where(Trial.study_id == study.id, Trial.number == number)
    return tuple(
        connection.scalars(
            sa.select(Trial.number)
            .join(Branch, Branch.trial_id == Trial.id)
            .where(Branch.parent_id == parent.scalar_subquery())
            .order_by(Trial.number)
        )
    )


def _add(connection: Connection, name: str, branch: NewBranch) -> bool:
    study = lock_study(connection, name)
    if branch.number != _next_number(connection, study):
        return False
    insert_branch(connection, study, branch)
    return True
