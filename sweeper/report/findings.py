"""What a check found, as a page: findings with their lines, what holds, what the study will cost."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.replay.check_report import CheckReport, Estimate, Finding, Level
from sweeper.report.formats import one_line, size_text, time_text

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def check_page(report: CheckReport, next_commands: tuple[str, ...] = ()) -> RenderableType:
    """Return what `sweeper check` prints.

    Args:
        report: What was found.
        next_commands: What is worth typing next.
    """
    levels: tuple[Level, ...] = ("error", "warning", "note")
    counts = [
        f"{count} {level}{'' if count == 1 else 's'}"
        for level in levels
        if (count := report.count(level))
    ]
    verdict = ("holds", "green") if report.holds else ("a promise does not hold", "bold red")
    if report.lacks_packages:
        verdict = ("cannot run: a package is missing", "bold red")
    parts: list[RenderableType] = [
        Text.assemble(
            (report.study, "bold"), "  ", verdict, f"  {', '.join(counts) or 'nothing found'}"
        )
    ]
    for finding in report.findings:
        parts += [Text(""), *_finding(finding)]
    if report.held:
        parts.append(Text(""))
        parts += [Text.assemble(("holds    ", "green"), one_line(each)) for each in report.held]
    if report.metrics:
        names = ", ".join(report.metrics)
        parts += [Text(""), Text.assemble(("metrics  ", "dim"), names)]
    if report.estimate is not None:
        parts += [Text(""), _estimate(report.estimate)]
    if report.inline:
        said = f"with isolation='inline' trials would not be independent: {one_line(report.inline)}"
        parts += [Text(""), Text(said, style="dim")]
    if next_commands:
        parts += [Text(""), Text("next:", style="dim")]
        parts += [Text(f"  {one_line(command)}") for command in next_commands]
    return Group(*parts)


def _finding(finding: Finding) -> list[Text]:
    head = Text.assemble(
        (finding.level, _STYLES[finding.level]),
        f" [{finding.check}]",
        "" if finding.line is None else f" {finding.line}",
    )
    return [head, Text(f"  {one_line(finding.message)}")]


def _estimate(estimate: Estimate) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    step = f"{estimate.seconds_per_step * 1000:.3g} ms a step"
    if estimate.steps_per_epoch is None:
        table.add_row("time", f"{step}; how many steps an epoch has, only its end tells")
    else:
        table.add_row(
            "time",
            f"about {time_text(estimate.study_seconds)} with {estimate.workers} "
            f"worker{'' if estimate.workers == 1 else 's'}, {time_text(estimate.trial_seconds)} a "
            f"trial ({step}, {estimate.steps_per_epoch:,} steps an epoch, "
            f"{time_text(estimate.validation_seconds)} a validation, "
            f"{time_text(estimate.startup_seconds)} to start)",
        )
    table.add_row(
        "memory",
        f"about {size_text(estimate.memory_bytes)} at once, {size_text(estimate.trial_bytes)} a trial",
    )
    table.add_row(
        "disk",
        f"at most {size_text(estimate.disk_bytes)}: {size_text(estimate.checkpoint_bytes)} a "
        f"checkpoint, {estimate.checkpoints_kept} kept of each trial",
    )
    return table
