"""One trial as tables: its result, attempts, epochs, checkpoints, evaluations and audits.

Epochs are counted from 1, and a checkpoint's are those that it comes after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.records.ancestry import ParentRecord
from sweeper.records.exactness import AuditRecord, Exactness
from sweeper.report.evaluations import trial_evaluations_table
from sweeper.report.formats import (
    objective_first,
    one_line,
    params_text,
    size_text,
    time_text,
    value_text,
)
from sweeper.report.rungs import rungs_table
from sweeper.report.tables import exactness_line, next_lines
from sweeper.report.trials import STATE_STYLES
from sweeper.report.widths import WholeColumns, plain_table
from sweeper.results import AttemptRecord, TrialRecord, VerificationRecord

_SHOWN_EPOCHS = 30
_DIGEST_SHOWN = 12


def trial_page(
    trial: TrialRecord,
    next_commands: Sequence[str] = (),
    exactness: Exactness | None = None,
    objective: str | None = None,
) -> RenderableType:
    """One trial whole: its result, attempts, latest 30 epochs, lengths, checkpoints and the rest."""
    parts: list[RenderableType] = [_head(trial)]
    if trial.error:
        parts += [Text(""), Text(trial.error.rstrip("\n"), style="red")]
    if trial.attempts:
        parts += [Text(""), _attempts_table(trial.attempts)]
    if trial.rungs:
        parts += [Text(""), rungs_table(trial.rungs, trial.number)]
    if trial.epochs:
        parts += [Text(""), *_epochs(trial, objective)]
    if trial.earlier_lengths:
        parts += [Text(""), _lengths_table(trial)]
    if trial.checkpoints:
        parts += [Text(""), _checkpoints_table(trial)]
    if trial.evaluations:
        parts += [Text(""), trial_evaluations_table(trial.evaluations)]
    if trial.audits:
        parts += [Text(""), _audits_table(trial.audits)]
    if exactness is not None:
        parts += [Text(""), exactness_line(exactness)]
    return Group(*parts, *next_lines(next_commands))


def _head(trial: TrialRecord) -> Table:
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_column(overflow="fold")
    head.add_row("trial", Text(f"{trial.study} {trial.number}", style="bold"))
    head.add_row("state", Text(trial.state, style=STATE_STYLES[trial.state]))
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
    if trial.parent is not None:
        head.add_row("branch", Text(_branch(trial.parent, trial.branch_report)))
    if trial.warm_start is not None:
        head.add_row("began from", Text(_began_from(trial.warm_start)))
    if trial.verification is not None:
        head.add_row("verified", _verification(trial.verification))
    return head


def _branch(parent: ParentRecord, report: Mapping[str, Any] | None) -> str:
    changed = ", ".join(f"{name}={value!r}" for name, value in parent.changed.items())
    text = f"from step {parent.step} of trial {parent.number} ({parent.digest[:8]}), with "
    text += changed or "no parameter changed"
    if report is None:
        return text
    kept = ", ".join(report["kept"]) or "nothing"
    return f"{text}\n{len(report['taken'])} variables taken, kept as the branch makes it: {kept}"


def _began_from(report: Mapping[str, Any]) -> str:
    matched, left = len(report["matched"]), len(report["mismatches"])
    rest = f", {left} that did not fit" if left else ""
    return f"{report['path']} ({report['kind']}, {report['digest'][:8]}): {matched} variables{rest}"


def _verification(found: VerificationRecord) -> Text:
    how = "killed and resumed" if found.mode == "interrupt" else "replayed"
    style = {"holds": "green", "differs": "bold red"}.get(found.verdict, "yellow")
    text = Text(found.verdict, style=style)
    text.append(f"  {how} {found.checked_at:%Y-%m-%d %H:%M:%S}", style="dim")
    text.append(f"\n{one_line(str(found.report.get('message', '')))}", style="")
    return text


def _attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    table = plain_table()
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


def _epochs(trial: TrialRecord, objective: str | None) -> list[RenderableType]:
    shown = trial.epochs[-_SHOWN_EPOCHS:]
    names = objective_first(dict.fromkeys((n for e in shown for n in e.metrics), 0.0), objective)
    hidden = len(trial.epochs) - len(shown)
    rows = [
        [str(epoch.epoch + 1), *(value_text(epoch.metrics.get(name), 6) for name in names)]
        for epoch in shown
    ]
    cut = [Text(f"{hidden} earlier epochs: use --json or --csv", style="dim")] if hidden else []
    return [*cut, WholeColumns(("epoch", *names), rows, least=2)]


def _lengths_table(trial: TrialRecord) -> Table:
    """What an extended trial gave at each of its lengths."""
    table = plain_table()
    for name in ("length", "epochs trained", "value"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("digest", no_wrap=True)
    for length in trial.lengths:
        named: Mapping[str, float | None] = length.values or {"": length.value}
        table.add_row(
            str(length.epochs),
            str(length.trained),
            Text("  ".join(f"{n} {value_text(v, 6)}".strip() for n, v in named.items())),
            Text(length.state),
            (length.digest or "-")[:_DIGEST_SHOWN],
        )
    return table


def _checkpoints_table(trial: TrialRecord) -> Table:
    table = plain_table()
    for name in ("step", "after epoch", "size"):
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
    table = plain_table()
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
