"""``worker``: run trials of a study in a shared database on this machine."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import Debug, Flags, Grace, StudyName, expanded
from sweeper.cli.output import say_beginning
from sweeper.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from sweeper.execution.options import HostSpec
    from sweeper.report.terminal.lines import Verbosity

DEFAULT_GRACE = 30.0


@dataclass(frozen=True, kw_only=True)
class _WorkerFlags(Flags):
    """Options of a worker: it has a deadline by default, and no trial runs inside its own process."""

    grace: Grace = DEFAULT_GRACE
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="auto|fork|spawn",
            help="How trial processes are started. (default: auto; env: SWEEPER_ISOLATION)",
            show_default=False,
        ),
    ] = None


@expanded(
    "grace fail_fast accept_inexact gpus trials_per_gpu gpu_memory isolation quiet verbose storage "
    "runs_dir checkpoints"
)
def worker(
    study: StudyName,
    *,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="N",
            min=1,
            help="Trials side by side. (default: one per core, or as many as fit on the GPUs)",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="FILE[:NAME]",
            help="The study's file on this machine, if it has moved.",
            show_default=False,
        ),
    ] = None,
    unless_stopped: Annotated[
        bool,
        typer.Option(
            "--unless-stopped",
            metavar="",
            help="Exit with code 0 at once if `sweeper stop` has stopped the study.",
        ),
    ] = False,
    flags: _WorkerFlags,
    ordered: Annotated[bool, typer.Option("--ordered", hidden=True)] = False,
    _debug: Debug = False,
) -> None:
    """Run trials of a study on this machine until the study is done."""
    if ordered:
        _run(_read_spec(study))
        return
    if flags.verbosity != "quiet":
        say_beginning(f"the study {study}")
    from sweeper.execution.options import HostSpec

    settings = replace(flags, workers=slots).settings()
    if settings.gpus is not None:
        from sweeper.execution.worker.gpus import find_gpus

        # Before it joins the study: one that cannot serve it leaves nothing there.
        find_gpus(settings.gpus)
    again = settings.command("worker", study, checkpoints=settings.checkpoints)
    wanted = settings.workers if slots is not None or settings.gpus is None else None
    spec = HostSpec(
        study,
        flags.worker_options(settings, wanted),
        source=source,
        unless_stopped=unless_stopped,
        resume_command=again,
    )
    _run(spec, again, flags.verbosity)


def _read_spec(study: str) -> "HostSpec":
    """Read from standard input the specification that a cluster run wrote for this host."""
    from sweeper.execution.cluster.placement import read_spec

    try:
        spec = read_spec(sys.stdin.read())
    except ValueError as error:
        msg = f"--ordered is for `sweeper run --engine`, which writes an order here: {error}"
        raise UsageError(msg) from error
    if spec.study != study:
        msg = f"the order is for study {spec.study!r}, and {study!r} was named"
        raise UsageError(msg)
    return spec


def _run(spec: "HostSpec", again: str = "", verbosity: "Verbosity" = "normal") -> None:
    from sweeper.execution.cluster.host import run_worker
    from sweeper.report.terminal.listener import progress_listener

    try:
        with progress_listener(sys.stderr, verbosity) as progress:
            status = run_worker(spec, progress)
    except (Interrupted, KeyboardInterrupt) as interruption:
        typer.echo(f"interrupted: {interruption}" if str(interruption) else "interrupted", err=True)
        if again:
            typer.echo("serve it again with:", err=True)
            typer.echo(f"  {again}", err=True)
        raise typer.Exit(Interrupted.exit_code) from None
    typer.echo(
        f"study {status.study}: {status.finished} of {status.target} trials finished, "
        f"{status.failed} of them failed",
        err=True,
    )
