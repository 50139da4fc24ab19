"""``evaluate``: measure kept checkpoints on held-out data, and rank them across trials.

Exit code 0 where every checkpoint was measured, 3 where some could not be. Standard output holds the
ranking alone; progress, and what could not be measured, go to standard error.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.options import (
    AsCsv,
    AsJson,
    Debug,
    Quiet,
    RunsDir,
    Storage,
    StudyName,
    Verbose,
    verbosity_of,
)
from sweeper.cli.output import (
    check_one_form,
    print_csv,
    print_json,
    print_table,
    say_beginning,
)

if TYPE_CHECKING:
    from sweeper.evaluating.evaluate import StudyEvaluation
    from sweeper.settings import Settings

NOT_ALL = 3
"""The exit code where some checkpoints could not be evaluated."""


def evaluate(
    study: StudyName,
    *,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            metavar="N",
            min=0,
            help="The only trial to evaluate. (default: every trial)",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FILE:NAME",
            help="A Data or a function `trial -> Data`; its test data are used, or else its validation data. "
            "(default: the study's own Data(test=…))",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metric to rank by. (default: the study's objective without val_)",
            show_default=False,
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            "--direction",
            metavar="maximize|minimize",
            help="Whether a larger value is better. (default: the objective's, or by the name)",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            metavar="K",
            min=1,
            help="Print only the best K; all are evaluated and stored.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="Trials side by side. (default: one per core; env: SWEEPER_WORKERS)",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    _debug: Debug = False,
) -> None:
    """Evaluate every kept checkpoint on held-out data and rank them; exit 3 if some failed."""
    check_one_form(as_json=as_json, as_csv=as_csv)
    from sweeper.settings import load_settings

    verbosity = verbosity_of(quiet=quiet, verbose=verbose)
    settings = load_settings(storage=storage, runs_dir=runs_dir, workers=workers)
    if verbosity != "quiet":
        say_beginning(f"the study {study}")
    from sweeper.evaluating.evaluate import EvaluationRequest, evaluate_study
    from sweeper.evaluating.held_out import held_out_data
    from sweeper.execution.options import WorkerOptions
    from sweeper.report.terminal.listener import progress_listener

    with progress_listener(sys.stderr, verbosity) as progress:
        found = evaluate_study(
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
    shown = found.records[:top]
    if as_json:
        print_json([{"rank": rank, **each.to_json()} for rank, each in enumerate(shown, 1)])
    elif as_csv:
        from sweeper.report.rows import evaluation_rows

        print_csv(evaluation_rows(shown))
    else:
        from sweeper.report.evaluations import ranking_table

        print_table(ranking_table(shown, found.ranked_by))
    typer.echo(_export(found, settings), err=as_json or as_csv)
    if found.not_evaluated:
        raise typer.Exit(NOT_ALL)


def _export(found: "StudyEvaluation", settings: "Settings") -> str:
    """Return the command that exports the best model."""
    best = found.records[0]
    output = f"{found.study}-{best.trial}-{best.step}.keras"
    words = ["--trial", str(best.trial), "--at", str(best.step), "--format", "keras"]
    command = settings.command("export", found.study, *words, "--output", output)
    return f"the best is trial {best.trial} at step {best.step}; its model: {command}"
