"""``db``: what is done to the database itself."""

from typing import Annotated

import typer

from sweeper.cli.options import Debug, RunsDir, Storage
from sweeper.cli.reading import read_settings


def upgrade(*, storage: Storage = None, runs_dir: RunsDir = None, _debug: Debug = False) -> None:
    """Upgrade the tables of an older version's database. Copy the database first."""
    from sweeper.storage.database import Database

    before, after = Database.upgrade(read_settings(storage, runs_dir).storage)
    if before == after:
        typer.echo(f"nothing to do: the tables are at revision {after}")
    else:
        typer.echo(f"upgraded from revision {before} to {after}")


def copy(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The database's URL.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The URL of an empty database.", show_default=False),
    ],
    *,
    _debug: Debug = False,
) -> None:
    """Copy every study into an empty database, such as from SQLite to PostgreSQL, and check the copy.

    Nothing may be running. Checkpoints stay where they are.
    """
    from sweeper.storage.copying import copy_database
    from sweeper.storage.database import Database
    from sweeper.support.shown import shown_url

    with (
        Database.open(source, create=False) as origin,
        Database.open(target, create=True) as destination,
    ):
        copied = copy_database(origin, destination)
    rows = {table.name: table.rows for table in copied}
    typer.echo(
        f"studies: {rows['sweeper_studies']}, trials: {rows['sweeper_trials']}; copied "
        f"{sum(rows.values())} rows in {len(rows)} tables; counts and digests agree"
    )
    typer.echo(f"use it with: export SWEEPER_STORAGE={shown_url(target)}", err=True)
