"""Budgets: trials that pause at rungs, and the decisions at rungs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column and the tables."""
    op.add_column(
        "sweeper_trials",
        sa.Column("paused", sa.String(8), comment='"waits" at a rung, or "promoted"'),
    )
    op.create_table(
        "sweeper_rungs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), nullable=False),
        sa.Column("bracket", sa.Integer, nullable=False),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("epochs", sa.Integer, nullable=False),
        sa.Column("decided_at", sa.DateTime, nullable=False),
        sa.UniqueConstraint("study_id", "first", "epochs", name="sweeper_rungs_of_a_round"),
    )
    op.create_table(
        "sweeper_rung_members",
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), primary_key=True),
        sa.Column("epochs", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("value", sa.Float(53)),
        sa.Column("digest", sa.String(64)),
        sa.Column("rung_id", sa.Integer, sa.ForeignKey("sweeper_rungs.id")),
        sa.Column("promoted", sa.Boolean),
    )
    op.create_table(
        "sweeper_round_starts",
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    )
