"""Evaluations of checkpoints on held-out data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "sweeper_evaluations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("data", sa.Text, nullable=False, comment="what the data are called"),
        sa.Column("data_digest", sa.String(32), nullable=False),
        sa.Column("metrics", sa.Text, nullable=False, comment="JSON with NaN and Infinity"),
        sa.Column("evaluated_at", sa.DateTime, nullable=False),
        sa.UniqueConstraint(
            "trial_id", "step", "digest", "data", "data_digest", name="sweeper_evaluations_of"
        ),
    )
