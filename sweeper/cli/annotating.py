"""Verbs that tell a study something: ``observe``, ``tag``, ``note`` and ``hide``."""

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import (
    Flags,
    StudyName,
    TrialNumber,
    expanded,
    flag,
    open_repository,
    option,
)
from sweeper.errors import UsageError
from sweeper.records.printing import counted, trials_named


@expanded("storage runs_dir")
def observe(
    study: StudyName,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Results as .csv or .json: parameters, and a value for each.",
            show_default=False,
        ),
    ] = None,
    *,
    from_optuna: Annotated[
        str | None,
        option(
            "--from-optuna", "URL", "Take the complete trials of an Optuna study in this database."
        ),
    ] = None,
    optuna_study: Annotated[
        str | None,
        option("--optuna-study", "NAME", "Its name. (default: the only study there)"),
    ] = None,
    clear: Annotated[
        bool,
        flag("--clear", help="Use none of the earlier observations for the trials to come."),
    ] = False,
    flags: Flags,
) -> None:
    """Give results of other trainings to a study's sampler, for the trials that have not begun.

    They are no trials of the study: they are never the best one, and count for no total.
    """
    if (file is not None) == (from_optuna is not None) and not (clear and file is None):
        raise UsageError(
            "give a file, or --from-optuna URL, or --clear to use no observations any more"
        )
    if optuna_study is not None and from_optuna is None:
        raise UsageError(
            f"--optuna-study {optuna_study} without --from-optuna; give the database, too"
        )
    from sweeper.declarations.observing import ForeignObservation, read_observations

    settings = flags.settings()
    with open_repository(settings) as repository:
        row = repository.study(study)
        sampler = row.definition.get("sampler")
        observations: tuple[ForeignObservation, ...] = ()
        source = ""
        if file is not None:
            observations = read_observations(file, row.objectives, sampler)
            source = str(file)
        elif from_optuna is not None:
            from sweeper.search.foreign_studies import optuna_observations

            source, observations = optuna_observations(
                from_optuna, optuna_study, row.objectives, sampler
            )
        answer = repository.observe(study, observations, source, clear=clear)
    if clear:
        typer.echo(f"{counted(answer.withdrawn, 'observation')} of study {study} withdrawn")
    if observations:
        present = len(observations) - answer.added
        again = f" ({present} were there already)" if present else ""
        typer.echo(f"{counted(answer.added, 'new observation')} from {source}{again}")
    if answer.outside:
        typer.echo(
            f"  {answer.outside} with a value outside of the present ranges, which the sampler ignores",
            err=True,
        )
    typer.echo(f"  trials from {answer.since} on draw their parameters with them", err=True)


@expanded("storage runs_dir")
def tag(
    study: StudyName,
    number: TrialNumber,
    word: Annotated[
        str, typer.Argument(metavar="TAG", help="One word, such as good.", show_default=False)
    ],
    *,
    remove: Annotated[bool, flag("--remove", help="Remove the tag.")] = False,
    flags: Flags,
) -> None:
    """Tag a trial, for --where tag=TAG of `ls`, `best` and `show`."""
    with open_repository(flags.settings()) as repository:
        tags = repository.tag(study, number, word, remove=remove)
    typer.echo(f"trial {number} of study {study}: {', '.join(tags) or 'no tags'}")


@expanded("storage runs_dir")
def note(
    study: StudyName,
    number: TrialNumber,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The note; empty to delete it.", show_default=False),
    ],
    *,
    flags: Flags,
) -> None:
    """Write a note to a trial, in place of an earlier one."""
    with open_repository(flags.settings()) as repository:
        repository.note(study, number, text)
    typer.echo(f"trial {number} of study {study}: {text or 'no note'}")


@expanded("storage runs_dir")
def hide(
    study: StudyName,
    number: TrialNumber,
    *,
    undo: Annotated[bool, flag("--undo", help="Show the trial again.")] = False,
    flags: Flags,
) -> None:
    """Hide a trial: it is not listed and never the best one. Its result stays, also for the sampler.

    All repeats of its configuration are hidden with it, and the trials that took its result.
    """
    with open_repository(flags.settings()) as repository:
        numbers = repository.hide(study, number, undo=undo)
    are = "are" if len(numbers) > 1 else "is"
    typer.echo(
        f"{trials_named(numbers)} of study {study} {are} {'shown again' if undo else 'hidden'}"
    )
    if not undo:
        typer.echo("  the sampler still uses the result; --undo shows it again", err=True)
