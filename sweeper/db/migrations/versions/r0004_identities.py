"""Identities: which study a directory and a checkpoint are of, and under which definition."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Give every study an identity, and store the replaced fingerprint of changed definitions."""
    op.add_column(
        "sweeper_studies", sa.Column("identity", sa.String(32), nullable=False, server_default="")
    )
    op.add_column("sweeper_definition_changes", sa.Column("replaced", sa.String(32)))
    studies = sa.table("sweeper_studies", sa.column("id"), sa.column("identity"))
    connection = op.get_bind()
    for key in connection.scalars(sa.select(studies.c.id)).all():
        connection.execute(
            sa.update(studies).where(studies.c.id == key).values(identity=uuid.uuid4().hex)
        )
