"""``report``: a study in one HTML file that can be mailed, and its pictures as PNG files."""

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import Debug, RunsDir, Storage, StudyName
from sweeper.cli.reading import PATIENCE, read_settings


def report(
    study: StudyName,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE.html",
            help="The file. (default: STUDY-report.html)",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            help="Show another study with the same objective beside it.",
            show_default=False,
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png",
            metavar="DIR",
            help="Also write each figure as PNG to this directory; needs Chrome or Chromium.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Replace a file that is not a report.")
    ] = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Write a study's report: one HTML file with figures; it needs no network."""
    from sweeper.report.pages.report import ReportRequest, make_report

    written = make_report(
        ReportRequest(
            study=study,
            settings=read_settings(storage, runs_dir),
            output=output,
            compare=compare,
            png=png,
            force=force,
            patience=PATIENCE,
        )
    )
    for path in (written.page, *written.pictures):
        typer.echo(path)
