"""The page of the database's tables, made from their metadata."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from column_meanings import MEANINGS
from sqlalchemy import inspect as inspected

from sweeper.db import tables
from sweeper.db.tables import Base

_HEAD = """# The database

<!-- Made from `sweeper/db/tables.py`. -->

One database holds Optuna's tables, as Optuna writes them (studies, trials, parameters, values,
intermediate values), and these beside them, for what Optuna has no place for. Optuna's migrations
and ours know nothing of one another: ours are in `sweeper_alembic_version`.

They may be read by anything that reads SQL; [how to](../how-to/read-results.md#with-sql) has queries. They
are written by sweeper alone: what another program changes there, the promises do not cover. Times
are the database's clock, in UTC. Names and meanings may change between versions; what `--json` prints
([fields](json.md)) is what to build on.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *(line for model in models() for line in _table(model))])


def models() -> list[Any]:
    """Return every table's class, in the order of the module."""
    found = vars(tables).values()
    return [m for m in found if isinstance(m, type) and issubclass(m, Base) and m is not Base]


def _table(model: Any) -> Iterator[str]:
    table = inspected(model).local_table
    yield f"\n## {table.name}\n"
    yield inspect.getdoc(model).replace("``", "`") + "\n"
    yield "| Column | Type | Null | Meaning |"
    yield "|---|---|---|---|"
    for column in table.columns:
        meaning = MEANINGS.get(table.name, {}).get(column.name)
        keys = [
            *([meaning] if meaning else []),
            *(["primary key"] if column.primary_key else []),
            *(f"`{key.column.table.name}.{key.column.name}`" for key in column.foreign_keys),
            *(["unique"] if column.unique else []),
            *(["JSON"] if (column.comment or "").startswith("JSON") else []),
        ]
        null = "yes" if column.nullable else ""
        yield f"| `{column.name}` | {column.type} | {null} | {'; '.join(keys)} |"
