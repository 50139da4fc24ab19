"""The options and arguments that several verbs share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.verbs import Invocation
from sweeper.errors import DefinitionError
from sweeper.paths import check_name

__all__ = ["AsJson", "Debug", "RunsDir", "Storage", "StudyName", "TrialNumber"]


def _study_name(text: str) -> str:
    try:
        return check_name(text)
    except DefinitionError as error:
        raise typer.BadParameter(str(error)) from None


def _set_debug(context: typer.Context, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", parser=_study_name, help="The study's name.")
]
TrialNumber = Annotated[
    int, typer.Argument(metavar="N", min=0, help="The trial's number, from 0.", show_default=False)
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="The database. (default: sqlite:///runs/sweeper.db; env: SWEEPER_STORAGE)",
        show_default=False,
    ),
]
RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        metavar="PATH",
        help="Where files are kept. (default: runs; env: SWEEPER_RUNS_DIR)",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", metavar="", help="Print one JSON value (NaN and infinities as null)."),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Print the traceback of an unexpected error. (env: SWEEPER_DEBUG)",
        metavar="",
        callback=_set_debug,
    ),
]
