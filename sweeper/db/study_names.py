"""Names of studies and trials, for callers that need nothing else.

It imports neither Optuna nor what reads its tables, so that a shell's completion does not wait.
"""

from __future__ import annotations

import sqlalchemy as sa

from sweeper.db.database import Database
from sweeper.db.tables import Study, Trial


def study_names(database: Database) -> tuple[str, ...]:
    """Return the names of all studies, the oldest first."""
    return tuple(database.read(lambda c: c.scalars(sa.select(Study.name).order_by(Study.id)).all()))


def trial_numbers(database: Database, study: str) -> tuple[int, ...]:
    """Return the numbers of a study's trials that have begun; none where there is no such study."""
    found = (
        sa.select(Trial.number)
        .join(Study, Study.id == Trial.study_id)
        .where(Study.name == study)
        .order_by(Trial.number)
    )
    return tuple(database.read(lambda c: c.scalars(found).all()))
