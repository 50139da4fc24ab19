"""Verbs that show whether the promises hold: ``check``, ``doctor``, ``evaluate`` and ``verify``.

``verify``: exit code 0 if every promise holds, otherwise 4. Standard output has only the verdicts;
progress goes to standard error.

``evaluate``: exit code 0 if every checkpoint was measured, 3 if some could not be. Standard output
has only the ranking; progress and failures go to standard error.

``doctor``: exit code 0 if everything is in order, 1 if no study can run, 4 if a promise cannot be
kept on this machine. Notes do not change the exit code.

``check``: exit code 4 if a promise does not hold, that is, if there is an error among the findings.
"""

import secrets
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from sweeper.cli.options import READING, Flags, StudyFile, StudyName, expanded, flag, option
from sweeper.cli.output import (
    json_text,
    print_csv,
    print_importing,
    print_json,
    print_report,
    print_table,
)
from sweeper.errors import SweeperError, UsageError

DOES_NOT_HOLD = 4
"""Exit code if a promise does not hold."""

_NOT_ALL = 3
"""Exit code if some checkpoints could not be evaluated."""


@expanded("workers as_json")
def check(source: StudyFile, *, flags: Flags) -> None:
    """Check a study before it runs: independence, exactness, limits of the promises, cost."""
    from sweeper.definition.declared import check_target

    check_target(source)
    print_importing(source)
    from sweeper.checks.check import check_study

    settings = flags.settings()
    report = check_study(
        source,
        workers=settings.workers,
        notify=lambda activity: typer.echo(f"{activity} ...", err=True),
    )
    if flags.as_json:
        print_json(report.to_json())
    else:
        print_report(report)
        if report.holds:
            typer.echo(f"\nnext:\n  {settings.command('run', source, workers=flags.workers)}")
    if not report.holds:
        raise typer.Exit(1 if report.lacks_packages else DOES_NOT_HOLD)


@expanded("as_json storage runs_dir")
def doctor(*, flags: Flags) -> None:
    """Check versions, kernels and the database's disk; exit 1 if broken, 4 if a promise cannot hold."""
    from sweeper.checks.doctor import diagnose

    settings = flags.settings()
    diagnosis = diagnose(settings)
    if flags.as_json:
        print_json(diagnosis.to_json())
    else:
        from sweeper.views.verb_tables import diagnosis_page

        print_table(diagnosis_page(diagnosis))
    if diagnosis.exit_code:
        raise typer.Exit(diagnosis.exit_code)


@expanded(f"workers quiet verbose {READING}")
def evaluate(
    study: StudyName,
    *,
    trial: Annotated[
        int | None,
        option("--trial", "N", "The only trial to evaluate. (default: every trial)", min=0),
    ] = None,
    data: Annotated[
        str | None,
        option(
            "--data",
            "FILE:NAME",
            "A Data or a function `trial -> Data`; its test data are used, or else its validation data. "
            "(default: the study's own Data(test=…))",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "--metric", "NAME", "Metric to rank by. (default: the study's objective without val_)"
        ),
    ] = None,
    direction: Annotated[
        str | None,
        option(
            "--direction",
            "maximize|minimize",
            "Whether a larger value is better. (default: the objective's, or by the name)",
        ),
    ] = None,
    top: Annotated[
        int | None,
        option("--top", "K", "Print only the best K; all are evaluated and stored.", min=1),
    ] = None,
    flags: Flags,
) -> None:
    """Evaluate every kept checkpoint on held-out data and rank them; exit 3 if some failed."""
    settings = flags.settings()
    if data is not None:
        from sweeper.definition.loading import split_data_target

        # Before the imports that take seconds.
        split_data_target(data)
    if not flags.quiet:
        print_importing(f"the study {study}")
    from sweeper.api.evaluating import EvaluationRequest, evaluate_study, held_out_data
    from sweeper.run.options import WorkerOptions
    from sweeper.views.terminal.live import progress_listener

    with progress_listener(sys.stderr, flags.verbosity) as progress:
        evaluation = evaluate_study(
            EvaluationRequest(
                study=study,
                options=WorkerOptions.resolved(settings, slots=settings.workers),
                listener=progress,
                trial=trial,
                data=held_out_data(data),
                metric=metric,
                direction=direction,
            )
        )
    records = evaluation.records[:top]
    if flags.as_json:
        print_json([{"rank": rank, **record.to_json()} for rank, record in enumerate(records, 1)])
    elif flags.as_csv:
        from sweeper.views.formats import evaluation_rows

        print_csv(evaluation_rows(records))
    else:
        from sweeper.views.verb_tables import ranking_table

        print_table(ranking_table(records, evaluation.ranked_by))
    best = evaluation.records[0]
    words = ["--trial", str(best.trial), "--at", str(best.step), "--format", "keras"]
    output = f"{study}-{best.trial}-{best.step}.keras"
    command = settings.command("export", study, *words, "--output", output)
    message = f"the best is trial {best.trial} at step {best.step}; its model: {command}"
    typer.echo(message, err=flags.as_json or flags.as_csv)
    if evaluation.not_evaluated:
        raise typer.Exit(_NOT_ALL)


@expanded("workers quiet verbose as_json storage runs_dir")
def verify(
    study: StudyName,
    *,
    trial: Annotated[
        int | None,
        option("--trial", "N", "The trial to verify. (default: the best one)", min=0),
    ] = None,
    all_trials: Annotated[bool, flag("--all", help="Verify every finished trial.")] = False,
    interrupt: Annotated[
        bool,
        flag("--interrupt", help="Kill each replay at a random step and resume it."),
    ] = False,
    seed: Annotated[
        int | None,
        option(
            "--seed", "N", "Seed of the steps to kill at. (default: random; it is printed)", min=0
        ),
    ] = None,
    report: Annotated[
        Path | None,
        option("--report", "PATH", "Also write the JSON report to this file."),
    ] = None,
    flags: Flags,
) -> None:
    """Replay finished trials and compare every bit; exit 4 if a promise does not hold."""
    if trial is not None and all_trials:
        raise UsageError("--trial N and --all were both given; give one of them")
    settings = flags.settings()
    if not flags.quiet:
        print_importing(f"the study {study}")
    which: int | Literal["best", "all"] = "best" if trial is None else trial
    kill_seed = secrets.randbelow(1 << 32) if seed is None else seed
    if interrupt:
        typer.echo(f"replays are killed at steps drawn from --seed {kill_seed}", err=True)
    from sweeper.checks.verify import VerifyRequest, verify_study
    from sweeper.run.options import WorkerOptions
    from sweeper.views.terminal.live import progress_listener

    with progress_listener(sys.stderr, flags.verbosity) as progress:
        verification = verify_study(
            VerifyRequest(
                study=study,
                which="all" if all_trials else which,
                interrupt=interrupt,
                seed=kill_seed,
                options=WorkerOptions.resolved(settings, slots=settings.workers),
                listener=progress,
            )
        )
    if report is not None:
        try:
            report.write_text(f"{json_text(verification.to_json())}\n", encoding="utf-8")
        except OSError as error:
            raise SweeperError(
                f"the report cannot be written to {report}: {error.strerror or error}"
            ) from None
    if flags.as_json:
        print_json(verification.to_json())
    else:
        typer.echo(str(verification))
    if not verification.holds:
        raise typer.Exit(DOES_NOT_HOLD)
