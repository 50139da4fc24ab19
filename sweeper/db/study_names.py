"""Names of studies and numbers of trials, for shell completion.

This module must not import Optuna, directly or indirectly, because completion has to be fast.
"""

from __future__ import annotations

import sqlalchemy as sa

from sweeper.db.database import Database
from sweeper.db.tables import Study, Trial


def study_names(database: Database) -> tuple[str, ...]:
    """Return the names of all studies, the oldest first."""
    return tuple(database.read(lambda c: c.scalars(sa.select(Study.name).order_by(Study.id)).all()))


def trial_numbers(database: Database, study: str) -> tuple[int, ...]:
    """Return the numbers of a study's trials that have begun; none if there is no such study."""
    found = (
        sa.select(Trial.number)
        .join(Study, Study.id == Trial.study_id)
        .where(Study.name == study)
        .order_by(Trial.number)
    )
    return tuple(database.read(lambda c: c.scalars(found).all()))
