"""Verbs that make, keep and remove: ``init``, ``export``, ``gc``, ``rm`` and ``db``."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    Flags,
    MovedFile,
    StudyName,
    complete_study,
    expanded,
    flag,
    open_repository,
    option,
    study_name,
)
from sweeper.cli.output import print_importing, print_json
from sweeper.errors import CorruptCheckpointError, ExportError, SweeperError, UsageError
from sweeper.support.paths import RunPaths, absolute_location, is_name

if TYPE_CHECKING:
    from sweeper.api.collection import Garbage
    from sweeper.models.exported import Exported
    from sweeper.records.model_source import At


@expanded("storage runs_dir")
def upgrade(*, flags: Flags) -> None:
    """Upgrade the tables of an older version's database. Copy the database first."""
    from sweeper.db.database import Database

    old_revision, new_revision = Database.upgrade(flags.settings().storage)
    if old_revision == new_revision:
        typer.echo(f"nothing to do: the tables have revision {new_revision}")
    else:
        typer.echo(f"upgraded from revision {old_revision} to {new_revision}")


@expanded()
def copy(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The database's URL.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The URL of an empty database.", show_default=False),
    ],
) -> None:
    """Copy every study into an empty database, such as from SQLite to PostgreSQL, and check the copy.

    No trial may be running. Checkpoints are not copied.
    """
    from sweeper.db.database import Database
    from sweeper.db.maintenance import copy_database
    from sweeper.support.shown import shown_url

    with (
        Database.open(source, create=False) as origin,
        Database.open(target, create=True) as destination,
    ):
        copied = copy_database(origin, destination)
    rows = {table.name: table.rows for table in copied}
    typer.echo(
        f"studies: {rows['sweeper_studies']}, trials: {rows['sweeper_trials']}; copied "
        f"{sum(rows.values())} rows in {len(rows)} tables; counts and digests agree"
    )
    typer.echo(f"use it with: export SWEEPER_STORAGE={shown_url(target)}", err=True)


@expanded("accept_changes as_json storage runs_dir checkpoints")
def export(
    study: StudyName,
    *,
    form: Annotated[
        str,
        option(
            "--format",
            "FORMAT",
            "keras, weights, savedmodel, frozen, tf-checkpoint or safetensors.",
        ),
    ],
    output: Annotated[
        Path,
        option("--output", "PATH", "File or directory to write; PATH.json describes it."),
    ],
    trial: Annotated[
        int | None,
        option("--trial", "N", "The trial. (default: the best one)", min=0),
    ] = None,
    at: Annotated[
        str,
        option(
            "--at",
            "end|best|STEP",
            "The model at the end of training, of the best kept epoch, or of a kept step. (default: end)",
        ),
    ] = "end",
    force: Annotated[bool, flag("--force", help="Replace what is at PATH.")] = False,
    name: Annotated[
        str,
        option("--name", "NAME", "Name of TensorFlow's checkpoints: NAME-STEP. (default: ckpt)"),
    ] = "ckpt",
    max_to_keep: Annotated[
        int | None,
        option(
            "--max-to-keep",
            "K",
            "Write the trial's newest K kept checkpoints; only for tf-checkpoint.",
            min=1,
        ),
    ] = None,
    source: MovedFile = None,
    flags: Flags,
) -> None:
    """Write a trial's model for other tools, with a description beside it."""
    # A mistake in the command is an error before anything large is imported.
    if max_to_keep is not None and form != "tf-checkpoint":
        raise UsageError(
            f"--max-to-keep applies only to --format tf-checkpoint, and {form} holds one model; "
            "leave it out"
        )
    from sweeper.models.exported import check_format

    check_format(form, str(output))
    from sweeper.api.models import StudyModels
    from sweeper.records.model_source import ExportOptions

    settings = flags.settings()
    if trial is None:
        with open_repository(settings) as repository:
            best = repository.status(study).best
        if best is None:
            raise SweeperError(f"study {study!r} has no best trial; name one with --trial N")
        trial = best.number
    options = ExportOptions(
        output.absolute(), form, _at(at), force, flags.accept_changes, name, max_to_keep
    )
    models = StudyModels.of(settings, study, source=source, notify=partial(typer.echo, err=True))
    print_importing(f"the study {study}")
    try:
        # What the study's file prints when it is imported is no part of the result.
        with redirect_stdout(sys.stderr):
            exported = models.export(trial, options)
    except CorruptCheckpointError as error:
        show = settings.command("show", study, str(trial))
        raise CorruptCheckpointError(
            f"{error}; `{show}` lists the trial's checkpoints: take another one with --at",
            error.file,
            error.tensor,
        ) from error
    except SweeperError:
        raise
    except Exception as error:
        # Code of the user's raised it: the study's file or a factory.
        from sweeper.run.trial.link import failure_of

        failure = failure_of(error, asked=True)
        typer.echo(failure.traceback, err=True)
        raise ExportError(failure.error) from error
    if flags.as_json:
        print_json(exported.to_json())
        return
    for line in _lines(exported):
        typer.echo(line)


def _at(text: str) -> "At":
    if text in ("end", "best"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    raise UsageError(
        f"--at {text}; it is end, best, or the step of a kept checkpoint (`sweeper show` has them)"
    )


def _lines(exported: "Exported") -> list[str]:
    card = exported.card
    where = f"at {card['at']} (step {card['step']}, {card['epoch']} epochs)"
    lines = [
        f"wrote {exported.path}",
        f"  {card['format']} of trial {card['trial']} of {card['study']}, {where}",
    ]
    for kind in ("inputs", "outputs"):
        for name, form in card["details"].get(kind, {}).items():
            lines.append(f"  {kind[:-1]:<8}{name}  {form}")
    if card["details"].get("needs"):
        lines.append(
            f"  needs   {', '.join(card['details']['needs'])}: import or register them where it is "
            "loaded"
        )
    if card["details"].get("checkpoints"):
        lines.append(f"  holds   {', '.join(card['details']['checkpoints'])}")
    lines.append(f"  description  {exported.to_json()['description']}")
    return lines


@expanded("as_json storage runs_dir checkpoints")
def gc(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]...",
            parser=study_name,
            help="Names of studies. (default: all)",
            autocompletion=complete_study,
        ),
    ] = None,
    *,
    keep_last: Annotated[
        int | None,
        option(
            "--keep-last",
            "N",
            "Keep the newest N checkpoints of finished trials, instead of the study's own rules.",
            min=1,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        flag("--dry-run", help="Print what would be deleted, and delete nothing."),
    ] = False,
    flags: Flags,
) -> None:
    """Delete checkpoints that no rule keeps, and remains of crashes. Running trials keep everything."""
    from sweeper.api.collection import collect
    from sweeper.declarations.checkpointing import Keep

    settings = flags.settings()
    keep = None if keep_last is None else Keep(last=keep_last)
    with open_repository(settings) as repository:
        garbage: list[Garbage] = []
        try:
            for study in studies or repository.study_names():
                collect(
                    repository,
                    study,
                    settings.runs_dir,
                    keep=keep,
                    dry_run=dry_run,
                    checkpoints=settings.checkpoints_location,
                    notify=garbage.append,
                )
        except BaseException:
            # Deleted files are listed even if a later study fails.
            if garbage:
                _report(garbage, dry_run=dry_run, as_json=flags.as_json)
            raise
        _report(garbage, dry_run=dry_run, as_json=flags.as_json)


def _report(garbage: "Sequence[Garbage]", *, dry_run: bool, as_json: bool) -> None:
    from sweeper.views.formats import size_text

    if as_json:
        print_json([item.to_json() for item in garbage])
        return
    for item in garbage:
        typer.echo(f"{item.why:<10}  {size_text(item.bytes):>9}  {item.path}")
    total = size_text(sum(item.bytes for item in garbage))
    typer.echo(f"{'would free' if dry_run else 'freed'} {total}")


TEMPLATES = ("arrays", "tf-data", "step")
"""Kinds of a new study file: by its data, and, last, by a training step of the user's own."""


@expanded()
def init(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The file to write.", show_default=False)
    ] = Path("study.py"),
    *,
    template: Annotated[
        str,
        typer.Option(
            "--template",
            metavar="|".join(TEMPLATES),
            help="NumPy arrays, a tf.data pipeline, or your own training step.",
            autocompletion=lambda: list(TEMPLATES),
        ),
    ] = TEMPLATES[0],
    force: Annotated[bool, flag("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a study file that runs as it is, for you to change; study.py by default."""
    if template not in TEMPLATES:
        raise UsageError(
            f"--template {template}: there is no such template; expected {', '.join(TEMPLATES)}"
        )
    if file.suffix != ".py":
        raise UsageError(
            f"{str(file)!r} does not end in .py, as a study's file must; try {file}.py"
        )
    words = {"file": shlex.quote(str(file)), "name": _name(file)}
    text = (files("sweeper.cli") / "templates" / f"{template}.py.txt").read_text("utf-8")
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file} already exists; name another file, or overwrite it with --force"
        ) from None
    except OSError as error:
        raise SweeperError(
            f"{file} cannot be written: {error.strerror or error}; name another file"
        ) from error
    typer.echo(f"{file} holds the study {words['name']!r}; next:")
    for verb in ("check", "run"):
        typer.echo(f"  sweeper {verb} {words['file']}")


def _name(file: Path) -> str:
    """Return a valid study name made from the file's name."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in file.stem).strip("-")
    if name in {"", "study"}:
        return "first-study"
    return name if is_name(name) else "first-study"


@expanded("storage runs_dir checkpoints")
def rm(
    study: StudyName,
    *,
    yes: Annotated[bool, flag("--yes", help="Do not ask.")] = False,
    flags: Flags,
) -> None:
    """Remove a study: its trials, their checkpoints and logs, and its rows in the database."""
    from sweeper.run.removed_study import remove_study, study_directories

    settings = flags.settings()
    paths = RunPaths(
        settings.runs_dir.absolute(), study, absolute_location(settings.checkpoints_location)
    )
    with open_repository(settings) as repository:
        repository.check_at_rest(study, "removed")
        trials = repository.trials(study)
        if not yes:
            typer.echo(f"study {study} has {len(trials)} trials, and its files are in", err=True)
            directories = study_directories(repository, trials, paths)
            for directory in (*directories.own, *directories.remote):
                typer.echo(f"  {directory}", err=True)
            try:
                agreed = typer.confirm("delete everything permanently?", err=True)
            except typer.Abort:
                raise UsageError(
                    "no answer, so nothing was removed; --yes removes without asking"
                ) from None
            if not agreed:
                typer.echo("nothing was removed")
                return
        directories = remove_study(repository, paths)
    typer.echo(f"removed study {study}: {len(trials)} trials")
    for directory in (*directories.own, *directories.remote):
        typer.echo(f"  {directory}")
    for directory in directories.left:
        typer.echo(
            f"left: {directory}, which another database may use; if none does, remove it by hand"
        )
