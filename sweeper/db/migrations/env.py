"""Run the migrations on the connection that `sweeper.db.schema` hands over.

The caller owns the transaction: a migration and its entry in the version table are kept together
or not at all.
"""

from __future__ import annotations

from alembic import context

from sweeper.db import branch_rows as _branches  # noqa: F401 - in Base's metadata
from sweeper.db.schema import VERSION_TABLE
from sweeper.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
