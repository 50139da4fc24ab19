"""``db``: what is done to the database itself."""

import typer

from sweeper.cli.options import Debug, RunsDir, Storage
from sweeper.cli.reading import read_settings
from sweeper.cli.verbs import VerbGroup

__all__ = ["GROUP"]


def upgrade(*, storage: Storage = None, runs_dir: RunsDir = None, _debug: Debug = False) -> None:
    """Bring the tables of an older version's database to this one's. Copy the database before."""
    from sweeper.storage.database import Database

    before, after = Database.upgrade(read_settings(storage, runs_dir).storage)
    if before == after:
        typer.echo(f"nothing to do: the tables are at revision {after}")
    else:
        typer.echo(f"upgraded from revision {before} to {after}")


GROUP = VerbGroup(title="Database", order=50, verbs=(upgrade,), under="db")
