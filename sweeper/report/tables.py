"""Results as tables for people: every study, one study, one trial.

Each function returns what rich can print. What was written by a user (names, parameters, errors) is
never read as rich's markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.code import CodeGroup
from sweeper.exactness import AuditRecord, Exactness
from sweeper.report.formats import (
    objective_first,
    one_line,
    params_text,
    size_text,
    time_text,
    value_text,
)
from sweeper.results import AttemptRecord, BestTrial, StudyStatus, TrialRecord, VerificationRecord

__all__ = [
    "codes_lines",
    "exactness_line",
    "ranked",
    "studies_table",
    "study_summary",
    "trial_page",
    "trials_table",
]

_STATES = {
    "complete": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "pruned": "yellow",
    "failed": "bold red",
    "waiting": "dim",
}
_SHOWN_EPOCHS = 30
_DIGEST_SHOWN = 12


def ranked(trials: Iterable[TrialRecord], status: StudyStatus) -> list[TrialRecord]:
    """Sort trials best first: complete ones by value, then the others by number.

    The direction is read off ``status.best``: the study's best value is its greatest or its least.
    With several objectives, the trials of the Pareto front come first, then the rest by number.
    Where trials ran under several codes, those under the present one come first, and each code's
    are sorted apart.
    """
    if len(status.codes) > 1:
        known = {trial.number: trial for trial in trials}
        groups = sorted(status.codes, key=lambda group: not group.current)
        return [
            trial
            for group in groups
            for trial in ranked(
                [known[number] for number in group.trials if number in known],
                _of_group(status, group),
            )
        ]
    if status.objectives:
        leading = {trial.number for trial in status.pareto}
        return sorted(trials, key=lambda t: (t.number not in leading, t.number))
    complete: list[TrialRecord] = []
    others: list[TrialRecord] = []
    for trial in sorted(trials, key=lambda t: t.number):
        usable = trial.state == "complete" and trial.value is not None
        (complete if usable and math.isfinite(trial.value or 0.0) else others).append(trial)
    values = [trial.value for trial in complete if trial.value is not None]
    upwards = bool(values) and status.best is not None and status.best.value < max(values)
    complete.sort(key=lambda t: t.value or 0.0, reverse=not upwards)
    return complete + others


def _of_group(status: StudyStatus, group: CodeGroup) -> StudyStatus:
    best = None
    if group.best is not None and group.value is not None:
        best = BestTrial(group.best, group.value, {})
    return replace(status, codes=(), best=best)


def codes_lines(status: StudyStatus) -> list[RenderableType]:
    """Which trials ran under which code, where there are several; a line each."""
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


def studies_table(statuses: Sequence[StudyStatus]) -> RenderableType:
    """One row a study: how far it is, what runs, what failed, the best value."""
    if not statuses:
        return Text("no studies yet; start one with: sweeper run FILE")
    table = _table("study")
    for name in ("done", "running", "interrupted", "failed", "waiting", "best", "of trial"):
        table.add_column(name, justify="right", no_wrap=True)
    for status in statuses:
        table.add_row(
            Text(status.study),
            f"{status.finished}/{status.target}",
            str(status.running),
            str(status.interrupted),
            Text(str(status.failed), style="bold red" if status.failed else ""),
            str(status.waiting),
            value_text(status.best.value if status.best else None, 6),
            str(status.best.number) if status.best else "-",
        )
    warned = [s for s in statuses if s.exactness.warning is not None]
    if not warned:
        return table
    return Group(table, *(Text(f"{s.study}: {s.exactness.warning}", "bold red") for s in warned))


def study_summary(
    status: StudyStatus, trials: Sequence[TrialRecord], next_commands: Sequence[str]
) -> RenderableType:
    """One study: its counts, its trials by rank, its best trial, and what to type next."""
    counts = [
        (count, state)
        for state, count in (
            ("complete", status.complete),
            ("pruned", status.pruned),
            ("failed", status.failed),
            ("running", status.running),
            ("interrupted", status.interrupted),
            ("waiting", status.waiting),
        )
        if count
    ]
    header = Text.assemble(
        (status.study, "bold"), f"  {status.finished}/{status.target} done", style=""
    )
    for count, state in counts:
        header.append(f", {count} ")
        header.append(state, style=_STATES[state])
    parts: list[RenderableType] = [header]
    if trials:
        parts += [Text(""), trials_table(ranked(trials, status)), Text("")]
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
    parts += codes_lines(status)
    parts.append(exactness_line(status.exactness))
    parts += _next(next_commands)
    return Group(*parts)


def exactness_line(exactness: Exactness) -> Text:
    """What the study's audits found, in one line."""
    return Text(exactness.line, style="dim" if exactness.warning is None else "bold red")


def trials_table(trials: Sequence[TrialRecord]) -> Table:
    """One row a trial, in the order given: number, state, value, parameters, epochs, attempts.

    With several objectives each has a column of its own, in place of the value.
    """
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    objectives = list(dict.fromkeys(name for trial in trials for name in trial.values or ()))
    table = _table()
    table.add_column("trial", justify="right")
    table.add_column("state", no_wrap=True)
    for name in objectives or ["value"]:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    table.add_column("epochs", justify="right")
    table.add_column("attempts", justify="right")
    several = len({trial.code for trial in trials}) > 1
    if several:
        table.add_column("code", no_wrap=True)
    for trial in trials:
        table.add_row(
            str(trial.number),
            Text(trial.state, style=_STATES[trial.state]),
            *_values(trial, objectives),
            *(
                Text(params_text({name: trial.params[name]}).partition("=")[2])
                if name in trial.params
                else "-"
                for name in names
            ),
            str(len(trial.epochs)),
            str(len(trial.attempts)),
            *([trial.code or "-"] if several else []),
        )
    return table


def trial_page(
    trial: TrialRecord, next_commands: Sequence[str] = (), exactness: Exactness | None = None
) -> RenderableType:
    """One trial whole: its result, attempts, latest 30 epochs, checkpoints and audits."""
    parts: list[RenderableType] = [_head(trial)]
    if trial.error:
        parts += [Text(""), Text(trial.error.rstrip("\n"), style="red")]
    if trial.attempts:
        parts += [Text(""), _attempts_table(trial.attempts)]
    if trial.epochs:
        parts += [Text(""), *_epochs(trial)]
    if trial.checkpoints:
        parts += [Text(""), _checkpoints_table(trial)]
    if trial.audits:
        parts += [Text(""), _audits_table(trial.audits)]
    if exactness is not None:
        parts += [Text(""), exactness_line(exactness)]
    return Group(*parts, *_next(next_commands))


def _head(trial: TrialRecord) -> Table:
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column(overflow="fold")
    head.add_row("trial", Text(f"{trial.study} {trial.number}", style="bold"))
    head.add_row("state", Text(trial.state, style=_STATES[trial.state]))
    if trial.values is None:
        head.add_row("value", value_text(trial.value, 6))
    for name, value in (trial.values or {}).items():
        head.add_row(Text(name), value_text(value, 6))
    head.add_row("params", Text(params_text(trial.params) or "-"))
    head.add_row("seed", str(trial.seed))
    head.add_row("digest", trial.digest or "-")
    head.add_row("code", trial.code or "-")
    if trial.output_only:
        head.add_row("not captured", Text(f"{', '.join(trial.output_only)} (output only)"))
    if trial.verification is not None:
        head.add_row("verified", _verification(trial.verification))
    return head


def _verification(found: VerificationRecord) -> Text:
    how = "killed and resumed" if found.mode == "interrupt" else "replayed"
    style = {"holds": "green", "differs": "bold red"}.get(found.verdict, "yellow")
    text = Text(found.verdict, style=style)
    text.append(f"  {how} {found.checked_at:%Y-%m-%d %H:%M:%S}", style="dim")
    text.append(f"\n{one_line(str(found.report.get('message', '')))}", style="")
    return text


def _values(trial: TrialRecord, objectives: Sequence[str]) -> list[str]:
    if not objectives:
        return [value_text(trial.value, 6)]
    return [value_text((trial.values or {}).get(name), 6) for name in objectives]


def _attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    table = _table()
    for name in ("attempt", "outcome", "steps", "where", "began", "took"):
        table.add_column(name, justify="right" if name in {"attempt", "took"} else "left")
    for attempt in attempts:
        took = (
            None
            if attempt.ended_at is None
            else (attempt.ended_at - attempt.started_at).total_seconds()
        )
        start = "?" if attempt.start_step is None else str(attempt.start_step)
        end = "" if attempt.end_step is None else str(attempt.end_step)
        table.add_row(
            str(attempt.number),
            Text(attempt.outcome or "running"),
            f"{start}-{end}",
            Text(f"{attempt.host}:{attempt.pid if attempt.pid is not None else '?'}"),
            f"{attempt.started_at:%Y-%m-%d %H:%M:%S}",
            time_text(took),
        )
    return table


def _epochs(trial: TrialRecord) -> list[RenderableType]:
    shown = trial.epochs[-_SHOWN_EPOCHS:]
    names = objective_first(dict.fromkeys((n for e in shown for n in e.metrics), 0.0), None)
    hidden = len(trial.epochs) - len(shown)
    table = _table()
    table.add_column("epoch", justify="right")
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    for epoch in shown:
        table.add_row(str(epoch.epoch), *(value_text(epoch.metrics.get(name), 6) for name in names))
    cut = [Text(f"{hidden} earlier epochs: use --json", style="dim")] if hidden else []
    return [*cut, table]


def _checkpoints_table(trial: TrialRecord) -> Table:
    table = _table()
    for name in ("step", "epoch", "size"):
        table.add_column(name, justify="right")
    table.add_column("digest", no_wrap=True)
    table.add_column("path", overflow="fold")
    for checkpoint in trial.checkpoints:
        table.add_row(
            str(checkpoint.step),
            str(checkpoint.epoch),
            size_text(checkpoint.bytes),
            checkpoint.digest[:_DIGEST_SHOWN],
            Text(checkpoint.path),
        )
    return table


def _audits_table(audits: Sequence[AuditRecord]) -> Table:
    table = _table()
    table.add_column("audited steps", justify="right")
    table.add_column("found", no_wrap=True)
    table.add_column("", overflow="fold")
    for audit in audits:
        style = {"alike": "green", "differs": "bold red"}.get(audit.outcome or "", "yellow")
        table.add_row(
            f"{audit.from_step}-{audit.to_step}",
            Text(audit.outcome or "waits", style=style),
            Text(one_line(audit.message or "")),
        )
    return table


def _next(commands: Sequence[str]) -> list[RenderableType]:
    if not commands:
        return []
    return [Text(""), Text("next:", style="dim"), *(Text(f"  {one_line(c)}") for c in commands)]


def _table(first: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    if first is not None:
        table.add_column(first, overflow="fold")
    return table
