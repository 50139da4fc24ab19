"""Copy of a whole database in another one.

A copy includes Optuna's tables. Every row keeps its key, so tokens and Optuna's ids remain valid. The
copy is read back and compared before it is committed, and the source is read again at the end, to
notice a worker that was started meanwhile. So the copy is complete and equal, or nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
import xxhash
from sqlalchemy.engine import Connection
from sqlalchemy.exc import StatementError

from sweeper.db import optuna_rows
from sweeper.db.database import Database
from sweeper.db.leases import is_lost, open_attempts
from sweeper.db.schema import unhurried
from sweeper.db.tables import AnyRow, Attempt, Base, Study, Trial
from sweeper.errors import StorageError
from sweeper.support.shown import shown_url

_BATCH = 1000
_VERSIONS = ("version_info", "alembic_version")


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table's content.

    Attributes:
        digest: XXH3-128 (hex) of its rows in the order of their keys.
    """

    name: str
    rows: int
    digest: str


def copied_tables() -> tuple[sa.Table, ...]:
    """Return every table to copy, each after the tables that it refers to."""
    # Private, and the only list of Optuna's tables.
    from optuna.storages._rdb import models

    optuna_tables = models.BaseModel.metadata.sorted_tables
    return tuple(
        table
        for table in (*optuna_tables, *Base.metadata.sorted_tables)
        if table.name not in _VERSIONS
    )


def copy_database(source: Database, target: Database) -> tuple[CopiedTable, ...]:
    """Copy all of ``source`` into ``target``, which has empty tables.

    Returns:
        The copied tables.
    """
    source.read(lambda c: _check_at_rest(c, source))
    target.read(lambda c: _check_empty(c, target))
    return source.read(lambda c: target.write(lambda into: _copy(c, into, source, target)))


def _copy(
    source: Connection, target: Connection, source_database: Database, target_database: Database
) -> tuple[CopiedTable, ...]:
    for connection in (source, target):
        # Each connection is idle while the other is used.
        unhurried(connection)
    _check_empty(target, target_database)
    sent = _read(source, into=target)
    arrived = _read(target)
    differing = [s for s, a in zip(sent, arrived, strict=True) if s != a]
    if differing:
        raise StorageError(
            f"the copy of {', '.join(t.name for t in differing)} differs from the original, so "
            f"nothing was copied into {shown_url(target_database.url)}"
        )
    if source_database.read(_read) != sent:
        raise StorageError(
            f"{shown_url(source_database.url)} changed while it was copied, so nothing was "
            "copied; stop its workers (sweeper stop STUDY), then copy again"
        )
    _set_sequences(target)
    return sent


def _read(connection: Connection, *, into: Connection | None = None) -> tuple[CopiedTable, ...]:
    """Read every table, and write its rows ``into`` another database if there is one."""
    tables = []
    for table in copied_tables():
        digest = xxhash.xxh3_128()
        count = 0
        query = sa.select(table).order_by(*table.primary_key.columns)
        for rows in connection.execute(query.execution_options(yield_per=_BATCH)).partitions():
            # Python values are compared, because the two kinds of databases store times and enums differently.
            for row in rows:
                digest.update(repr(tuple(row)).encode("utf-8", "surrogatepass"))
            count += len(rows)
            if into is not None:
                _insert(into, table, rows)
        tables.append(CopiedTable(table.name, count, digest.hexdigest()))
    return tuple(tables)


def _insert(connection: Connection, table: sa.Table, rows: Sequence[AnyRow]) -> None:
    columns = [column.name for column in table.columns]
    try:
        connection.execute(sa.insert(table), [dict(zip(columns, row, strict=True)) for row in rows])
    except StatementError as error:
        if isinstance(error, sa.exc.OperationalError):
            raise
        reason = " ".join(str(error.orig).split())
        raise StorageError(
            f"a row of {table.name} cannot be stored in the other database: {reason}"
        ) from error


def _set_sequences(connection: Connection) -> None:
    """Set PostgreSQL's sequences to the largest keys; SQLite does this by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in copied_tables():
        keys = list(table.primary_key.columns)
        name = keys[0].name
        sequence = connection.scalar(sa.select(sa.func.pg_get_serial_sequence(table.name, name)))
        largest = connection.scalar(sa.select(sa.func.max(keys[0])))
        if sequence is not None and largest is not None:
            connection.execute(sa.select(sa.func.setval(sequence, largest)))


def _check_empty(connection: Connection, database: Database) -> None:
    names = optuna_rows.study_names(connection)
    names = names or tuple(connection.scalars(sa.select(Study.name)))
    if names:
        raise StorageError(
            f"{shown_url(database.url)} already contains studies "
            f"({', '.join(names[:5])}{' and more' * (len(names) > 5)}); copy into an empty "
            "database"
        )


def _check_at_rest(connection: Connection, database: Database) -> None:
    open_ones = connection.execute(
        open_attempts(Study.name).join(Study, Study.id == Trial.study_id).order_by(Attempt.id)
    )
    running = [
        f"trial {row.trial} of {row.name!r} on {row.host}" for row in open_ones if not is_lost(row)
    ]
    if running:
        raise StorageError(
            f"{shown_url(database.url)} cannot be copied while trials are running "
            f"({'; '.join(running[:5])}{' and more' * (len(running) > 5)}); "
            "stop them first: sweeper stop STUDY"
        )
