"""``verify``: run finished trials again, and say whether they give what is stored.

Exit code 0 where every promise holds, 4 where one does not. Standard output holds the verdicts
alone; progress goes to standard error.
"""

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sweeper.cli.options import (
    AsJson,
    Debug,
    Quiet,
    RunsDir,
    Storage,
    StudyName,
    Verbose,
    verbosity_of,
)
from sweeper.cli.output import print_json, say_beginning, strict
from sweeper.errors import SweeperError, UsageError

if TYPE_CHECKING:
    from sweeper.verification.findings import StudyVerification, TrialVerification

BROKEN_PROMISE = 4
"""The exit code where a promise does not hold."""

_SHOWN_FINDINGS = 12


def verify(
    study: StudyName,
    *,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            metavar="N",
            min=0,
            help="The trial to verify. (default: the best one)",
            show_default=False,
        ),
    ] = None,
    all_trials: Annotated[
        bool, typer.Option("--all", metavar="", help="Verify every finished trial.")
    ] = False,
    interrupt: Annotated[
        bool,
        typer.Option(
            "--interrupt", metavar="", help="Kill each replay at a random step and resume it."
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Seed of the steps to kill at. (default: random; it is printed)",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Replays side by side. (default: one per core; env: SWEEPER_WORKERS)",
            show_default=False,
        ),
    ] = None,
    from_parent: Annotated[
        bool,
        typer.Option(
            "--from-parent",
            metavar="",
            help="Replay a branch from its parent's kept checkpoint, without replaying its ancestors.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="PATH",
            help="Also write the JSON report to this file.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Replay finished trials and compare every bit; exit 4 if a promise does not hold."""
    from sweeper.settings import load_settings

    if trial is not None and all_trials:
        msg = "--trial N and --all were both given; give one of them"
        raise UsageError(msg)
    settings = load_settings(storage=storage, runs_dir=runs_dir, workers=workers)
    verbosity = verbosity_of(quiet=quiet, verbose=verbose)
    if verbosity != "quiet":
        say_beginning(f"the study {study}")
    which: int | Literal["best", "all"] = "best" if trial is None else trial
    kill_seed = secrets.randbelow(1 << 32) if seed is None else seed
    if interrupt:
        typer.echo(f"replays are killed at steps drawn from --seed {kill_seed}", err=True)
    from sweeper.report.terminal.listener import progress_listener
    from sweeper.verification.verify import VerifyRequest, verify_study

    with progress_listener(sys.stderr, verbosity) as progress:
        found = verify_study(
            VerifyRequest(
                study=study,
                which="all" if all_trials else which,
                interrupt=interrupt,
                seed=kill_seed,
                workers=settings.workers,
                isolation=settings.isolation,
                storage=settings.storage,
                runs_dir=settings.runs_dir,
                listener=progress,
                from_parent=from_parent,
            )
        )
    if report is not None:
        _write(report, found)
    if as_json:
        print_json(found.to_json())
    else:
        for line in _lines(found):
            typer.echo(line)
    if not found.holds:
        raise typer.Exit(BROKEN_PROMISE)


def _write(path: Path, found: "StudyVerification") -> None:
    import json

    text = json.dumps(strict(found.to_json()), allow_nan=False, ensure_ascii=False, indent=2)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        msg = f"the report cannot be written to {path}: {error.strerror or error}"
        raise SweeperError(msg) from None


def _lines(found: "StudyVerification") -> list[str]:
    """Format the verdicts for people: one line for each trial, then its differences and their likely causes."""
    lines = [line for trial in found.trials for line in _trial_lines(trial)]
    lines += [f"trial {each.number} passed over: it {each.reason}" for each in found.passed_over]
    good = sum(trial.verdict != "differs" for trial in found.trials)
    lines.append(f"{good} of {len(found.trials)} verified trials hold")
    if found.codes:
        lines.append(
            "the study is mixed: its trials ran under several codes, so they do not compare"
        )
        lines += [
            f"  {group.code}{', the present one' if group.current else ''}: trials "
            f"{', '.join(map(str, group.trials))}"
            for group in found.codes
        ]
    return lines


def _trial_lines(trial: "TrialVerification") -> list[str]:
    from sweeper.report.formats import one_line, time_text

    took = "" if trial.replay is None else f"  ({time_text(trial.replay.seconds)})"
    if trial.verdict == "differs":
        lines = [f"trial {trial.number} DIFFERS{took}"]
        worth = [f for f in trial.findings if f.level == "error"]
        lines += [f"  {one_line(f.message)}" for f in worth[:_SHOWN_FINDINGS]]
        if len(worth) > _SHOWN_FINDINGS:
            lines.append(f"  and {len(worth) - _SHOWN_FINDINGS} more: --json has them")
    else:
        lines = [f"trial {trial.number} {trial.verdict}: {trial.message}{took}"]
    lines += [
        f"  {finding.level}: {one_line(finding.message)}"
        for finding in trial.findings
        if finding.level != "error"
    ]
    if trial.explanations:
        what = (
            "could explain it"
            if trial.verdict == "differs"
            else "is different on this machine, and does not change the result"
        )
        lines.append(f"  what {what}: {'; '.join(trial.explanations)}")
    elif trial.unexplained:
        lines.append("  nothing that is known of the surroundings could explain it")
    return lines
