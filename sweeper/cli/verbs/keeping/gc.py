"""``gc``: free the disk of what crashes left and retention rules no longer keep."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.completion import complete_study
from sweeper.cli.options import AsJson, Checkpoints, Debug, RunsDir, Storage
from sweeper.cli.output import print_json
from sweeper.cli.reading import read_settings
from sweeper.cli.study_words import study_name

if TYPE_CHECKING:
    from sweeper.collection import Garbage


def gc(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]...",
            parser=study_name,
            help="Names of studies. (default: all)",
            autocompletion=complete_study,
        ),
    ] = None,
    *,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            metavar="N",
            min=1,
            help="Keep the newest N checkpoints of finished trials, instead of the study's own rules.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be deleted, and delete nothing.", metavar=""
        ),
    ] = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Delete checkpoints that no rule keeps, and remains of crashes. Running trials keep everything."""
    from sweeper.checkpoints.policy import Keep
    from sweeper.collection import collect
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    settings = read_settings(storage, runs_dir, checkpoints)
    keep = None if keep_last is None else Keep(last=keep_last)
    with Database.open(settings.storage, create=False) as database:
        repository = Repository(database)
        garbage: list[Garbage] = []
        try:
            for study in studies or repository.study_names():
                collect(
                    repository,
                    study,
                    settings.runs_dir,
                    keep=keep,
                    dry_run=dry_run,
                    checkpoints=settings.checkpoints_location,
                    tell=garbage.append,
                )
        except BaseException:
            # What has gone is said, also where the next study ends with an error.
            if garbage:
                _report(garbage, dry_run=dry_run, as_json=as_json)
            raise
        _report(garbage, dry_run=dry_run, as_json=as_json)


def _report(garbage: "Sequence[Garbage]", *, dry_run: bool, as_json: bool) -> None:
    from sweeper.report.formats import size_text

    if as_json:
        print_json([item.to_json() for item in garbage])
        return
    for item in garbage:
        typer.echo(f"{item.why:<10}  {size_text(item.bytes):>9}  {item.path}")
    total = size_text(sum(item.bytes for item in garbage))
    typer.echo(f"{'would free' if dry_run else 'freed'} {total}")
