"""``dashboard``: optuna-dashboard and our own pages for the database, in a browser."""

from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import Debug, RunsDir, Storage
from sweeper.cli.reading import read_settings
from sweeper.cli.verbs.reading.read import next_commands

if TYPE_CHECKING:
    from sweeper.results import TrialRecord
    from sweeper.settings import Settings


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
    """Serve optuna-dashboard and sweeper's own pages for the database until Ctrl-C.

    Its URL is printed; sweeper's pages are below it, at sweeper/.
    """
    from sweeper.report.dashboard.advice import Advice
    from sweeper.report.dashboard.fence import is_loopback
    from sweeper.report.dashboard.server import open_dashboard

    settings = read_settings(storage, runs_dir)
    server = open_dashboard(
        settings.storage,
        host,
        port,
        runs_dir=settings.runs_dir,
        advice=Advice(
            lambda status: next_commands(status, settings),
            lambda trial: trial_commands(trial, settings),
        ),
        notice=lambda message: typer.echo(f"warning: {message}", err=True),
    )
    if not is_loopback(host):
        typer.echo(
            f"warning: the dashboard has no login, and everyone who reaches {host} can read the "
            "studies and edit their notes; 127.0.0.1 and an SSH tunnel keep it to you",
            err=True,
        )
    server.serve(_announce)


def _announce(url: str) -> None:
    typer.echo(f"Attempts, checkpoints and verification: {url}sweeper/", err=True)
    typer.echo("Ctrl-C stops it.", err=True)
    typer.echo(url)


def trial_commands(trial: "TrialRecord", settings: "Settings") -> list[str]:
    """Return what is worth typing after seeing ``trial``, exactly as it must be typed."""
    number = str(trial.number)
    commands = [settings.command("logs", trial.study, number)]
    if trial.state == "failed":
        commands.append(settings.command("retry", trial.study, number))
    if trial.state == "interrupted":
        commands.append(settings.command("resume", trial.study))
    if trial.state == "complete":
        commands.append(settings.command("verify", trial.study, "--trial", number))
    return commands
