"""``stop`` and ``retry``: ask a study's workers to stop, and give failed trials another attempt."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import Debug, RunsDir, Storage, StudyName
from sweeper.errors import SweeperError, UsageError

if TYPE_CHECKING:
    from sweeper.storage.repository import Repository

_LOOK = 0.25
"""Seconds between two looks at who is left."""

_WAIT = 120.0


def stop(
    study: StudyName,
    *,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            metavar="",
            help="Kill the trials; they repeat the steps since their last checkpoint when resumed.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait until all have stopped."
        ),
    ] = _WAIT,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Stop a study on every machine: each worker checkpoints its trial and ends."""
    from sweeper.settings import load_settings
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    settings = load_settings(storage=storage, runs_dir=runs_dir)
    with Database.open(settings.storage, create=False) as database:
        repository = Repository(database)
        repository.request_stop(study, "kill" if now else "drain")
        deadline = time.monotonic() + wait
        left = _left(repository, study)
        while left and time.monotonic() < deadline:
            time.sleep(_LOOK)
            left = _left(repository, study)
        status = repository.status(study)
    if left:
        again = settings.command("stop", study, "--now")
        msg = (
            f"study {study!r} was asked to stop, and after {wait:g} s {len(left)} "
            f"{'is' if len(left) == 1 else 'are'} still at work: {', '.join(left)}. A step or a "
            f"checkpoint may take long; `{again}` kills"
        )
        raise SweeperError(msg)
    paused = f", {status.paused} paused at a rung" if status.paused else ""
    typer.echo(
        f"study {study} has stopped: {status.finished} of {status.target} trials finished, "
        f"{status.interrupted} to be resumed{paused}"
    )
    if status.finished < status.target:
        typer.echo(f"  {settings.command('resume', study)}", err=True)


def _left(repository: "Repository", study: str) -> list[str]:
    """Return the running trials, and the workers that have not left."""
    left = [
        f"a worker on {worker.host} (process {worker.pid})"
        for worker in repository.workers(study)
        if worker.live
    ]
    running = repository.status(study, each=False).running
    if running and not left:
        left.append(f"{running} running trial{'s' * (running > 1)}")
    return left


def retry(
    study: StudyName,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", min=0, help="The trial's number, from 0."),
    ] = None,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", metavar="", help="Every trial that has failed.")
    ] = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Give failed trials another attempt, from the newest checkpoint of the same code."""
    from sweeper.settings import load_settings
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    if failed == (number is not None):
        msg = "give the number of a trial, or --failed for every one that has failed"
        raise UsageError(msg)
    settings = load_settings(storage=storage, runs_dir=runs_dir)
    with Database.open(settings.storage, create=False) as database:
        repository = Repository(database)
        if number is None:
            numbers = repository.retry_failed(study)
        else:
            repository.retry(study, number)
            numbers = (number,)
        at_work = any(worker.live for worker in repository.workers(study))
    if not numbers:
        typer.echo(f"no trial of study {study} has failed")
        return
    names = ", ".join(map(str, numbers))
    typer.echo(
        f"trial{'s' * (len(numbers) > 1)} {names} of study {study} will have another attempt"
    )
    if not at_work:
        typer.echo(f"  {settings.command('resume', study)}", err=True)
