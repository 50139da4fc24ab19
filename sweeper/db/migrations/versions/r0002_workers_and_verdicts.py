"""Workers with their slots, requests to stop, verdicts, and claims at an even cost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables and columns."""
    op.add_column("sweeper_studies", sa.Column("stop_requested", sa.String(8)))
    for name in ("memory_faults", "errors"):
        op.add_column(
            "sweeper_trials", sa.Column(name, sa.Integer, nullable=False, server_default="0")
        )
    op.add_column("sweeper_attempts", sa.Column("worker_key", sa.String(32)))
    op.add_column("sweeper_attempts", sa.Column("devices", sa.Text))
    op.create_index(
        "sweeper_trials_unfinished",
        "sweeper_trials",
        ["study_id", "number"],
        sqlite_where=sa.text("result IS NULL"),
        postgresql_where=sa.text("result IS NULL"),
    )
    op.create_table(
        "sweeper_parameters",
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), primary_key=True),
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False, comment="of the first trial that has it"),
        sa.Column("distribution", sa.Text, nullable=False, comment="JSON, as Optuna writes it"),
    )
    op.create_table(
        "sweeper_workers",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), nullable=False),
        sa.Column("key", sa.String(32), nullable=False, unique=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started", sa.Float(53), nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("joined_at", sa.DateTime, nullable=False),
        sa.Column("lease_until", sa.DateTime, nullable=False),
        sa.Column("present_since", sa.DateTime, nullable=False),
        sa.Column("left_at", sa.DateTime),
        sa.Column("error", sa.Text),
    )
    op.create_table(
        "sweeper_verdicts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("checked_at", sa.DateTime, nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("epoch", sa.Integer),
        sa.Column("step", sa.BigInteger),
        sa.Column("variable", sa.Text),
        sa.Column("report", sa.Text, nullable=False, comment="JSON"),
    )
    op.create_index("sweeper_verdicts_of_trial", "sweeper_verdicts", ["trial_id"])
