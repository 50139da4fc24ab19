"""Audits: intervals between two checkpoints that are replayed and compared while a study runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table, and what a study and a trial know of it."""
    op.add_column("sweeper_studies", sa.Column("inexact_accepted_at", sa.DateTime))
    op.add_column("sweeper_trials", sa.Column("audited", sa.String(8)))
    op.create_table(
        "sweeper_audits",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("from_step", sa.BigInteger, nullable=False),
        sa.Column("to_step", sa.BigInteger, nullable=False),
        sa.Column("to_epoch", sa.Integer, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("from_path", sa.Text),
        sa.Column("to_path", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("worker_key", sa.String(32)),
        sa.Column("claim_key", sa.String(32)),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("outcome", sa.String(8)),
        sa.Column("seconds", sa.Float(53)),
        sa.Column("decided_at", sa.DateTime),
        sa.Column("report", sa.Text, comment="JSON"),
        sa.UniqueConstraint("trial_id", "from_step", "to_step", name="sweeper_audits_interval"),
    )
    op.create_index(
        "sweeper_audits_undecided",
        "sweeper_audits",
        ["trial_id"],
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
