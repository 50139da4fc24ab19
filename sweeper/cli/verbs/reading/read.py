"""``ls``, ``status``, ``show`` and ``best``: what the database says, as tables, JSON or CSV."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeper.cli.options import AsCsv, AsJson, Debug, RunsDir, Storage, StudyName, TrialNumber
from sweeper.cli.output import check_one_form, print_csv, print_json, print_table
from sweeper.cli.reading import open_reader, read_settings
from sweeper.errors import SweeperError
from sweeper.records.ancestry import schedule_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweeper.results import StudyStatus
    from sweeper.settings import Settings


def ls(
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """List the studies."""
    check_one_form(as_json=as_json, as_csv=as_csv)
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        statuses = reader.statuses(each=as_json)
    if as_json:
        print_json([status.to_json() for status in statuses])
    elif as_csv:
        from sweeper.report.rows import study_rows

        print_csv(study_rows(statuses))
    else:
        from sweeper.report.tables import studies_table

        print_table(studies_table(statuses))


def status(
    study: StudyName,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show a study's progress, its trials by rank, and the best so far; as CSV, one row per trial."""
    check_one_form(as_json=as_json, as_csv=as_csv)
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        found = reader.status(study)
    if as_json:
        print_json(found.to_json())
    elif as_csv:
        from sweeper.report.rows import trial_status_rows

        print_csv(trial_status_rows(found.trials))
    else:
        from sweeper.report.tables import study_summary

        print_table(study_summary(found, next_commands(found, settings)))


def show(
    study: StudyName,
    number: TrialNumber,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show one trial: parameters, attempts, epochs, checkpoints; as CSV, one row per epoch.

    For people epochs are counted from 1, and a checkpoint's are those that it comes after.
    """
    check_one_form(as_json=as_json, as_csv=as_csv)
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        trial = reader.trial(study, number)
        found = reader.status(study, each=False)
    if as_json:
        print_json(trial.to_json())
    elif as_csv:
        from sweeper.report.rows import epoch_rows

        print_csv(epoch_rows(trial))
    else:
        from sweeper.report.terminal.pages import trial_on_terminal

        commands = [settings.command("logs", study, str(number))]
        print_table(trial_on_terminal(trial, found, commands))


def _stretch(stretch: "Mapping[str, Any]") -> str:
    """Format one line of the schedule that led to a trial."""
    params = " ".join(f"{name}={value}" for name, value in stretch["params"].items())
    until = f"epochs {stretch['from_epoch'] + 1} to {stretch['to_epoch']}"
    return f"{until} as trial {stretch['trial']}: {params}"


def best(
    study: StudyName,
    *,
    all_code: Annotated[
        bool,
        typer.Option(
            "--all-code",
            metavar="",
            help="Compare all trials, also those that ran under other code.",
        ),
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show a study's best trial; with --json, the object that `show` prints.

    With several objectives: the trials that no other beats in one objective without losing in
    another; with --json, a list of their objects. As CSV, a row a trial.
    """
    check_one_form(as_json=as_json, as_csv=as_csv)
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        found = reader.status(study, all_code=all_code)
        _check_has_best(found, settings)
        leading = [found.best.number] if found.best else [t.number for t in found.pareto]
        trials = [reader.trial(study, number) for number in leading]
        led = [schedule_of(t, lambda number: reader.trial(study, number)) for t in trials]
    if as_json:
        front = [trial.to_json() for trial in trials]
        if found.best:
            front[0]["schedule"] = list(led[0])
        print_json(front[0] if found.best else front)
        return
    if as_csv:
        from sweeper.report.rows import trial_rows

        print_csv(trial_rows(trials))
        return
    from sweeper.report.tables import codes_lines, exactness_line
    from sweeper.report.terminal.pages import trial_on_terminal
    from sweeper.report.trials import TrialsTable

    if found.best:
        print_table(trial_on_terminal(trials[0], found))
        for stretch in led[0] if len(led[0]) > 1 else ():
            typer.echo(_stretch(stretch))
    else:
        print_table(TrialsTable([t for t in found.trials if t.number in leading]))
    for line in codes_lines(found):
        print_table(line)
    if not found.best:
        print_table(exactness_line(found.exactness))


def _check_has_best(found: "StudyStatus", settings: "Settings") -> None:
    if found.best is not None or found.pareto:
        return
    if any(group.best is not None for group in found.codes):
        again = settings.command("best", found.study, "--all-code")
        msg = (
            f"study {found.study!r} has no complete trial under its present code, which changed "
            f"after others were complete; `{again}` ranks all of them"
        )
        raise SweeperError(msg)
    advice = " or ".join(f"`{c}`" for c in next_commands(found, settings))
    from sweeper.records.status import none_complete

    errors = [trial.error for trial in found.trials if trial.state == "failed"]
    msg = f"{none_complete(found.study, found.target, errors)}. No trial is the best one; see {advice}"
    raise SweeperError(msg)


def next_commands(status: "StudyStatus", settings: "Settings") -> list[str]:
    """Return what is worth typing after seeing ``status``, exactly as it must be typed."""
    commands = []
    if status.finished < status.target and not status.running:
        found = status.exactness
        refused = found.difference is not None and not found.accepted
        words = ["--accept-inexact"] if refused else []
        commands.append(settings.command("resume", status.study, *words))
    failed = [trial for trial in status.trials if trial.state == "failed"]
    if status.failed and not (failed and all(trial.would_fail_again for trial in failed)):
        commands.append(settings.command("retry", status.study, "--failed"))
    elif failed and status.best is None:
        commands.append(settings.command("show", status.study, str(failed[0].number)))
    if status.best is not None:
        number = str(status.best.number)
        commands.append(settings.command("show", status.study, number))
        commands.append(settings.command("dashboard"))
    if status.pareto:
        commands.append(settings.command("best", status.study))
    return commands or [settings.command("status", status.study)]
