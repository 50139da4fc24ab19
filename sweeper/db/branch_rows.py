"""Rows of branches: the parent's checkpoint and the changes of each.

The branch's row has a copy of the parent's data, because a parent can start again under another
definition, and its checkpoints are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, ForeignKey, String, Text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapped, aliased, mapped_column

from sweeper.db.tables import AnyRow, Base, Trial
from sweeper.records.ancestry import ParentRecord
from sweeper.search.spaces import from_text


class Branch(Base):
    """A trial that begins at a checkpoint of another. Its seed is in its trial's row.

    ``counted`` is whether it counts towards the study's total, as members of a population do.
    """

    __tablename__ = "sweeper_branches"

    trial_id: Mapped[int] = mapped_column(
        ForeignKey(Trial.id), primary_key=True, autoincrement=False
    )
    parent_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    seeded_as: Mapped[int]
    epochs: Mapped[int]
    drawn: Mapped[str] = mapped_column(Text, comment="JSON: the parent's values and distributions")
    changed: Mapped[str] = mapped_column(Text, comment="JSON")
    outside: Mapped[str] = mapped_column(Text, comment="JSON: names of parameters")
    counted: Mapped[bool] = mapped_column(Boolean)


def is_beside() -> sa.Exists:
    """Return the condition that the trial of the enclosing query is a branch, which the total does not count."""
    return (
        sa.exists()
        .where(Branch.trial_id == Trial.id, Branch.counted.is_(False))
        .correlate(Trial.__table__)
    )


def last_and_beside(connection: Connection, study_id: int) -> tuple[AnyRow | None, dict[int, int]]:
    """Return the study's last trial that its total counts, and the branches that it does not.

    The trial is a row of its number and of Optuna's id; the branches are Optuna's ids by number.
    """
    own = aliased(Trial)
    beside = sa.exists().where(Branch.trial_id == own.id, Branch.counted.is_(False))
    counted = sa.select(sa.func.max(own.number)).where(own.study_id == study_id, ~beside)
    rows = connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id, is_beside().label("beside")).where(
            Trial.study_id == study_id,
            sa.or_(is_beside(), Trial.number == counted.scalar_subquery()),
        )
    ).all()
    last = next((row for row in rows if not row.beside), None)
    return last, {row.number: row.optuna_trial_id for row in rows if row.beside}


def parents_of(
    connection: Connection, trial_ids: sa.Select[int] | Collection[int]
) -> dict[int, ParentRecord]:
    """Return the parents' checkpoints of the branches among the trials, by the trial's key."""
    rows = connection.execute(
        sa.select(Branch, Trial.number, Trial.current_attempt)
        .join(Trial, Trial.id == Branch.parent_id)
        .where(Branch.trial_id.in_(trial_ids))
    )
    found = {}
    for row in rows:
        drawn = json.loads(row.drawn)
        found[row.trial_id] = ParentRecord(
            number=row.number,
            step=row.step,
            digest=row.digest,
            epoch=row.epoch,
            seeded_as=row.seeded_as,
            epochs=row.epochs,
            changed=json.loads(row.changed),
            outside=tuple(json.loads(row.outside)),
            attempts=row.current_attempt,
            params={name: value for name, (value, _) in drawn.items()},
            distributions={name: from_text(text) for name, (_, text) in drawn.items()},
        )
    return found
