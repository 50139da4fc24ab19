"""``rm``: remove a study for good, its rows and its files."""

from typing import Annotated

import typer

from sweeper.cli.options import Checkpoints, Debug, RunsDir, Storage, StudyName
from sweeper.cli.reading import read_settings
from sweeper.errors import UsageError
from sweeper.paths import RunPaths, absolute_location


def rm(
    study: StudyName,
    *,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Remove a study: its trials, their checkpoints and logs, and its rows in the database."""
    from sweeper.execution.removal import remove_study, study_directories
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    settings = read_settings(storage, runs_dir, checkpoints)
    paths = RunPaths(
        settings.runs_dir.absolute(), study, absolute_location(settings.checkpoints_location)
    )
    with Database.open(settings.storage, create=False) as database:
        repository = Repository(database)
        repository.removal.check_at_rest(study, "removed")
        trials = repository.trials(study)
        if not yes:
            typer.echo(f"study {study} has {len(trials)} trials, and its files are in", err=True)
            for directory in study_directories(repository, trials, paths):
                typer.echo(f"  {directory}", err=True)
            try:
                agreed = typer.confirm("remove all of it for good?", err=True)
            except typer.Abort:
                msg = "no answer, so nothing was removed; --yes removes without asking"
                raise UsageError(msg) from None
            if not agreed:
                typer.echo("nothing was removed")
                return
        directories = remove_study(repository, paths)
    typer.echo(f"removed study {study}: {len(trials)} trials")
    for directory in directories:
        typer.echo(f"  {directory}")
