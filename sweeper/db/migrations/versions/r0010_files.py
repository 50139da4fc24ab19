"""Files that each attempt read and wrote outside of its trial's directory."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column."""
    op.add_column(
        "sweeper_attempts",
        sa.Column("files", sa.Text, comment="JSON: files read and written outside"),
    )
