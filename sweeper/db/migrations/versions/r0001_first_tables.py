"""Studies, trials, attempts, epochs and checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "sweeper_studies",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("optuna_study_id", sa.Integer, nullable=False, unique=True),
        sa.Column("definition", sa.Text, nullable=False, comment="JSON"),
        sa.Column("objective", sa.Text, nullable=False),
        sa.Column("direction", sa.String(8), nullable=False),
        sa.Column("target", sa.Integer, nullable=False),
        sa.Column("window", sa.Integer),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, comment="JSON: where the definition came from"),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("sweeper_version", sa.String(64), nullable=False),
    )
    op.create_table(
        "sweeper_trials",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("optuna_trial_id", sa.Integer, nullable=False, unique=True),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column(
            "current_attempt",
            sa.Integer,
            nullable=False,
            comment="the number of the latest attempt",
        ),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("result", sa.String(16)),
        sa.UniqueConstraint("study_id", "number", name="sweeper_trials_number"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sweeper_attempts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("claim_key", sa.String(32), nullable=False, unique=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(255), nullable=False),
        sa.Column("worker_pid", sa.Integer, nullable=False),
        sa.Column("worker_started", sa.Float(53), nullable=False),
        sa.Column("pid", sa.Integer),
        sa.Column("isolation", sa.String(16)),
        sa.Column("lease_until", sa.DateTime),
        sa.Column("started_at", sa.DateTime, nullable=False),
        sa.Column("ended_at", sa.DateTime),
        sa.Column("outcome", sa.String(16)),
        sa.Column("start_step", sa.BigInteger),
        sa.Column("end_step", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("fingerprint", sa.Text, comment="JSON"),
        sa.UniqueConstraint("trial_id", "number", name="sweeper_attempts_number"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "sweeper_attempts_one_open",
        "sweeper_attempts",
        ["trial_id"],
        unique=True,
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "sweeper_epochs",
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("metrics", sa.Text, nullable=False, comment="JSON with NaN and Infinity"),
    )
    op.create_table(
        "sweeper_checkpoints",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("sweeper_trials.id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.UniqueConstraint("trial_id", "path", name="sweeper_checkpoints_path"),
    )
    op.create_table(
        "sweeper_definition_changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, sa.ForeignKey("sweeper_studies.id"), nullable=False),
        sa.Column("changed_at", sa.DateTime, nullable=False),
        sa.Column("begun", sa.Integer, nullable=False, comment="trials begun before the change"),
        sa.Column("changes", sa.Text, nullable=False, comment="JSON: a sentence each"),
    )
