"""Studies as tables for people: all of them in a row each, and one with its trials.

Each function returns what rich can print. What was written by a user (names, parameters, errors) is
never read as rich's markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.records.code import CodeGroup
from sweeper.records.exactness import Exactness
from sweeper.records.status import ranked
from sweeper.report.figures.choosing import status_objectives
from sweeper.report.formats import one_line, params_text, time_text, value_text
from sweeper.report.trials import STATE_STYLES, TrialsTable
from sweeper.report.widths import plain_table
from sweeper.results import StudyStatus

SHOWN_TRIALS = 20
"""Of finished trials, on a terminal; a pipe gets all."""

_UNFINISHED = ("waiting", "running", "interrupted", "paused")


def objectives_text(status: StudyStatus) -> str:
    """Write what the study's trials are compared by: ``maximize val_accuracy``."""
    return ", ".join(f"{each.direction} {each.name}" for each in status_objectives(status))


def codes_lines(status: StudyStatus) -> list[RenderableType]:
    """Return which trials ran under which code, a line each; nothing where there is one code."""
    if not status.codes:
        return []
    lines: list[RenderableType] = [
        Text("trials ran under several codes, and each code's are ranked apart:", "bold yellow")
    ]
    for group in status.codes:
        numbers = ", ".join(map(str, group.trials))
        leader = "" if group.best is None else f", best {value_text(group.value, 6)} ({group.best})"
        now = ", the present one" if group.current else ""
        lines.append(Text(f"  {group.code}{now}: trials {numbers}{leader}"))
    return lines


def lengths_lines(status: StudyStatus) -> list[RenderableType]:
    """Return which trials train for how many epochs, where some were extended and others not."""
    lengths: dict[int, list[str]] = {}
    for trial in status.trials:
        lengths.setdefault(trial.epochs or 0, []).append(str(trial.number))
    if len(lengths) < 2:
        return []
    each = "; ".join(
        f"{epochs} for trial{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        for epochs, numbers in sorted(lengths.items(), reverse=True)
    )
    return [Text(f"epochs: {each}; trials are ranked by what each gave at its own length")]


def studies_table(statuses: Sequence[StudyStatus]) -> RenderableType:
    """Return a row per study: how far it is, what runs, what failed, the best value."""
    if not statuses:
        return Text("no studies yet; start one with: sweeper run FILE")
    table = plain_table("study")
    paused = any(status.paused for status in statuses)
    states = ["running", "interrupted", *["paused"] * paused, "failed", "waiting"]
    for name in ("done", *states, "best", "of trial"):
        table.add_column(name, justify="right", no_wrap=True)
    for status in statuses:
        table.add_row(
            Text(status.study),
            f"{status.finished}/{status.target}",
            *(_count(status, state) for state in states),
            value_text(status.best.value if status.best else None, 6),
            str(status.best.number) if status.best else "-",
        )
    warned = [s for s in statuses if s.exactness.warning is not None]
    if not warned:
        return table
    return Group(table, *(Text(f"{s.study}: {s.exactness.warning}", "bold red") for s in warned))


def _count(status: StudyStatus, state: str) -> Text:
    count = getattr(status, state)
    return Text(str(count), style="bold red" if state == "failed" and count else "")


def study_summary(status: StudyStatus, next_commands: Sequence[str]) -> RenderableType:
    """Return a study's objective and counts, its trials by rank, the best one, what to type next."""
    parts: list[RenderableType] = [_counts_line(status), Text(objectives_text(status))]
    unfinished = [trial for trial in status.trials if trial.state in _UNFINISHED]
    finished = [trial for trial in status.trials if trial.state not in _UNFINISHED]
    names = [each.name for each in status_objectives(status)]
    if unfinished:
        parts += [Text(""), TrialsTable(unfinished, latest=names)]
    if finished:
        table = TrialsTable(ranked(finished, status), codes=_codes(status.codes), most=SHOWN_TRIALS)
        parts += [Text(""), table]
    if status.trials:
        parts.append(Text(""))
    if status.pareto:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        parts.append(Text.assemble("Pareto front: ", (f"trials {numbers}", "bold cyan")))
    if status.best is not None:
        parts.append(
            Text.assemble(
                f"best: trial {status.best.number}  ",
                (value_text(status.best.value, 6), "bold cyan"),
                f"  {params_text(status.best.params)}",
            )
        )
    parts += lengths_lines(status)
    for branch in status.branches:
        whence = f"step {branch.step} of trial {branch.parent}"
        parts.append(Text(f"branch: trial {branch.number} from {whence}, {branch.state}"))
    parts += codes_lines(status)
    parts.append(exactness_line(status.exactness))
    return Group(*parts, *next_lines(next_commands))


def exactness_line(exactness: Exactness) -> Text:
    """Return what the study's audits found, in one line."""
    return Text(exactness.line, style="dim" if exactness.warning is None else "bold red")


def next_lines(commands: Sequence[str]) -> list[RenderableType]:
    """Return the commands to type next, a line each."""
    if not commands:
        return []
    return [Text(""), Text("next:", style="dim"), *(Text(f"  {one_line(c)}") for c in commands)]


def _counts_line(status: StudyStatus) -> Text:
    line = Text.assemble((status.study, "bold"), f"  {status.finished}/{status.target} done")
    for state in ("complete", "pruned", "failed", "running", "interrupted", "paused", "waiting"):
        count = getattr(status, state)
        if count:
            line.append(f", {count} ")
            line.append(state, style=STATE_STYLES[state])
    if status.seconds_left is not None:
        line.append(f", ~{time_text(status.seconds_left)} left")
    return line


def _codes(groups: Sequence[CodeGroup]) -> dict[int, str] | None:
    if len(groups) < 2:
        return None
    return {number: group.code for group in groups for number in group.trials}
