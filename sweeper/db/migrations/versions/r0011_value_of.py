"""The epoch, or the end, of which a trial's value is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column."""
    op.add_column(
        "sweeper_trials",
        sa.Column(
            "value_of", sa.String(32), comment="what the value is of, if not of the last epoch"
        ),
    )
