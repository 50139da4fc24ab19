"""Verbs that read: ``ls``, ``status``, ``show``, ``best``, ``compare``, ``logs``, ``report`` and ``dashboard``."""

import codecs
import contextlib
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    READING,
    TRIAL_NUMBER,
    Flags,
    StudyName,
    TrialNumber,
    complete_study,
    complete_trial,
    expanded,
    flag,
    open_repository,
    option,
    study_name,
)
from sweeper.cli.output import print_csv, print_json, print_table
from sweeper.declarations.repeating import confirmation_name
from sweeper.errors import DefinitionError, Interrupted, SweeperError, UsageError
from sweeper.support.paths import RunPaths, absolute_location, check_name, parse_location

if TYPE_CHECKING:
    from sweeper.db.repository import Repository
    from sweeper.declarations.settings import Settings
    from sweeper.records.results import AttemptRecord, StudyStatus, TrialRecord
    from sweeper.views.page.payload import Advice


Where = Annotated[
    list[str] | None,
    option(
        "--where",
        "CONDITION",
        "Only trials with this parameter, tag, state, value or number, as in lr<0.01 or tag=good; "
        "several must all hold.",
    ),
]


@expanded(READING)
def ls(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]",
            parser=study_name,
            help="List the trials of this study instead.",
            autocompletion=complete_study,
        ),
    ] = None,
    *,
    where: Where = None,
    every: Annotated[bool, flag("--all", help="List hidden trials, too.")] = False,
    flags: Flags,
) -> None:
    """List the studies, or the trials of one by rank."""
    settings = flags.settings()
    if study is not None:
        _list_trials(study, where or [], flags, hidden=every)
        return
    if where or every:
        raise UsageError(
            f"{'--where' if where else '--all'} is for the trials of a study; name it: sweeper ls STUDY"
        )
    with open_repository(settings, PATIENCE) as reader:
        statuses = reader.statuses(each=flags.as_json)
    if flags.as_json:
        print_json([status.to_json() for status in statuses])
    elif flags.as_csv:
        from sweeper.views.formats import study_rows

        print_csv(study_rows(statuses))
    else:
        from sweeper.views.tables import studies_table

        print_table(studies_table(statuses))


def _list_trials(study: str, where: list[str], flags: Flags, *, hidden: bool) -> None:
    from sweeper.records.conditions import matching
    from sweeper.records.results import ranked

    with open_repository(flags.settings(), PATIENCE) as reader:
        summary = reader.status(study, each=False)
    selected = ranked(matching(summary.trials, where), summary)
    trials = [trial for trial in selected if hidden or not trial.hidden]
    if flags.as_json:
        print_json([trial.to_json() for trial in trials])
    elif flags.as_csv:
        from sweeper.views.formats import trial_status_rows

        print_csv(trial_status_rows(trials))
    else:
        from sweeper.views.tables import trials_listed

        print_table(trials_listed(trials, summary, len(selected) - len(trials)))


@expanded(READING)
def status(study: StudyName, *, flags: Flags) -> None:
    """Show a study's progress, its trials by rank, and the best so far; as CSV, one row per trial."""
    settings = flags.settings()
    with open_repository(settings, PATIENCE) as reader:
        summary = reader.status(study)
    if flags.as_json:
        print_json(summary.to_json())
    elif flags.as_csv:
        from sweeper.views.formats import trial_status_rows

        print_csv(trial_status_rows(summary.trials))
    else:
        from sweeper.views.tables import study_summary

        print_table(study_summary(summary, next_commands(summary, settings)))


@expanded(READING)
def show(
    study: StudyName,
    number: Annotated[int | None, TRIAL_NUMBER] = None,
    *,
    where: Where = None,
    flags: Flags,
) -> None:
    """Show one trial: parameters, attempts, epochs, checkpoints; as CSV, one row per epoch.

    For people epochs are counted from 1, and a checkpoint's are those that it comes after. With --where,
    each trial that meets the conditions; with --json, a list of their objects.
    """
    if (number is None) == (not where):
        raise UsageError("give the number of a trial, or conditions with --where")
    settings = flags.settings()
    with open_repository(settings, PATIENCE) as reader:
        summary = reader.status(study, each=False)
        numbers = [number]
        if where:
            from sweeper.records.conditions import matching

            numbers = [trial.number for trial in matching(summary.trials, where)]
        trials = [reader.trial(study, n) for n in numbers if n is not None]
    if flags.as_json:
        shown = [trial.to_json() for trial in trials]
        print_json(shown if where else shown[0])
    elif flags.as_csv:
        rows = [{"trial": t.number, **e.to_json()} for t in trials for e in t.epochs]
        if not where:
            rows = [epoch.to_json() for epoch in trials[0].epochs]
        print_csv(rows)
    else:
        for trial in trials:
            _show(_at_present(trial, settings), summary, settings)


def _at_present(trial: "TrialRecord", settings: "Settings") -> "TrialRecord":
    """Return ``trial`` with the present paths of its checkpoints, which may have been moved or copied with their database."""
    apart = absolute_location(settings.checkpoints_location)
    paths = RunPaths(settings.runs_dir.absolute(), trial.study, apart)
    checkpoints = []
    for checkpoint in trial.checkpoints:
        recorded = parse_location(checkpoint.path)
        # A disk that is away does not keep the rows from being shown.
        with contextlib.suppress(OSError):
            if isinstance(recorded, Path):
                here = filter(Path.is_dir, paths.directories_of_attempt(recorded, trial.number))
                recorded = next(here, recorded.parent) / recorded.name
        checkpoints.append(replace(checkpoint, path=str(recorded)))
    return replace(trial, checkpoints=tuple(checkpoints))


def _show(trial: "TrialRecord", summary: "StudyStatus", settings: "Settings") -> None:
    from sweeper.views.verb_tables import trial_on_terminal

    commands = [settings.command("logs", trial.study, str(trial.number))]
    status = next(entry for entry in summary.trials if entry.number == trial.number)
    if trial.state == "interrupted" and not status.shows_a_mistake:
        commands.insert(0, settings.command("resume", trial.study))
    print_table(trial_on_terminal(trial, summary, commands))


@expanded(READING)
def best(
    study: StudyName,
    *,
    all_code: Annotated[
        bool,
        flag("--all-code", help="Compare all trials, also those that ran under other code."),
    ] = False,
    where: Where = None,
    flags: Flags,
) -> None:
    """Show a study's best trial; with --json, the object that `show` prints.

    With several objectives: the trials of the Pareto front; with --json, a list of their objects.
    As CSV, one row for each trial.
    """
    settings = flags.settings()
    with open_repository(settings, PATIENCE) as reader:
        summary = reader.status(study, all_code=all_code, where=where or ())
        if where and summary.best is None and not summary.pareto:
            raise SweeperError(f"no complete trial of study {study!r} meets {' and '.join(where)}")
        _check_has_best(summary, settings)
        leading = [summary.best.number] if summary.best else [t.number for t in summary.pareto]
        trials = [reader.trial(study, number) for number in leading]
    if flags.as_json:
        front = [trial.to_json() for trial in trials]
        if summary.best:
            front[0]["value"] = summary.best.value
            for name in ("configurations", "confirmed"):
                front[0][name] = [record.to_json() for record in getattr(summary, name)]
        print_json(front[0] if summary.best else front)
        return
    if flags.as_csv:
        from sweeper.views.formats import trial_rows

        print_csv(trial_rows(trials))
        return
    from sweeper.views.tables import (
        TrialsTable,
        codes_lines,
        comparison_lines,
        exactness_line,
    )
    from sweeper.views.verb_tables import trial_on_terminal

    if summary.best:
        print_table(trial_on_terminal(_at_present(trials[0], settings), summary))
    else:
        print_table(TrialsTable([t for t in summary.trials if t.number in leading]))
    for line in comparison_lines(summary, settings.command("confirm", study)):
        print_table(line)
    for line in codes_lines(summary):
        print_table(line)
    if not summary.best:
        print_table(exactness_line(summary.exactness))


def _check_has_best(status: "StudyStatus", settings: "Settings") -> None:
    if status.best is not None or status.pareto:
        return
    if any(group.best is not None for group in status.codes):
        command = settings.command("best", status.study, "--all-code")
        raise SweeperError(
            f"study {status.study!r} has no complete trial under its present code, only under "
            f"earlier code; `{command}` ranks all trials"
        )
    advice = " or ".join(f"`{c}`" for c in next_commands(status, settings))
    from sweeper.records.results import none_complete

    errors = [trial.error for trial in status.trials if trial.state == "failed"]
    raise SweeperError(
        f"{none_complete(status.study, status.target, errors)}. No trial is the best one; see {advice}"
    )


def next_commands(status: "StudyStatus", settings: "Settings") -> list[str]:
    """Return commands to suggest after ``status``, exactly as they must be typed."""
    commands = []
    failed = [trial for trial in status.trials if trial.state == "failed"]
    would_fail_again = bool(failed) and all(trial.would_fail_again for trial in failed)
    mistaken = [trial for trial in status.trials if trial.shows_a_mistake]
    # Several trials that failed with one error have it from the study's code.
    alike = len(failed) > 1 and len({trial.error for trial in failed}) == 1
    if status.best is None and (mistaken or would_fail_again or alike):
        # Neither the waiting trials nor another attempt can succeed before the study is changed.
        return [settings.command("show", status.study, str((mistaken or failed)[0].number))]
    stuck = [t for t in status.trials if t.state == "interrupted" and t.error is not None]
    if stuck:
        # An error interrupted it, so its cause has to be fixed before a resume.
        commands.append(settings.command("show", status.study, str(stuck[0].number)))
    if status.finished < status.target and not status.running:
        exactness = status.exactness
        refused = exactness.difference is not None and not exactness.accepted
        words = ["--accept-inexact"] if refused else []
        commands.append(settings.command("resume", status.study, *words))
    standing = {record.state for record in status.confirmed}
    if standing & {"interrupted", "waiting"} and "running" not in standing:
        commands.append(settings.command("resume", confirmation_name(status.study)))
    if status.failed and not would_fail_again:
        commands.append(settings.command("retry", status.study, "--failed"))
    if status.best is not None:
        number = str(status.best.number)
        commands.append(settings.command("show", status.study, number))
        commands.append(settings.command("dashboard"))
    if status.pareto:
        commands.append(settings.command("best", status.study))
    return commands or [settings.command("status", status.study)]


@expanded(READING)
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
    flags: Flags,
) -> None:
    """Show trials side by side: parameters and metrics, differences marked."""
    keys = list(dict.fromkeys(_trial(study, word) for word in trials))
    if len(keys) < 2:
        raise UsageError(
            f"{' '.join(trials)} names one trial; name two or more, as in "
            f"`sweeper compare {study} 0 1`, or `sweeper compare {study} 0 OTHER:0`"
        )
    settings = flags.settings()
    with open_repository(settings, PATIENCE) as reader:
        records = [reader.trial(name, number) for name, number in keys]
    from sweeper.views.formats import trial_rows
    from sweeper.views.verb_tables import Comparison

    comparison = Comparison(records)
    if flags.as_json:
        print_json(comparison.to_json())
    elif flags.as_csv:
        print_csv(trial_rows(records))
    else:
        print_table(comparison)


def _trial(study: str, word: str) -> tuple[str, int]:
    name, _, number = word.rpartition(":")
    if not number.isdecimal():
        raise typer.BadParameter(
            f"{word!r} is not a trial; expected its number from 0, or STUDY:NUMBER",
            param_hint="N|STUDY:N",
        )
    try:
        return (check_name(name) if name else study), int(number)
    except DefinitionError as error:
        raise typer.BadParameter(str(error), param_hint="N|STUDY:N") from None


@expanded("storage runs_dir")
def dashboard(
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8080,
    flags: Flags,
) -> None:
    """Serve sweeper's page and optuna-dashboard for the database until Ctrl-C.

    Its URL is printed; sweeper's page is below it, at sweeper/.
    """
    from sweeper.views.page.dashboard import is_loopback, open_dashboard

    settings = flags.settings()
    server = open_dashboard(
        settings.storage,
        host,
        port,
        runs_dir=settings.runs_dir,
        advice=_advice(settings),
    )
    if not is_loopback(host):
        typer.echo(
            f"warning: the dashboard has no login, and everyone who can reach {host} can read the "
            "studies; to prevent this, use 127.0.0.1 and an SSH tunnel",
            err=True,
        )
    server.serve(_announce)


def _announce(url: str) -> None:
    typer.echo(f"The page of each study: {url}sweeper/", err=True)
    typer.echo("Ctrl-C stops it.", err=True)
    typer.echo(url)


def _advice(settings: "Settings") -> "Advice":
    from sweeper.views.page.payload import Advice

    return Advice(
        lambda status: next_commands(status, settings),
        lambda trial: trial_commands(trial, settings),
    )


def trial_commands(trial: "TrialRecord", settings: "Settings") -> list[str]:
    """Return commands to suggest after showing ``trial``, exactly as they must be typed."""
    number = str(trial.number)
    commands = [settings.command("logs", trial.study, number)]
    if trial.state == "failed":
        commands.append(settings.command("retry", trial.study, number))
    if trial.state == "interrupted":
        commands.append(settings.command("resume", trial.study))
    if trial.state == "complete":
        commands.append(settings.command("verify", trial.study, "--trial", number))
    return commands


PATIENCE = 10.0
"""Seconds that a reading verb waits for a busy database."""

LOOK_SECONDS = 0.5
"""Seconds between two reads of a log that is followed."""

_FINISHED = ("complete", "pruned", "failed")


@expanded("as_json storage runs_dir")
def logs(
    study: StudyName,
    number: TrialNumber,
    *,
    follow: Annotated[
        bool,
        flag(
            "-f",
            "--follow",
            help="Follow the log, through all attempts, until the trial has its result.",
        ),
    ] = False,
    attempt: Annotated[
        int | None,
        option("--attempt", "A", "The attempt, from 1. (default: the newest)", min=1),
    ] = None,
    flags: Flags,
) -> None:
    """Print the log of one of a trial's attempts."""
    if follow and flags.as_json:
        raise UsageError("--follow and --json were both given; give one of them")
    settings = flags.settings()
    paths = RunPaths(settings.runs_dir, study)
    with open_repository(settings, PATIENCE) as reader:
        if follow:
            _follow(reader, paths, study, number)
            return
        trial = reader.trial(study, number)
    record = _attempt(trial, attempt)
    path = paths.log(number, record.number)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unreadable(path, record, error) from None
    if not text:
        logs = [(a.number, paths.log(number, a.number)) for a in trial.attempts]
        others = ", ".join(str(n) for n, log in logs if log.is_file() and log.stat().st_size)
        hint = f"; attempts with output: {others} (--attempt)" if others else ""
        typer.echo(f"attempt {record.number} has printed nothing{hint}", err=True)
    if flags.as_json:
        print_json(
            {
                "study": study,
                "number": number,
                "attempt": record.number,
                "path": str(path),
                "text": text,
            }
        )
        return
    sys.stdout.write(text)


def _attempt(trial: "TrialRecord", number: int | None = None) -> "AttemptRecord":
    """Return the attempt of that number, by default the newest."""
    if not trial.attempts:
        raise SweeperError(
            f"trial {trial.number} of {trial.study!r} has not begun, so it has no log; see "
            "`sweeper status`"
        )
    for attempt in trial.attempts:
        if attempt.number == number:
            return attempt
    newest = trial.attempts[-1]
    if number is None:
        return newest
    raise UsageError(f"--attempt {number}: trial {trial.number} has attempts 1 to {newest.number}")


def _unreadable(path: Path, attempt: "AttemptRecord", error: OSError) -> SweeperError:
    where = f"it ran on {attempt.host}, below that machine's --runs-dir"
    if attempt.host == socket.gethostname():
        where = (
            "it ran on this machine: give the --runs-dir of that run. A trial that ran inline "
            "has no log, because it printed to its terminal"
        )
    return SweeperError(
        f"the log {path} of attempt {attempt.number} cannot be read: {error.strerror or error}; "
        f"{where}"
    )


def _follow(reader: "Repository", paths: RunPaths, study: str, number: int) -> None:
    """Print what each attempt writes, until the trial has its result or Ctrl-C ends it."""
    current: AttemptRecord | None = None
    read = 0
    over = False
    # A read may end between two bytes of one character.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        while not over:
            # The state is read before the log: if the trial has ended, the log is complete.
            trial = reader.trial(study, number)
            newest = _attempt(trial)
            current = current or newest
            later = current.number < newest.number
            over = trial.state in _FINISHED and not later
            data = _unread(paths.log(number, current.number), current, read, is_over=over or later)
            read += len(data)
            sys.stdout.write(decoder.decode(data, final=over or later))
            sys.stdout.flush()
            if later:
                current = next(a for a in trial.attempts if a.number > current.number)
                read = 0
                typer.echo(f"trial {number} resumes as attempt {current.number}", err=True)
                decoder.reset()
            elif not over:
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(Interrupted.exit_code) from None


def _unread(path: Path, attempt: "AttemptRecord", read: int, *, is_over: bool) -> bytes:
    """Return the bytes of a log after the first ``read`` ones; none if it may still be created."""
    try:
        with path.open("rb") as log:
            log.seek(read)
            return log.read()
    except OSError as error:
        here = attempt.host == socket.gethostname()
        if isinstance(error, FileNotFoundError) and here and not is_over:
            return b""
        raise _unreadable(path, attempt, error) from None


@expanded("storage runs_dir")
def report(
    study: StudyName,
    *,
    output: Annotated[
        Path | None,
        option("--output", "FILE.html", "The file. (default: STUDY-report.html)"),
    ] = None,
    force: Annotated[bool, flag("--force", help="Replace a file that is not a report.")] = False,
    flags: Flags,
) -> None:
    """Write a study's report: one HTML file with pictures; it needs no network."""
    from sweeper.views.page.report import make_report

    settings = flags.settings()
    page = make_report(study, settings, output=output, force=force, advice=_advice(settings))
    typer.echo(f"the report of study {study}, for a browser:", err=True)
    typer.echo(page)
