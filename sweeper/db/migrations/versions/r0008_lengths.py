"""Results of trials at each length, and their current number of epochs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table, and the numbers of epochs."""
    op.create_table(
        "sweeper_lengths",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("epochs", sa.Integer, nullable=False),
        sa.Column("trained", sa.Integer, nullable=False),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column(
            "objectives",
            sa.Text,
            nullable=False,
            comment="JSON with Infinity: the values, in order",
        ),
        sa.Column("digest", sa.String(64)),
        sa.Column("ended_at", sa.DateTime),
        sa.UniqueConstraint("trial_id", "epochs", name="sweeper_lengths_of"),
    )
    op.add_column(
        "sweeper_studies",
        sa.Column("epochs", sa.Integer, comment="of new trials, once raised"),
    )
    op.add_column(
        "sweeper_trials",
        sa.Column("epochs", sa.Integer, comment="where it is not the definition's number"),
    )
