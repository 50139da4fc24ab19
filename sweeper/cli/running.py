"""Verbs that run trials and end them: ``run``, ``resume``, ``extend``, ``worker``, ``stop``, ``retry``.

A run with failed trials exits with 3, an interrupted one with 130, and prints the exact command to
resume. Standard output has only the summary.
"""

import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    RUNNING,
    Flags,
    MovedFile,
    StudyFile,
    StudyName,
    expanded,
    flag,
    open_repository,
    option,
    stored_hint,
)
from sweeper.cli.output import print_importing, print_json, print_table
from sweeper.cli.reading import next_commands
from sweeper.errors import Interrupted, StudyFileError, SweeperError, UsageError
from sweeper.records.events import Event, StudyOpened
from sweeper.records.lengths import Extension
from sweeper.records.printing import trials_named
from sweeper.support.paths import roots_of

if TYPE_CHECKING:
    from sweeper.declarations.repeating import ConfirmRequest
    from sweeper.declarations.settings import Settings
    from sweeper.records.results import StudyResults
    from sweeper.run.options import HostSpec
    from sweeper.views.terminal.lines import Verbosity

FAILED_TRIALS = 3
"""The exit code of a finished run with failed trials."""


@expanded(RUNNING)
def run(source: StudyFile, *, flags: Flags) -> None:
    """Run a study to its total number of trials; run it again to continue it."""
    _sweep(
        flags, source=source, extension=None if flags.epochs is None else Extension(flags.epochs)
    )


@expanded(RUNNING, without="fresh epochs")
def resume(study: StudyName, *, flags: Flags) -> None:
    """Continue a study: interrupted trials first, then the rest."""
    _sweep(flags, study=study)


@expanded(RUNNING, without="fresh epochs")
def extend(
    study: StudyName,
    *,
    epochs: Annotated[
        int,
        option("--epochs", "N", "Total number of epochs, finished ones included.", min=1),
    ],
    trial: Annotated[
        list[int] | None,
        option(
            "--trial",
            "N",
            "Only this trial; may be repeated. (default: all complete trials)",
            min=0,
        ),
    ] = None,
    best: Annotated[
        int | None,
        option("--best", "K", "Only the K best trials.", min=1),
    ] = None,
    flags: Flags,
) -> None:
    """Train finished trials for more epochs, from where they ended."""
    if trial and best is not None:
        raise UsageError("--trial and --best were both given; give one of them")
    _sweep(flags, study=study, extension=Extension(epochs, tuple(trial) if trial else None, best))


@expanded(RUNNING, without="fresh epochs trials accept_changes")
def confirm(
    study: StudyName,
    *,
    best: Annotated[
        int | None,
        option("--best", "K", "The K leading configurations. (default: 5)", min=2),
    ] = None,
    repeats: Annotated[
        int,
        option("--repeats", "R", "Repeats of each configuration. (default: 5)", min=2),
    ] = 5,
    at_most: Annotated[
        int | None,
        option(
            "--at-most",
            "N",
            "Up to N repeats of those that are not yet distinguishable from the leader. "
            "(default: no further rounds)",
            min=2,
        ),
    ] = None,
    trial: Annotated[
        list[int] | None,
        option(
            "--trial",
            "N",
            "The configuration of this trial, instead of --best; may be repeated.",
            min=0,
        ),
    ] = None,
    flags: Flags,
) -> None:
    """Train the leading configurations again, with new seeds, and rank them by the new values."""
    from sweeper.declarations.repeating import ConfirmRequest

    request = ConfirmRequest(best, tuple(trial or ()), repeats, at_most)
    _sweep(flags, study=study, confirm=request)


def _sweep(
    flags: Flags,
    source: str | None = None,
    study: str | None = None,
    extension: Extension | None = None,
    confirm: "ConfirmRequest | None" = None,
) -> None:
    from sweeper.checks.disk import put_back
    from sweeper.definition.declared import check_target
    from sweeper.run.finished_study import finished_study
    from sweeper.run.launch.server_process import begin_server
    from sweeper.run.options import RunRequest

    settings = flags.settings()
    if settings.engine == "local":
        _check_gpus(settings)
    opened_study = study

    def listen(event: Event) -> None:
        nonlocal opened_study
        if isinstance(event, StudyOpened):
            # Only this command knows the study's name and the options that were typed.
            opened_study = event.status.study
            command = _command(flags, settings, "resume", opened_study)
            event = replace(event, resume_command=command)
        progress(event)

    request = RunRequest(
        flags.worker_options(settings, settings.workers),
        listen,
        source=source,
        study=study,
        trials=flags.trials,
        engine=settings.engine,
        engine_address=settings.engine_address,
        accept_changes=flags.accept_changes,
        fresh=flags.fresh,
        extension=extension,
        confirm=confirm,
    )
    try:
        if source is not None:
            check_target(source)
        put_back(roots_of((source or "").partition(":")[0]), partial(typer.echo, err=True))
        finished = finished_study(request)
        if finished is None and flags.verbosity != "quiet":
            print_importing(source or f"the study {study}")
        isolation = settings.isolation if finished is None else "inline"
        # First, because what is imported below takes a while, and the server takes longer.
        with begin_server(isolation) as server:
            from sweeper.views.terminal.live import progress_listener

            with progress_listener(sys.stderr, flags.verbosity) as progress:
                if finished is None:
                    from sweeper.run.run import run_sweep

                    results = run_sweep(replace(request, server=server))
                else:
                    opened, results = finished
                    listen(opened)
    except StudyFileError as error:
        raise StudyFileError(f"{error}{stored_hint(source or '', settings)}") from None
    except (Interrupted, KeyboardInterrupt) as interruption:
        # The same run again, if it ended before the study was opened.
        words = ("run", source or "") if opened_study is None else ("resume", opened_study)
        raise _interrupted(interruption, "resume", _command(flags, settings, *words)) from None
    _summarize(results, settings, as_json=flags.as_json)


def _check_gpus(settings: "Settings") -> None:
    """Refuse GPUs that do not exist, before a study or a worker is stored."""
    if settings.gpus is not None:
        from sweeper.run.worker.gpus import find_gpus

        find_gpus(settings.gpus)


def _interrupted(interruption: BaseException, advice: str, command: str) -> typer.Exit:
    """Print that the command was interrupted, and the command that continues it."""
    typer.echo(f"interrupted: {interruption}" if str(interruption) else "interrupted", err=True)
    if command:
        typer.echo(f"{advice} with:\n  {command}", err=True)
    return typer.Exit(Interrupted.exit_code)


def _summarize(results: "StudyResults", settings: "Settings", *, as_json: bool) -> None:
    if as_json:
        print_json(results.status.to_json())
    else:
        from sweeper.views.tables import study_summary

        commands = next_commands(results.status, settings)
        print_table(study_summary(results.status, commands))
    if results.status.failed:
        if as_json or not sys.stdout.isatty():
            # The summary above has them, where the terminal shows it.
            _print_failures(results, settings)
        raise typer.Exit(FAILED_TRIALS)


def _print_failures(results: "StudyResults", settings: "Settings") -> None:
    """Print each error once, with the trials that it ended and the command that shows the first one."""
    from sweeper.views.formats import last_line

    by_error: dict[str, list[str]] = {}
    for trial in results.trials:
        if trial.state == "failed":
            error = last_line(trial.error or "no error was kept")
            by_error.setdefault(error, []).append(str(trial.number))
    for error, numbers in by_error.items():
        typer.echo(f"{trials_named(numbers)} failed: {error}", err=True)
        typer.echo(f"  {settings.command('show', results.status.study, numbers[0])}", err=True)


def _command(flags: Flags, settings: "Settings", *words: str) -> str:
    return settings.command(
        *words,
        workers=flags.workers,
        trials=flags.trials,
        # The stored study has the new number of epochs by now.
        epochs=flags.epochs if words[0] == "run" else None,
        engine=settings.engine,
        isolation=settings.isolation,
        engine_address=settings.engine_address,
        gpus=settings.gpus,
        trials_per_gpu=settings.trials_per_gpu,
        checkpoints=settings.checkpoints,
    )


_LOOK = 0.25
"""Seconds between two queries of the remaining workers."""

_WAIT = 120.0
"""Seconds that ``sweeper stop`` waits by default for steps and checkpoints to end."""


@expanded("storage runs_dir")
def stop(
    study: StudyName,
    *,
    now: Annotated[
        bool,
        flag(
            "--now",
            help="Kill the trials; they repeat the steps since their last checkpoint when resumed.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait until all have stopped."
        ),
    ] = _WAIT,
    flags: Flags,
) -> None:
    """Stop a study on every machine: each worker checkpoints its trial and ends."""
    settings = flags.settings()
    with open_repository(settings) as repository:
        repository.request_stop(study, "kill" if now else "drain")
        deadline = time.monotonic() + wait
        remaining = repository.at_work(study)
        while remaining and time.monotonic() < deadline:
            time.sleep(_LOOK)
            remaining = repository.at_work(study)
        status = repository.status(study)
    if remaining:
        command = settings.command("stop", study, "--now")
        raise SweeperError(
            f"study {study!r} was asked to stop, and after {wait:g} s {len(remaining)} "
            f"{'is' if len(remaining) == 1 else 'are'} still running: {', '.join(remaining)}. They may be "
            f"in a long step or checkpoint; `{command}` kills them"
        )
    paused = f", {status.paused} paused at a rung" if status.paused else ""
    typer.echo(
        f"study {study} has stopped: {status.finished} of {status.target} trials finished, "
        f"{status.interrupted} to be resumed{paused}"
    )
    if status.finished < status.target:
        typer.echo(f"  {settings.command('resume', study)}", err=True)


@expanded("storage runs_dir")
def retry(
    study: StudyName,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", min=0, help="The trial's number, from 0."),
    ] = None,
    *,
    failed: Annotated[bool, flag("--failed", help="Every trial that has failed.")] = False,
    flags: Flags,
) -> None:
    """Give failed trials another attempt, from the newest checkpoint of the same code."""
    if failed == (number is not None):
        raise UsageError("give the number of a trial, or --failed for every one that has failed")
    settings = flags.settings()
    with open_repository(settings) as repository:
        if number is None:
            numbers = repository.retry_failed(study)
        else:
            repository.retry(study, number)
            numbers = (number,)
        at_work = repository.at_work(study)
    if not numbers:
        typer.echo(f"no trial of study {study} has failed")
        return
    typer.echo(f"{trials_named(numbers)} of study {study} will get another attempt")
    if not at_work:
        typer.echo(f"  {settings.command('resume', study)}", err=True)


@expanded(
    "grace fail_fast accept_inexact gpus trials_per_gpu gpu_memory isolation quiet verbose storage "
    "runs_dir checkpoints"
)
def worker(
    study: StudyName,
    *,
    slots: Annotated[
        int | None,
        option(
            "--slots",
            "N",
            "Trials side by side. (default: one per core, or as many as fit on the GPUs)",
            min=1,
        ),
    ] = None,
    source: MovedFile = None,
    unless_stopped: Annotated[
        bool,
        flag(
            "--unless-stopped",
            help="Exit with code 0 at once if `sweeper stop` has stopped the study.",
        ),
    ] = False,
    flags: Flags,
    ordered: Annotated[bool, typer.Option("--ordered", hidden=True)] = False,
) -> None:
    """Run trials of a study on this machine until the study is done."""
    if ordered:
        _run(_read_spec(study))
        return
    if flags.verbosity != "quiet":
        print_importing(f"the study {study}")
    from sweeper.run.options import DEFAULT_GRACE, HostSpec

    grace = DEFAULT_GRACE if flags.grace is None else flags.grace
    flags = replace(flags, workers=slots, grace=grace)
    settings = flags.settings()
    _check_gpus(settings)
    command = settings.command("worker", study, checkpoints=settings.checkpoints)
    # With GPUs the worker itself finds out how many trials fit on them.
    slot_count = settings.workers if slots is not None or settings.gpus is None else None
    spec = HostSpec(
        study,
        flags.worker_options(settings, slot_count),
        source=source,
        unless_stopped=unless_stopped,
        resume_command=command,
    )
    _run(spec, command, flags.verbosity)


def _read_spec(study: str) -> "HostSpec":
    """Read from standard input the specification that a cluster run wrote for this host."""
    from sweeper.run.cluster.host import read_spec

    try:
        spec = read_spec(sys.stdin.read())
    except ValueError as error:
        raise UsageError(
            f"--ordered is for `sweeper run --engine`, which writes an order here: {error}"
        ) from error
    if spec.study != study:
        raise UsageError(f"the order is for study {spec.study!r}; expected {study!r}")
    return spec


def _run(spec: "HostSpec", command: str = "", verbosity: "Verbosity" = "normal") -> None:
    from sweeper.run.cluster.host import run_worker
    from sweeper.views.terminal.live import progress_listener

    try:
        with progress_listener(sys.stderr, verbosity) as progress:
            status = run_worker(spec, progress)
    except (Interrupted, KeyboardInterrupt) as interruption:
        raise _interrupted(interruption, "start it again", command) from None
    typer.echo(
        f"study {status.study}: {status.finished} of {status.target} trials finished, "
        f"{status.failed} of them failed",
        err=True,
    )
