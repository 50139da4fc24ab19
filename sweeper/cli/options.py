"""The options and arguments that several verbs share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.verbs import Invocation
from sweeper.errors import DefinitionError
from sweeper.paths import check_name

__all__ = [
    "AcceptChanges",
    "AcceptInexact",
    "AsJson",
    "Checkpoints",
    "Debug",
    "FailFast",
    "GpuMemory",
    "Gpus",
    "Grace",
    "RunsDir",
    "Storage",
    "StudyName",
    "TrialNumber",
    "TrialsPerGpu",
]


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
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="PATH|URL",
        help="Where checkpoints go, as s3://bucket/prefix. "
        "(default: the runs directory; env: SWEEPER_CHECKPOINTS)",
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
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        min=0,
        help="After SIGTERM, how long trials may take to finish their step and checkpoint.",
    ),
]
FailFast = Annotated[
    bool,
    typer.Option("--fail-fast", metavar="", help="Stop with an error as soon as a trial fails."),
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        metavar="",
        help="Go on although definition or code has changed; trials before are ranked apart.",
    ),
]
AcceptInexact = Annotated[
    bool,
    typer.Option(
        "--accept-inexact",
        metavar="",
        help="Go on although an audit found a difference; every reading verb says so.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="all|0,1",
        help="Bind each slot to one of these GPUs. (env: SWEEPER_GPUS)",
        show_default=False,
    ),
]
TrialsPerGpu = Annotated[
    int | None,
    typer.Option(
        "--trials-per-gpu",
        metavar="N",
        min=1,
        help="Trials side by side on a GPU, its memory shared out. (default: 1)",
        show_default=False,
    ),
]
GpuMemory = Annotated[
    int | None,
    typer.Option(
        "--gpu-memory",
        metavar="MB",
        min=1,
        help="What one trial may use of its GPU. (default: a share of nine tenths)",
        show_default=False,
    ),
]
