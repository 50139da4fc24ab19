"""Alembic's environment, which runs the migrations on the connection from `sweeper.db.schema`.

The caller owns the transaction, so a migration and its entry in the version table are committed
together or not at all.
"""

from alembic import context

from sweeper.db.schema import VERSION_TABLE
from sweeper.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
