"""Pages of a study and of all studies, for reports and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sweeper.errors import UsageError
from sweeper.records.results import StudyResults, StudyStatus
from sweeper.views.figures.drawing import objectives_of
from sweeper.views.formats import time_text, value_text
from sweeper.views.pages import tables
from sweeper.views.pages.content import (
    Cell,
    Link,
    Page,
    Picture,
    Row,
    Section,
    Table,
    numbers,
    texts,
)
from sweeper.views.pages.tables import THROUGH, Shown, objectives_text, value_cell
from sweeper.views.tables import objectives_text as goals_text

T = TypeVar("T")

_COUNTS = ("complete", "running", "interrupted", "paused", "pruned", "failed", "waiting")


@dataclass(frozen=True, slots=True)
class Frame:
    """Context of a study's page: a file, or the dashboard.

    Attributes:
        commands: Commands with their effects.
        heading: Heading above the commands.
        compared: Another study's results with the same objective; see `check_comparable`.
        served: Whether the page is served by the dashboard.
        elsewhere: Link to the study in optuna-dashboard.
    """

    commands: tuple[tuple[str, str], ...]
    heading: str
    compared: StudyResults | None = None
    served: bool = False
    elsewhere: Link | None = None


def study_page(shown: Shown, pictures: Sequence[Picture], frame: Frame) -> Page:
    """Return the page of a study."""
    results, status = shown.results, shown.results.status
    given = {picture.key: picture for picture in pictures}
    sections = (
        _running(shown),
        Section(
            "answer",
            "The answer",
            (_answer(results),),
            tables=_there(tables.leaders_table(shown), tables.spread_table(results)),
            answers=True,
        ),
        _section("compared", "Beside another study", _compared(results, frame.compared)),
        *(
            Section(f"{key}-section", picture.heading, picture=picture)
            for key, picture in given.items()
        ),
        _section(
            "budget",
            "Resumed trials",
            tables.rungs_table(results),
            tables.lengths_table(results.trials, shown.address),
        ),
        Section(
            "interrupted",
            "Interrupted and resumed attempts",
            (_interruptions(results),),
            tables=(tables.interrupted_table(shown),),
        ),
        Section(
            "verified",
            "Verifications and audits",
            (status.exactness.line,),
            tables=(tables.verified_table(results.trials, shown.address),),
        ),
        Section("trials", "All trials", tables=(tables.all_trials_table(shown),)),
        Section(
            "question",
            "What was asked",
            tables=(tables.settings_table(shown), tables.space_table(results)),
        ),
        _section("workers", "Workers", tables.workers_table(shown.workers))
        if shown.workers
        else None,
        Section(
            "environment",
            "The environment",
            tables=(tables.environments_table(shown.environments), tables.identity_table(shown)),
        ),
        Section("commands", frame.heading, commands=frame.commands) if frame.commands else None,
    )
    return Page(
        title=status.study if frame.served else f"{status.study}: report",
        heading=status.study,
        lead=f"{goals_text(status)} · {status.finished} of {status.target} trials done",
        counts=tuple((n, str(getattr(status, n))) for n in _COUNTS if getattr(status, n)),
        notices=_notices(shown, served=frame.served),
        sections=_there(*sections),
        path=(Link(status.study),) if frame.served else (),
        elsewhere=frame.elsewhere,
        live=status.running > 0 or any(worker.live for worker in shown.workers),
    )


def index_page(
    statuses: Sequence[StudyStatus],
    optuna_ids: Mapping[str, int],
    study_address: Callable[[str], str],
    trial_address: Callable[[str, int], str],
) -> Page:
    """Return the page of all studies of a database, the newest first."""
    shown = tuple(reversed(statuses))
    rows: tuple[Row, ...] = tuple(
        (
            Cell("", links=(Link(status.study, study_address(status.study)),)),
            goals_text(status),
            f"{status.finished} of {status.target}",
            *(
                str(getattr(status, name))
                for name in ("running", "interrupted", "failed", "waiting")
            ),
            _best(status, trial_address),
            Cell(
                "",
                links=(
                    Link(
                        "optuna-dashboard",
                        f"/dashboard/studies/{optuna_ids[status.study]}",
                        f"{status.study} in optuna-dashboard",
                    ),
                ),
            ),
        )
        for status in shown
    )
    columns = (
        *texts("study", "objective"),
        *numbers("done", "running", "interrupted", "failed", "waiting", "best"),
        *texts("elsewhere"),
    )
    there = Section(
        "studies", "All studies", tables=(Table("All studies", columns, rows, "study"),)
    )
    none = Section(
        "studies", "All studies", ("There is no study in this database yet: sweeper run FILE.",)
    )
    return Page(
        title="Studies",
        heading="Studies",
        notices=tuple(
            f"{s.study}: {s.exactness.warning}" for s in shown if s.exactness.warning is not None
        ),
        sections=(there if shown else none,),
        live=any(status.running for status in shown),
    )


def _best(status: StudyStatus, address: Callable[[str, int], str]) -> Cell:
    best = status.best
    if best is None:
        return Cell("-")
    link = Link(f"trial {best.number}", address(status.study, best.number))
    return Cell(f"{value_text(best.value, 6)} of", links=(link,))


def check_comparable(results: StudyResults, other: StudyResults) -> None:
    """Check that two studies can be compared.

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
            f"{objectives_text(results)}, the second {objectives_text(other)}; their values "
            "cannot be compared"
        )
        raise UsageError(msg)


def _there(*given: T | None) -> tuple[T, ...]:
    return tuple(each for each in given if each is not None)


def _section(id: str, heading: str, *given: Table | None) -> Section | None:  # noqa: A002 - HTML's
    found = _there(*given)
    return Section(id, heading, tables=found) if found else None


def _running(shown: Shown) -> Section | None:
    table, left = tables.running_table(shown), shown.results.status.seconds_left
    if table is None:
        return None
    words = () if left is None else (f"About {time_text(left)} left.",)
    return Section("running", "Running now", words, tables=(table,))


def _compared(results: StudyResults, other: StudyResults | None) -> Table | None:
    return None if other is None else tables.comparison_table(results, other)


def _notices(shown: Shown, *, served: bool) -> tuple[str, ...]:
    """Return the notices above the numbers; only a file says that the study is not finished."""
    status, found = shown.results.status, []
    if status.exactness.warning is not None:
        found.append(f"{status.exactness.warning[0].upper()}{status.exactness.warning[1:]}.")
    if shown.row.definition.get("deterministic") is False:
        found.append(
            "The study has deterministic=False: a repeated or resumed trial may give other bits."
        )
    if len(status.codes) > 1:
        groups = "; ".join(
            f"{g.code}{' (the present one)' if g.current else ''}: trials "
            f"{', '.join(map(str, g.trials))}"
            for g in status.codes
        )
        found.append(
            f"Trials ran under different definitions or code, and are ranked separately: {groups}."
        )
    if status.finished < status.target and not served:
        found.append("The study is not finished; this page shows its present state.")
    return tuple(found)


def _answer(results: StudyResults) -> str:
    status = results.status
    if status.objectives and status.pareto:
        front = ", ".join(str(trial.number) for trial in status.pareto)
        return (
            "With several objectives there is no single best trial; no other trial beats these "
            f"in all objectives: {front}."
        )
    if status.best is None:
        return "No trial is complete yet."
    return (
        f"The best trial is {status.best.number}, with {status.objective} "
        f"{value_cell(status.best.value)} ({status.direction})."
    )


def _interruptions(results: StudyResults) -> str:
    pauses = sum(a.outcome == "paused" for t in results.trials for a in t.attempts)
    paused = (
        f" Trials paused at rungs of the budget {pauses} times; a promoted trial resumes in "
        "another attempt, which is not an interruption."
        if pauses
        else ""
    )
    several = [t for t in results.trials if any(a.outcome not in THROUGH for a in t.attempts[:-1])]
    if not several:
        each = "" if pauses else ": each ran in one attempt"
        return f"No trial was interrupted{each}.{paused}"
    return (
        f"{len(several)} of {len(results.trials)} trials were interrupted. An attempt resumes "
        f"from the newest checkpoint of the one before, at the given step.{paused}"
    )
