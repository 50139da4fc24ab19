"""``run``, ``resume`` and ``extend``: start a sweep or go on with one, and say how it ended.

A run that ends with failed trials exits with 3, one that was interrupted with 130 and the exact
command that goes on with it. Standard output holds the summary alone.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import Debug, Flags, StudyName, expanded
from sweeper.cli.output import print_json, print_table, say_beginning
from sweeper.cli.study_words import stored_hint
from sweeper.cli.verbs.reading.read import next_commands
from sweeper.errors import Interrupted, StudyFileError, UsageError
from sweeper.events import Event, Listener, StudyOpened
from sweeper.records.lengths import Extension

if TYPE_CHECKING:
    from sweeper.results import StudyResults
    from sweeper.settings import Settings

FAILED_TRIALS = 3
"""The exit code of a run that was done, but in which trials failed."""


@expanded()
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
    flags: Flags,
    _debug: Debug = False,
) -> None:
    """Run a study to its total number of trials; run it again to continue it."""
    _sweep(
        flags, source=source, extension=None if flags.epochs is None else Extension(flags.epochs)
    )


@expanded(without="fresh epochs")
def resume(study: StudyName, *, flags: Flags, _debug: Debug = False) -> None:
    """Continue a study: interrupted trials first, then the rest."""
    _sweep(flags, study=study)


@expanded(without="fresh epochs")
def extend(
    study: StudyName,
    *,
    epochs: Annotated[
        int,
        typer.Option(
            "--epochs",
            metavar="N",
            min=1,
            help="Total number of epochs, finished ones included.",
            show_default=False,
        ),
    ],
    trial: Annotated[
        list[int] | None,
        typer.Option(
            "--trial",
            metavar="N",
            min=0,
            help="Only this trial; may be repeated. (default: all complete trials)",
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            "--best", metavar="K", min=1, help="Only the K best trials.", show_default=False
        ),
    ] = None,
    flags: Flags,
    _debug: Debug = False,
) -> None:
    """Train finished trials for more epochs, from where they ended."""
    if trial and best is not None:
        msg = "--trial and --best were both given; give one of them"
        raise UsageError(msg)
    _sweep(flags, study=study, extension=Extension(epochs, tuple(trial) if trial else None, best))


class _WithResumeCommand:
    """A listener that passes every event on, with the resume command once the study is known.

    Only here is it known both how the study is called and what was typed to get at it.
    """

    def __init__(self, listener: Listener, resume_command: Callable[[str], str]) -> None:
        self._listener = listener
        self._resume_command = resume_command
        self.study: str | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, StudyOpened):
            self.study = event.study
            event = replace(event, resume_command=self._resume_command(event.study))
        self._listener(event)


def _sweep(
    flags: Flags,
    source: str | None = None,
    study: str | None = None,
    extension: Extension | None = None,
) -> None:
    verbosity = flags.verbosity
    if verbosity != "quiet":
        say_beginning(source or f"the study {study}")
    settings = flags.settings()
    if settings.gpus is not None and settings.engine == "local":
        from sweeper.execution.worker.gpus import find_gpus

        # Before there is a study: one that cannot be run leaves nothing behind.
        find_gpus(settings.gpus)
    known = study
    try:
        from sweeper.execution.launch.server_process import begin_server

        # First, because what is imported below takes a while, and the server takes longer.
        with begin_server(settings.isolation) as server:
            from sweeper.execution.options import RunRequest
            from sweeper.execution.run import run_sweep
            from sweeper.report.terminal.listener import progress_listener

            with progress_listener(sys.stderr, verbosity) as progress:
                listener = _WithResumeCommand(
                    progress, lambda study: _command(flags, settings, "resume", study)
                )
                try:
                    results = run_sweep(
                        RunRequest(
                            flags.worker_options(settings, settings.workers),
                            listener,
                            source=source,
                            study=study,
                            trials=flags.trials,
                            engine=settings.engine,
                            engine_address=settings.engine_address,
                            accept_changes=flags.accept_changes,
                            fresh=flags.fresh,
                            server=server,
                            extension=extension,
                        )
                    )
                finally:
                    known = listener.study or study
    except StudyFileError as error:
        msg = f"{error}{stored_hint(source or '', settings)}"
        raise StudyFileError(msg) from None
    except (Interrupted, KeyboardInterrupt) as interruption:
        typer.echo(f"interrupted: {interruption}" if str(interruption) else "interrupted", err=True)
        typer.echo("resume with:", err=True)
        # The same run again, if it ended before the study was known.
        words = ("run", source or "") if known is None else ("resume", known)
        typer.echo(f"  {_command(flags, settings, *words)}", err=True)
        raise typer.Exit(Interrupted.exit_code) from None
    _summarize(results, settings, as_json=flags.as_json)


def _summarize(results: "StudyResults", settings: "Settings", *, as_json: bool) -> None:
    if as_json:
        print_json(results.status.to_json())
    else:
        from sweeper.report.tables import study_summary

        commands = next_commands(results.status, settings)
        print_table(study_summary(results.status, commands))
    if results.status.failed:
        _say_failures(results, settings)
        raise typer.Exit(FAILED_TRIALS)


def _say_failures(results: "StudyResults", settings: "Settings") -> None:
    from sweeper.report.formats import last_line

    for trial in results.trials:
        if trial.state == "failed":
            show = settings.command("show", trial.study, str(trial.number))
            error = last_line(trial.error or "no error was kept")
            typer.echo(f"trial {trial.number} failed: {error}", err=True)
            typer.echo(f"  {show}", err=True)


def _command(flags: Flags, settings: "Settings", *words: str) -> str:
    return settings.command(
        *words,
        workers=flags.workers,
        trials=flags.trials,
        # A study that is stored knows by now how far its trials train.
        epochs=flags.epochs if words[0] == "run" else None,
        engine=settings.engine,
        isolation=settings.isolation,
        engine_address=settings.engine_address,
        gpus=settings.gpus,
        trials_per_gpu=settings.trials_per_gpu,
        checkpoints=settings.checkpoints,
    )
