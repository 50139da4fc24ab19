"""Trials that begin at a checkpoint of another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table."""
    trials = "sweeper_trials.id"
    op.create_table(
        "sweeper_branches",
        sa.Column(
            "trial_id", sa.Integer, sa.ForeignKey(trials), primary_key=True, autoincrement=False
        ),
        sa.Column("parent_id", sa.Integer, sa.ForeignKey(trials), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("seeded_as", sa.Integer, nullable=False),
        sa.Column("epochs", sa.Integer, nullable=False),
        sa.Column(
            "drawn",
            sa.Text,
            nullable=False,
            comment="JSON: the parent's values and distributions",
        ),
        sa.Column("changed", sa.Text, nullable=False, comment="JSON"),
        sa.Column("outside", sa.Text, nullable=False, comment="JSON: names of parameters"),
        sa.Column("counted", sa.Boolean, nullable=False),
    )
