"""``branch``: a new trial that begins at a checkpoint of another, with other parameters."""

from typing import Annotated

import typer

from sweeper.cli.options import AsJson, Checkpoints, Debug, RunsDir, Storage, StudyName, TrialNumber
from sweeper.cli.output import print_json
from sweeper.errors import UsageError


def branch(
    study: StudyName,
    number: TrialNumber,
    *,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch",
            metavar="E",
            min=0,
            help="Begin after E epochs. (default: at the newest checkpoint)",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="S",
            min=0,
            help="Begin at the checkpoint of step S.",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Give a parameter another value; may be repeated.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            metavar="M",
            min=1,
            help="Total number of epochs. (default: the parent's)",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Add a trial that begins at a checkpoint of trial N, with other parameters."""
    from sweeper.continuing.branching import BranchRequest, branch_trial
    from sweeper.paths import RunPaths, absolute_location
    from sweeper.settings import load_settings
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository

    given = dict(_pair(text) for text in values or [])
    settings = load_settings(storage=storage, runs_dir=runs_dir, checkpoints=checkpoints)
    apart = absolute_location(settings.checkpoints_location)
    paths = RunPaths(settings.runs_dir.absolute(), study, apart)
    with Database.open(settings.storage, create=False) as database:
        repository = Repository(database)
        request = BranchRequest(
            study, number, epoch=epoch, step=step, given=given, as_text=True, epochs=epochs
        )
        branched = branch_trial(repository, paths, request)
        at_work = any(worker.live for worker in repository.workers(study))
    for remark in branched.remarks:
        typer.echo(f"warning: {remark}", err=True)
    trial = branched.trial
    if as_json:
        print_json(trial.to_json())
    elif trial.parent is not None:
        parent = trial.parent
        changed = ", ".join(f"{name}={value!r}" for name, value in parent.changed.items())
        typer.echo(
            f"trial {trial.number} of study {study} begins at step {parent.step} of trial "
            f"{parent.number} (epoch {parent.epoch} of {parent.epochs}), with "
            f"{changed or 'no parameter changed'}"
        )
    if not at_work:
        typer.echo(f"  {settings.command('resume', study)}", err=True)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        msg = f"--set {text!r}; expected a parameter and its value, as --set learning_rate=0.001"
        raise UsageError(msg)
    return name, value
