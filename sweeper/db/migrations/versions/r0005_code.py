"""Code fingerprint of a study and of each attempt, and the attempt from which a trial starts over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns."""
    op.add_column(
        "sweeper_studies",
        sa.Column("code", sa.Text, comment="JSON: what the factories reach"),
    )
    op.add_column(
        "sweeper_studies",
        sa.Column("fingerprint", sa.String(32), comment="of definition and code"),
    )
    op.add_column(
        "sweeper_trials",
        sa.Column("anew_after", sa.Integer, nullable=False, server_default="0"),
    )
    op.add_column(
        "sweeper_attempts",
        sa.Column("definition", sa.String(32), comment="the study's fingerprint"),
    )
