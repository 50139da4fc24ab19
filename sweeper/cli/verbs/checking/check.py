"""``check``: whether a study keeps the promises, before it is run and without its database.

Exits with 4 where a promise does not hold, that is, where there is an error among the findings.
"""

from typing import Annotated

import typer

from sweeper.cli.options import AsJson, Debug
from sweeper.cli.output import print_json, print_table, say_beginning
from sweeper.errors import Interrupted

DOES_NOT_HOLD = 4
"""The exit code where a promise does not hold."""


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:NAME]",
            help="A Python file or module, and the study's variable if it holds several.",
            show_default=False,
        ),
    ],
    *,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Trials side by side, for the estimates. (default: one per core; "
            "env: SWEEPER_WORKERS)",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Check a study before it runs: independence, exactness, limits of the promises, cost."""
    say_beginning(source)
    from sweeper.preflight.checking import check_study
    from sweeper.settings import load_settings

    settings = load_settings(workers=workers)
    try:
        report = check_study(source, workers=settings.workers, tell=_tell)
    except KeyboardInterrupt:
        msg = "the check was stopped; its trials and files were deleted"
        raise Interrupted(msg) from None
    if as_json:
        print_json(report.to_json())
    else:
        from sweeper.report.findings import check_page

        run = settings.command("run", source, workers=workers)
        commands = (run,) if report.holds else ()
        print_table(check_page(report, commands))
    if not report.holds:
        raise typer.Exit(1 if report.lacks_packages else DOES_NOT_HOLD)


def _tell(doing: str) -> None:
    """Progress goes to standard error."""
    typer.echo(f"{doing} ...", err=True)
