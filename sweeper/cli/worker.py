"""``worker``: lend this machine's slots to a study in a shared database."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    AcceptInexact,
    Checkpoints,
    Debug,
    FailFast,
    GpuMemory,
    Gpus,
    Grace,
    RunsDir,
    Storage,
    StudyName,
    TrialsPerGpu,
)
from sweeper.cli.verbs import VerbGroup
from sweeper.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from sweeper.events import Listener
    from sweeper.execution.placed import HostOrder
    from sweeper.results import StudyStatus

__all__ = ["GROUP"]

DEFAULT_GRACE = 30.0


def worker(
    study: StudyName,
    *,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="N",
            min=1,
            help="Trials side by side. (default: one a core, or what the GPUs have room for)",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="FILE[:NAME]",
            help="The study's file on this machine, if it is not where it was defined.",
            show_default=False,
        ),
    ] = None,
    unless_stopped: Annotated[
        bool,
        typer.Option(
            "--unless-stopped",
            metavar="",
            help="Lend nothing to a study that `sweeper stop` has stopped, and end well.",
        ),
    ] = False,
    grace: Grace = DEFAULT_GRACE,
    fail_fast: FailFast = False,
    accept_inexact: AcceptInexact = False,
    gpus: Gpus = None,
    trials_per_gpu: TrialsPerGpu = None,
    gpu_memory: GpuMemory = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="auto|fork|spawn",
            help="How trial processes are made. (default: auto; env: SWEEPER_ISOLATION)",
            show_default=False,
        ),
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    ordered: Annotated[bool, typer.Option("--ordered", hidden=True)] = False,
    _debug: Debug = False,
) -> None:
    """Lend this machine's slots to a study until it is done."""
    if ordered:
        _lend_as_ordered(study)
        return
    from sweeper.execution.worker_host import WorkerRequest, lend
    from sweeper.report.live import progress_listener
    from sweeper.settings import command_line, load_settings

    settings = load_settings(
        storage=storage,
        runs_dir=runs_dir,
        workers=slots,
        isolation=isolation,
        gpus=gpus,
        trials_per_gpu=trials_per_gpu,
        checkpoints=checkpoints,
    )
    again = command_line(
        "worker",
        study,
        storage=settings.storage,
        runs_dir=settings.runs_dir,
        checkpoints=settings.checkpoints,
    )

    def run(listener: "Listener") -> "StudyStatus":
        request = WorkerRequest(
            study=study,
            slots=settings.workers if slots is not None or settings.gpus is None else None,
            storage=settings.storage,
            runs_dir=settings.runs_dir,
            listener=listener,
            isolation=settings.isolation,
            source=source,
            unless_stopped=unless_stopped,
            grace=grace,
            lease_seconds=settings.lease_seconds,
            gpus=settings.gpus,
            trials_per_gpu=settings.trials_per_gpu,
            gpu_memory=gpu_memory,
            fail_fast=fail_fast,
            resume_command=again,
            checkpoints=settings.checkpoints_place,
            accept_inexact=accept_inexact,
        )
        return lend(request)

    try:
        with progress_listener(sys.stderr) as progress:
            status = run(progress)
    except (Interrupted, KeyboardInterrupt) as interruption:
        typer.echo(f"interrupted: {interruption}" if str(interruption) else "interrupted", err=True)
        typer.echo("lend this machine again with:", err=True)
        typer.echo(f"  {again}", err=True)
        raise typer.Exit(Interrupted.exit_code) from None
    _say_done(status)


def _lend_as_ordered(study: str) -> None:
    """Be the host that a run on a cluster has placed here; its order is on standard input."""
    from sweeper.execution.placed import read_order
    from sweeper.execution.worker_host import lend_as_ordered
    from sweeper.report.live import progress_listener

    try:
        order: HostOrder = read_order(sys.stdin.read())
    except ValueError as error:
        msg = f"--ordered is for `sweeper run --engine`, which writes an order here: {error}"
        raise UsageError(msg) from error
    if order.study != study:
        msg = f"the order is for study {order.study!r}, and {study!r} was named"
        raise UsageError(msg)
    try:
        with progress_listener(sys.stderr) as progress:
            status = lend_as_ordered(order, progress)
    except (Interrupted, KeyboardInterrupt) as interruption:
        typer.echo(f"interrupted: {interruption}", err=True)
        raise typer.Exit(Interrupted.exit_code) from None
    _say_done(status)


def _say_done(status: "StudyStatus") -> None:
    typer.echo(
        f"study {status.study}: {status.finished} of {status.target} trials finished, "
        f"{status.failed} of them failed",
        err=True,
    )


GROUP = VerbGroup(title="Run", order=11, verbs=(worker,))
