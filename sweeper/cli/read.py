"""``ls``, ``status``, ``show`` and ``best``: what the database says, as tables or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import AsJson, Debug, RunsDir, Storage, StudyName, TrialNumber
from sweeper.cli.output import print_json, print_table
from sweeper.cli.reading import open_reader, read_settings
from sweeper.cli.verbs import VerbGroup
from sweeper.errors import SweeperError

if TYPE_CHECKING:
    from sweeper.results import StudyStatus
    from sweeper.settings import Settings

__all__ = ["GROUP", "next_commands"]


def ls(
    *,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """List the studies."""
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        statuses = reader.statuses()
    if as_json:
        print_json([status.to_json() for status in statuses])
        return
    from sweeper.report.tables import studies_table

    print_table(studies_table(statuses))


def status(
    study: StudyName,
    *,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show how far a study is, its trials by rank, and the best so far."""
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        found = reader.status(study)
        if as_json:
            print_json(found.to_json())
            return
        trials = reader.trials(study)
    from sweeper.report.tables import study_summary

    print_table(study_summary(found, trials, next_commands(found, settings)))


def show(
    study: StudyName,
    number: TrialNumber,
    *,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show one trial whole: parameters, attempts, epochs, checkpoints."""
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        trial = reader.trial(study, number)
        exactness = reader.status(study).exactness
    if as_json:
        print_json(trial.to_json())
        return
    from sweeper.report.tables import trial_page

    commands = [_command("logs", study, str(number), settings=settings)]
    print_table(trial_page(trial, commands, exactness))


def best(
    study: StudyName,
    *,
    all_code: Annotated[
        bool,
        typer.Option("--all-code", metavar="", help="Of all trials, whatever code they ran under."),
    ] = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Show a study's best trial; with --json, the object that `show` prints.

    With several objectives: the trials that no other beats in one objective without losing in
    another; with --json, a list of their objects.
    """
    settings = read_settings(storage, runs_dir)
    with open_reader(settings) as reader:
        found = reader.status(study, all_code=True) if all_code else reader.status(study)
        if found.best is None and any(group.best is not None for group in found.codes):
            again = _command("best", study, "--all-code", settings=settings)
            msg = (
                f"study {study!r} has no complete trial under its present code, which changed "
                f"after others were complete; `{again}` ranks all of them"
            )
            raise SweeperError(msg)
        if found.best is None and not found.pareto:
            advice = " or ".join(f"`{c}`" for c in next_commands(found, settings))
            msg = (
                f"study {study!r} has no complete trial yet ({found.finished} of {found.target} "
                f"done, {found.failed} failed), so no best one; see {advice}"
            )
            raise SweeperError(msg)
        leading = [found.best.number] if found.best else [t.number for t in found.pareto]
        trials = [reader.trial(study, number) for number in leading]
    if as_json:
        front = [trial.to_json() for trial in trials]
        print_json(front[0] if found.best else front)
        return
    from sweeper.report.tables import codes_lines, exactness_line, trial_page, trials_table

    if found.best:
        print_table(trial_page(trials[0], exactness=found.exactness))
    else:
        print_table(trials_table(trials))
    for line in codes_lines(found):
        print_table(line)
    if found.best:
        return
    print_table(exactness_line(found.exactness))


def next_commands(status: "StudyStatus", settings: "Settings") -> list[str]:
    """Return what is worth typing after seeing ``status``, exactly as it must be typed."""
    commands = []
    if status.finished < status.target and not status.running:
        found = status.exactness
        refused = found.difference is not None and not found.accepted
        words = ["--accept-inexact"] if refused else []
        commands.append(_command("resume", status.study, *words, settings=settings))
    if status.failed:
        commands.append(_command("retry", status.study, "--failed", settings=settings))
    if status.best is not None:
        number = str(status.best.number)
        commands.append(_command("show", status.study, number, settings=settings))
        commands.append(_command("dashboard", settings=settings))
    if status.pareto:
        commands.append(_command("best", status.study, settings=settings))
    return commands or [_command("status", status.study, settings=settings)]


def _command(*words: str, settings: "Settings") -> str:
    from sweeper.settings import command_line

    return command_line(*words, storage=settings.storage, runs_dir=settings.runs_dir)


GROUP = VerbGroup(title="Read", order=20, verbs=(ls, status, show, best))
