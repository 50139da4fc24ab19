"""Run the migrations on the connection that `sweeper.storage.schema` hands over.

The caller owns the transaction: a migration and its entry in the version table are kept together
or not at all.
"""

from __future__ import annotations

from alembic import context

from sweeper.storage.schema import VERSION_TABLE
from sweeper.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
