"""What a report says, gathered: sentences and tables for the template, all of it plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sweeper.errors import UsageError
from sweeper.report.document.tables import (
    THROUGH,
    Row,
    Table,
    best_table,
    comparison_table,
    descent_table,
    environments_table,
    identity_table,
    interrupted_table,
    lengths_table,
    objectives_text,
    question_table,
    rungs_table,
    space_table,
    spread_table,
    trials_table,
    value_text_or_none,
    verified_table,
)
from sweeper.report.figures.choosing import objectives_of
from sweeper.results import StudyResults


@dataclass(frozen=True)
class Content:
    """A report's words.

    Attributes:
        budget: Who was promoted at rungs, who goes on from whom, and what trials gave at which length:
            those that there are.
        commands: What to type to get the same again, with what each does.
        notes: Warnings that a reader must see before the numbers.
    """

    study: str
    summary: str
    notes: tuple[str, ...]
    question: Table
    space: Table
    answer: str
    best: Table | None
    spread: Table
    compared: Table | None
    trials: Table
    budget: tuple[Table, ...]
    interrupted: Table
    interruptions: str
    verified: Table
    audits: str
    environments: Table
    commands: tuple[tuple[str, str], ...]
    identity: Table
    made_at: str


def content_of(
    results: StudyResults,
    row: Row,
    commands: Sequence[tuple[str, str]],
    made_at: datetime,
    compared: StudyResults | None,
) -> Content:
    """Gather what the report says.

    Args:
        results: The study's.
        row: The study as it is stored.
        commands: What to type, and what it does.
        made_at: Now.
        compared: Another study's results, of the same objective; see `check_comparable`.
    """
    status = results.status
    return Content(
        study=status.study,
        summary=_summary(results),
        notes=_notes(results, row),
        question=question_table(results, row),
        space=space_table(results),
        answer=_answer(results),
        best=best_table(results),
        spread=spread_table(results),
        compared=None if compared is None else comparison_table(results, compared),
        trials=trials_table(results),
        budget=tuple(
            table
            for table in (rungs_table(results), descent_table(results), lengths_table(results))
            if table is not None
        ),
        interrupted=interrupted_table(results),
        interruptions=_interruptions(results),
        verified=verified_table(results),
        audits=status.exactness.line,
        environments=environments_table(row.environments),
        commands=tuple(commands),
        identity=identity_table(results, row),
        made_at=f"{made_at:%Y-%m-%d %H:%M:%S} UTC",
    )


def check_comparable(results: StudyResults, other: StudyResults) -> None:
    """Check that two studies can stand side by side.

    Raises:
        UsageError: Their objectives differ, or the second is the first.
    """
    ours, theirs = objectives_of(results), objectives_of(other)
    one, two = results.status.study, other.status.study
    if one == two:
        msg = f"--compare {two} is the study itself; name another one (`sweeper ls` lists them)"
        raise UsageError(msg)
    if ours != theirs:
        msg = (
            f"studies {one!r} and {two!r} cannot be compared: the first has the objective "
            f"{objectives_text(results)}, the second {objectives_text(other)}; a number of one "
            "says nothing about one of the other"
        )
        raise UsageError(msg)


def _summary(results: StudyResults) -> str:
    status = results.status
    parts = [f"{status.complete} complete", f"{status.pruned} pruned", f"{status.failed} failed"]
    if status.running:
        parts.append(f"{status.running} running")
    if status.interrupted:
        parts.append(f"{status.interrupted} interrupted")
    if status.paused:
        parts.append(f"{status.paused} paused at a rung")
    if status.waiting:
        parts.append(f"{status.waiting} not begun")
    return f"{status.finished} of {status.target} trials are finished: {', '.join(parts)}."


def _notes(results: StudyResults, row: Row) -> tuple[str, ...]:
    status = results.status
    notes = []
    if status.exactness.warning is not None:
        notes.append(f"{status.exactness.warning[0].upper()}{status.exactness.warning[1:]}.")
    if row.definition.get("deterministic") is False:
        notes.append(
            "The study has deterministic=False: a trial that is run again need not give the same "
            "bits, nor need one that was resumed."
        )
    if len(status.codes) > 1:
        groups = "; ".join(
            f"{g.code}{' (the present one)' if g.current else ''}: trials "
            f"{', '.join(map(str, g.trials))}"
            for g in status.codes
        )
        notes.append(
            f"Trials ran under several definitions or codes, and are ranked apart: {groups}."
        )
    if status.finished < status.target:
        notes.append("The study is not finished; what follows is what there is so far.")
    return tuple(notes)


def _answer(results: StudyResults) -> str:
    status = results.status
    if status.objectives:
        if not status.pareto:
            return "No trial is complete yet."
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        return (
            f"With several objectives no one trial is the best; no other trial beats these in all: "
            f"{numbers}."
        )
    if status.best is None:
        return "No trial is complete yet."
    return (
        f"The best trial is {status.best.number}, with {status.objective} "
        f"{value_text_or_none(status.best.value)} ({status.direction})."
    )


def _interruptions(results: StudyResults) -> str:
    pauses = sum(a.outcome == "paused" for t in results.trials for a in t.attempts)
    paused = (
        f" Trials came to rungs of the budget {pauses} times; who was promoted there has gone on in "
        "another attempt, which is no interruption."
        if pauses
        else ""
    )
    several = [t for t in results.trials if any(a.outcome not in THROUGH for a in t.attempts[:-1])]
    if not several:
        each = "" if pauses else ": each ran in one attempt"
        return f"No trial was interrupted{each}.{paused}"
    return (
        f"{len(several)} of {len(results.trials)} trials were interrupted. An attempt goes on from the "
        f"newest checkpoint of the one before, at the step that is named.{paused}"
    )
