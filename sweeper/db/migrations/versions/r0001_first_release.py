"""The tables of the first release, as the models define them.

The first migration after it writes these tables out here, as they are then, before it changes the models.
"""

from alembic import op

from sweeper.db.tables import Base

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    Base.metadata.create_all(op.get_bind())
