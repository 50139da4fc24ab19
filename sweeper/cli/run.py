"""``run`` and ``resume``: start a sweep or go on with one, and say how it ended.

A run that ends with failed trials exits with 3, one that was interrupted with 130 and the exact
command that goes on with it. Standard output holds the summary alone.
"""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    AcceptChanges,
    AcceptInexact,
    AsJson,
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
from sweeper.cli.output import print_json, print_table
from sweeper.cli.read import next_commands
from sweeper.cli.verbs import VerbGroup
from sweeper.errors import Interrupted
from sweeper.events import Event, Listener, StudyOpened

if TYPE_CHECKING:
    from sweeper.results import StudyResults
    from sweeper.settings import Settings

__all__ = ["FAILED_TRIALS", "GROUP"]

FAILED_TRIALS = 3
"""The exit code of a run that was done, but in which trials failed."""

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Trials side by side. (default: one a core; env: SWEEPER_WORKERS)",
        show_default=False,
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        min=1,
        help="The total of trials, in place of the study's own.",
        show_default=False,
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="local|dask|ray",
        help="Where workers run. (default: local; env: SWEEPER_ENGINE)",
        show_default=False,
    ),
]
EngineAddress = Annotated[
    str | None,
    typer.Option(
        "--engine-address",
        metavar="URL",
        help="The cluster. (default: one on this machine; env: SWEEPER_ENGINE_ADDRESS)",
        show_default=False,
    ),
]
IsolationName = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        metavar="auto|fork|spawn|inline",
        help="How trial processes are made. (default: auto; env: SWEEPER_ISOLATION)",
        show_default=False,
    ),
]


def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:NAME]",
            help="A Python file or module, and the study's variable if it holds several.",
            show_default=False,
        ),
    ],
    *,
    workers: Workers = None,
    trials: Trials = None,
    engine: EngineName = None,
    engine_address: EngineAddress = None,
    gpus: Gpus = None,
    trials_per_gpu: TrialsPerGpu = None,
    gpu_memory: GpuMemory = None,
    fail_fast: FailFast = False,
    grace: Grace = None,
    isolation: IsolationName = None,
    accept_inexact: AcceptInexact = False,
    accept_changes: AcceptChanges = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            metavar="",
            help="Begin a new study; the one of this name is kept as NAME~1.",
        ),
    ] = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Run a study to its total; run again, it goes on where it was."""
    from sweeper.settings import load_settings

    settings = load_settings(
        storage=storage,
        runs_dir=runs_dir,
        workers=workers,
        engine=engine,
        isolation=isolation,
        engine_address=engine_address,
        gpus=gpus,
        trials_per_gpu=trials_per_gpu,
        checkpoints=checkpoints,
    )
    how = _How(grace, gpu_memory, fail_fast=fail_fast, accept_inexact=accept_inexact)
    target = _Target(source, None, workers, trials, accept_changes=accept_changes, fresh=fresh)
    _sweep(target, settings, how, as_json=as_json)


def resume(
    study: StudyName,
    *,
    workers: Workers = None,
    trials: Trials = None,
    engine: EngineName = None,
    engine_address: EngineAddress = None,
    gpus: Gpus = None,
    trials_per_gpu: TrialsPerGpu = None,
    gpu_memory: GpuMemory = None,
    fail_fast: FailFast = False,
    grace: Grace = None,
    isolation: IsolationName = None,
    accept_inexact: AcceptInexact = False,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Go on with a study: interrupted trials first, then the rest."""
    from sweeper.settings import load_settings

    settings = load_settings(
        storage=storage,
        runs_dir=runs_dir,
        workers=workers,
        engine=engine,
        isolation=isolation,
        engine_address=engine_address,
        gpus=gpus,
        trials_per_gpu=trials_per_gpu,
        checkpoints=checkpoints,
    )
    how = _How(grace, gpu_memory, fail_fast=fail_fast, accept_inexact=accept_inexact)
    target = _Target(None, study, workers, trials, accept_changes=accept_changes)
    _sweep(target, settings, how, as_json=as_json)


@dataclass(frozen=True)
class _Target:
    """What to sweep, as it was typed: a source or a stored study, and what goes with it."""

    source: str | None
    study: str | None
    workers: int | None
    trials: int | None
    accept_changes: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class _How:
    """What holds for this one command, and is not in the command to go on with."""

    grace: float | None
    gpu_memory: int | None
    fail_fast: bool
    accept_inexact: bool


class _WithResumeCommand:
    """A listener that passes every event on, with the resume command once the study is known.

    Only here is it known both how the study is called and what was typed to get at it.
    """

    def __init__(self, listener: Listener, target: _Target, settings: "Settings") -> None:
        self._listener = listener
        self._target = target
        self._settings = settings
        self.study = target.study

    def __call__(self, event: Event) -> None:
        if isinstance(event, StudyOpened):
            self.study = event.study
            command = _command_to_go_on(self._target, self.study, self._settings)
            event = replace(event, resume_command=command)
        self._listener(event)


def _sweep(target: _Target, settings: "Settings", how: _How, *, as_json: bool) -> None:
    heard = target.study
    try:
        from sweeper.execution.sweep import SweepRequest, run_sweep
        from sweeper.report.live import progress_listener

        with progress_listener(sys.stderr) as progress:
            listener = _WithResumeCommand(progress, target, settings)
            try:
                results = run_sweep(
                    SweepRequest(
                        source=target.source,
                        study=target.study,
                        workers=settings.workers,
                        trials=target.trials,
                        engine=settings.engine,
                        isolation=settings.isolation,
                        storage=settings.storage,
                        runs_dir=settings.runs_dir,
                        listener=listener,
                        accept_changes=target.accept_changes,
                        engine_address=settings.engine_address,
                        lease_seconds=settings.lease_seconds,
                        gpus=settings.gpus,
                        trials_per_gpu=settings.trials_per_gpu,
                        gpu_memory=how.gpu_memory,
                        fail_fast=how.fail_fast,
                        grace=how.grace,
                        checkpoints=settings.checkpoints_place,
                        accept_inexact=how.accept_inexact,
                        fresh=target.fresh,
                    )
                )
            finally:
                heard = listener.study
    except (Interrupted, KeyboardInterrupt) as interruption:
        typer.echo(f"interrupted: {interruption}" if str(interruption) else "interrupted", err=True)
        typer.echo("resume with:", err=True)
        typer.echo(f"  {_command_to_go_on(target, heard, settings)}", err=True)
        raise typer.Exit(Interrupted.exit_code) from None
    _summarize(results, settings, as_json=as_json)


def _summarize(results: "StudyResults", settings: "Settings", *, as_json: bool) -> None:
    if as_json:
        print_json(results.status.to_json())
    else:
        from sweeper.report.tables import study_summary

        commands = next_commands(results.status, settings)
        print_table(study_summary(results.status, results.trials, commands))
    if results.status.failed:
        _say_failures(results, settings)
        raise typer.Exit(FAILED_TRIALS)


def _say_failures(results: "StudyResults", settings: "Settings") -> None:
    from sweeper.report.formats import last_line
    from sweeper.settings import command_line

    for trial in results.trials:
        if trial.state == "failed":
            show = command_line(
                "show",
                trial.study,
                str(trial.number),
                storage=settings.storage,
                runs_dir=settings.runs_dir,
            )
            error = last_line(trial.error or "no error was kept")
            typer.echo(f"trial {trial.number} failed: {error}", err=True)
            typer.echo(f"  {show}", err=True)


def _command_to_go_on(target: _Target, study: str | None, settings: "Settings") -> str:
    """Return the resume command, or the same run again if it ended before the study was known."""
    from sweeper.settings import command_line

    words = ("run", target.source or "") if study is None else ("resume", study)
    return command_line(
        *words,
        storage=settings.storage,
        runs_dir=settings.runs_dir,
        workers=target.workers,
        trials=target.trials,
        engine=settings.engine,
        isolation=settings.isolation,
        engine_address=settings.engine_address,
        gpus=settings.gpus,
        trials_per_gpu=settings.trials_per_gpu,
        checkpoints=settings.checkpoints,
    )


GROUP = VerbGroup(title="Run", order=10, verbs=(run, resume))
