"""Transactions cut off in the middle, and transactions run again because nobody answered."""

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sweeper.db.database import Database

SCHEMAS = {}


def every_row(database):
    dialect = database._engine.dialect.name
    if dialect not in SCHEMAS:
        SCHEMAS[dialect] = sa.MetaData()
        SCHEMAS[dialect].reflect(database._engine)
    metadata = SCHEMAS[dialect]

    def rows(connection):
        return {
            table.name: sorted(
                (tuple(row) for row in connection.execute(sa.select(table))), key=repr
            )
            for table in metadata.sorted_tables
        }

    return database.read(rows)


class CutOffError(Exception):
    """Stands for the process's death between two statements."""


@contextlib.contextmanager
def cut_off_after(database, statements):
    run = []

    def count(_c, _cursor, statement, *_rest):
        run.append(statement)
        if len(run) == statements:
            raise CutOffError

    event.listen(database._engine, "after_cursor_execute", count)
    try:
        yield run
    finally:
        event.remove(database._engine, "after_cursor_execute", count)


def partial_changes(database, change):
    """Cut ``change`` off after each of its statements.

    Returns how many statements there were, or were tried, and the first that left something.
    """
    rows = every_row(database)
    for statements in range(1, 50):
        try:
            with cut_off_after(database, statements):
                change()
        except CutOffError:
            if every_row(database) != rows:
                return statements, [statements]
        else:
            assert every_row(database) != rows
            return statements - 1, []
    pytest.fail("the change never ends")


def run_twice(monkeypatch, repository, change):
    """Run ``change`` with every transaction made twice; how many rows there were after each."""
    sizes = []

    def twice(self, engine, work):
        for _ in range(2):
            with engine.begin() as connection:
                result = work(connection)
            with monkeypatch.context() as patched:
                patched.setattr(Database, "_transact", once)
                sizes.append({name: len(rows) for name, rows in every_row(self).items()})
        return result

    once = Database._transact
    with monkeypatch.context() as patched:
        patched.setattr(Database, "_transact", twice)
        change()
    return sizes
