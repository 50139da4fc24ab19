"""``compare``: trials side by side, with what differs marked and the objective's course drawn."""

from typing import Annotated

import typer

from sweeper.cli.completion import complete_trial
from sweeper.cli.options import AsCsv, AsJson, Debug, RunsDir, Storage, StudyName
from sweeper.cli.output import check_one_form, print_csv, print_json, print_table
from sweeper.cli.reading import open_reader, read_settings
from sweeper.errors import DefinitionError, UsageError
from sweeper.paths import check_name


def compare(
    study: StudyName,
    trials: Annotated[
        list[str],
        typer.Argument(
            metavar="N|STUDY:N…",
            help="Numbers of the trials, from 0; write STUDY:N for a trial of another study.",
            show_default=False,
            autocompletion=complete_trial,
        ),
    ],
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show trials side by side: parameters and metrics, differences marked, and their curves."""
    check_one_form(as_json=as_json, as_csv=as_csv)
    wanted = list(dict.fromkeys(_trial(study, word) for word in trials))
    if len(wanted) < 2:
        msg = (
            f"{' '.join(trials)} names one trial; name two or more, as in "
            f"`sweeper compare {study} 0 1`, or `sweeper compare {study} 0 OTHER:0`"
        )
        raise UsageError(msg)
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        records = [reader.trial(name, number) for name, number in wanted]
        statuses = [
            reader.status(name, each=False) for name in dict.fromkeys(name for name, _ in wanted)
        ]
    from sweeper.report.comparison import Comparison
    from sweeper.report.rows import trial_rows

    names = [
        name
        for status in statuses
        for name in ([each.name for each in status.objectives] or [status.objective])
    ]
    comparison = Comparison(records, list(dict.fromkeys(names)))
    if as_json:
        print_json(comparison.to_json())
    elif as_csv:
        print_csv(trial_rows(records))
    else:
        print_table(comparison)


def _trial(study: str, word: str) -> tuple[str, int]:
    name, _, number = word.rpartition(":")
    if not number.isdecimal():
        msg = f"{word!r} is no trial; expected its number from 0, or STUDY:NUMBER"
        raise typer.BadParameter(msg, param_hint="N|STUDY:N")
    try:
        return (check_name(name) if name else study), int(number)
    except DefinitionError as error:
        raise typer.BadParameter(str(error), param_hint="N|STUDY:N") from None
