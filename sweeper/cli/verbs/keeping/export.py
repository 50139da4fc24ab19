"""``export``: write a trial's model for other tools, verified and with a card beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    AcceptChanges,
    AsJson,
    Checkpoints,
    Debug,
    RunsDir,
    Storage,
    StudyName,
)
from sweeper.cli.output import print_json
from sweeper.cli.reading import read_settings
from sweeper.errors import CorruptCheckpointError, SweeperError, UsageError

if TYPE_CHECKING:
    from sweeper.export.report import Exported
    from sweeper.records.model_source import At


def export(
    study: StudyName,
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="keras, weights, savedmodel, frozen, tf-checkpoint or safetensors.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="PATH",
            help="File or directory to write; PATH.json and PATH.md describe it.",
            show_default=False,
        ),
    ],
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            metavar="N",
            min=0,
            help="The trial. (default: the best one)",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="end|best|STEP",
            help="The model at the end of training, of the best kept epoch, or of a kept step. (default: end)",
            show_default=False,
        ),
    ] = "end",
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Replace what is at PATH.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of TensorFlow's checkpoints: NAME-STEP. (default: ckpt)",
            show_default=False,
        ),
    ] = "ckpt",
    max_to_keep: Annotated[
        int | None,
        typer.Option(
            "--max-to-keep",
            metavar="K",
            min=1,
            help="Write the trial's newest K kept checkpoints; only for tf-checkpoint.",
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
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    checkpoints: Checkpoints = None,
    _debug: Debug = False,
) -> None:
    """Write a trial's model for other tools, verified, with a description beside it."""
    from sweeper.storage.database import Database
    from sweeper.storage.repository import Repository
    from sweeper.stored.exporting import ExportRequest, export_apart
    from sweeper.stored.models import StudyModels

    if max_to_keep is not None and form != "tf-checkpoint":
        msg = (
            f"--max-to-keep is for --format tf-checkpoint, and {form} holds one model; leave it out"
        )
        raise UsageError(msg)
    from sweeper.export.formats import check_format

    check_format(form, str(output))
    settings = read_settings(storage, runs_dir, checkpoints)
    if trial is None:
        with Database.open(settings.storage, create=False) as database:
            best = Repository(database).status(study).best
        if best is None:
            msg = f"study {study!r} has no best trial; name one with --trial N"
            raise SweeperError(msg)
        trial = best.number
    try:
        exported = export_apart(
            ExportRequest(
                models=StudyModels.of(settings, study, source=source),
                number=trial,
                at=_at(at),
                format=form,
                path=output,
                force=force,
                name=name,
                max_to_keep=max_to_keep,
                accept_changes=accept_changes,
                isolation="auto" if settings.isolation == "inline" else settings.isolation,
                notice=lambda message: typer.echo(message, err=True),
            )
        )
    except CorruptCheckpointError as error:
        show = settings.command("show", study, str(trial))
        msg = f"{error}; `{show}` lists the trial's checkpoints: take another one with --at"
        raise CorruptCheckpointError(msg) from error
    if as_json:
        print_json(exported.to_json())
        return
    for line in _lines(exported):
        typer.echo(line)


def _at(text: str) -> "At":
    if text in ("end", "best"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    msg = (
        f"--at {text}; it is end, best, or the step of a kept checkpoint (`sweeper show` has them)"
    )
    raise UsageError(msg)


def _lines(exported: "Exported") -> list[str]:
    card = exported.card
    verified = card["verified"]
    allowed = verified["tolerance"]
    where = f"at {card['at']} (step {card['step']}, {card['epoch']} epochs)"
    lines = [
        f"wrote {exported.path}",
        f"  {card['format']} of trial {card['trial']} of {card['study']}, {where}",
    ]
    for what in ("inputs", "outputs"):
        for name, form in card["details"].get(what, {}).items():
            lines.append(f"  {what[:-1]:<8}{name}  {form}")
    if card["details"].get("needs"):
        lines.append(
            f"  needs   {', '.join(card['details']['needs'])}: import or register them where it is "
            "loaded"
        )
    if card["details"].get("checkpoints"):
        lines.append(f"  holds   {', '.join(card['details']['checkpoints'])}")
    within = "bit for bit" if not allowed else f"to {allowed:g}"
    lines.append(f"  verified on {verified['samples']} samples: predictions agree {within}")
    lines.append(f"  card    {exported.to_json()['cards'][1]}")
    return lines
