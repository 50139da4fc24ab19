"""``dashboard``: optuna-dashboard for the database, in a browser."""

from typing import Annotated

import typer

from sweeper.cli.options import Debug, RunsDir, Storage
from sweeper.cli.reading import read_settings
from sweeper.cli.verbs import VerbGroup

__all__ = ["GROUP"]


def dashboard(
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8080,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Serve optuna-dashboard for the database until Ctrl-C; its URL is printed."""
    from sweeper.report.dashboard import is_loopback, open_dashboard

    settings = read_settings(storage, runs_dir)
    server = open_dashboard(settings.storage, host, port)
    if not is_loopback(host):
        typer.echo(
            f"warning: the dashboard has no login, and whoever reaches {host} can read the "
            "studies and edit their notes; 127.0.0.1 and an SSH tunnel keep it to you",
            err=True,
        )
    server.serve(_announce)


def _announce(url: str) -> None:
    typer.echo("Ctrl-C stops it.", err=True)
    typer.echo(url)


GROUP = VerbGroup(title="Read", order=30, verbs=(dashboard,))
