"""Run the migrations on the connection that `sweeper.storage.schema` hands over.

The caller owns the transaction: a migration and its entry in the version table are kept together
or not at all.
"""

from __future__ import annotations

from alembic import context

from sweeper.storage.schema import VERSION_TABLE
from sweeper.storage.tables import Base
from sweeper.storage.trial_tables import branches as _branches  # noqa: F401 - in Base's metadata
from sweeper.storage.trial_tables import lengths as _lengths  # noqa: F401
from sweeper.storage.trial_tables import rungs as _rungs  # noqa: F401

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
