"""Tables of single verbs: ``show``, ``compare``, ``evaluate``, ``doctor`` and ``check``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sweeper.records.diagnoses import Diagnosis
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.results import StudyStatus, TrialRecord
from sweeper.replay.reports import CheckReport, Estimate, Finding, Level
from sweeper.spec.searching import Objective
from sweeper.views.formats import (
    choice_text,
    objective_first,
    one_line,
    size_text,
    time_text,
    value_text,
)
from sweeper.views.pages.content import Cell, Page
from sweeper.views.pages.content import Table as PageTable
from sweeper.views.tables import (
    STATE_STYLES,
    WholeColumns,
    exactness_line,
    fits,
    next_lines,
    plain_table,
)

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-~=+*#"


class Curves:
    """Renderable of a metric's learning curves in several trials.

    Each course is a label with the metric's values by epoch; None for a missing value.
    """

    def __init__(self, metric: str, courses: Sequence[tuple[str, Sequence[float | None]]]) -> None:
        self._metric = metric
        self._courses = courses

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw one line for each trial; nothing if no value is finite."""
        finite = [v for _, c in self._courses for v in c if v is not None and math.isfinite(v)]
        epochs = max((len(course) for _, course in self._courses), default=0)
        if not finite:
            return
        low, high = min(finite), max(finite)
        labels = max(len(label) for label, _ in self._courses)
        ends = [value_text(course[-1] if course else None, 6) for _, course in self._courses]
        room = max(options.max_width - labels - max(map(len, ends)) - 4, 8)
        bars = _ASCII_BARS if options.ascii_only else _BARS
        yield Text(
            f"{self._metric} by epoch, 1 to {epochs}, from {value_text(low)} to {value_text(high)}:"
        )
        for (label, course), end in zip(self._courses, ends, strict=True):
            line = sparkline(course, (low, high), epochs, min(room, epochs), bars)
            yield Text.assemble(f"{label:>{labels}}  ", (line, "cyan"), f"  {end}")


def sparkline(
    values: Sequence[float | None],
    ends: tuple[float, float],
    epochs: int,
    width: int,
    bars: str = _BARS,
) -> str:
    """Draw ``values`` in at most ``width`` characters; each shows the last epoch of its interval.

    Args:
        values: One value for each epoch; None or a value that is not finite leaves a gap.
        ends: Values of the lowest and the highest bar.
        epochs: Epochs of the longest curve on this scale.
        width: Characters for this many epochs.
        bars: Characters of the bars, from the lowest to the highest.
    """
    low, high = ends
    drawn = []
    for column in range(width):
        epoch = (column + 1) * epochs // width - 1
        if epoch >= len(values):
            break
        value = values[epoch]
        if value is None or not math.isfinite(value):
            drawn.append(" ")
            continue
        height = (value - low) / (high - low) if high > low else 0.0
        drawn.append(bars[min(int(height * len(bars)), len(bars) - 1)])
    return "".join(drawn)


_DIGEST_SHOWN = 12
_LEAST_COLUMNS = 2
_MARK = "*"


def trial_on_terminal(
    trial: TrialRecord, study: StudyStatus, commands: Sequence[str] = ()
) -> RenderableType:
    """Return a rich renderable of a trial, with its study's audits.

    Epochs are counted from 1; the epoch of a checkpoint is the last finished one.
    """
    # It imports Optuna, which the other verbs do not need.
    from sweeper.views.pages.trial import trial_page

    page = trial_page(trial, study.objective, now=datetime.now(UTC))
    parts: list[RenderableType] = [
        Text(page.heading, style="bold"),
        Text(page.lead),
        _page_facts(page),
    ]
    if page.error:
        parts += [Text(""), Text(page.error.rstrip("\n"), style="red")]
    for table in (each for section in page.sections for each in section.tables if each.rows):
        parts.append(Text(""))
        if table.cut:
            parts.append(Text(table.cut, style="dim"))
        parts.append(_page_table(table))
    return Group(*parts, Text(""), exactness_line(study.exactness), *next_lines(commands))


def _page_facts(page: Page) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in page.facts:
        style = STATE_STYLES.get(value.text, "") if value.kind == "state" else ""
        grid.add_row(Text(name), Text(_cell_text(value), style=style))
    return grid


def _page_table(table: PageTable) -> WholeColumns:
    """Return the columns of a table that fit, with a last text column wrapped."""
    headers = [column.header for column in table.columns]
    rows = [[_cell_text(cell, most=_DIGEST_SHOWN) for cell in row] for row in table.rows]
    if table.columns[-1].number:
        return WholeColumns(headers, rows, _LEAST_COLUMNS)
    folded = (headers[-1], [row[-1] for row in rows])
    return WholeColumns(headers[:-1], [row[:-1] for row in rows], _LEAST_COLUMNS, folded)


def _cell_text(cell: Cell | str, *, most: int | None = None) -> str:
    """Return the full text of a cell; only the first ``most`` characters of a digest."""
    if isinstance(cell, str):
        return cell
    text = cell.text[:most] if cell.kind == "digest" else cell.text
    words = (text, ", ".join(link.text for link in cell.links), cell.note and f"({cell.note})")
    return " ".join(word for word in words if word)


@dataclass(frozen=True)
class _Line:
    """One row: its name and each trial's text; a heading without texts."""

    name: str
    cells: Sequence[str] = ()
    differs: bool = False


@dataclass(frozen=True)
class Comparison:
    """Compared trials, and the metrics whose curves are drawn.

    Attributes:
        trials: Two or more trials, in the given order.
        metrics: The objectives of their studies.
    """

    trials: Sequence[TrialRecord]
    metrics: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return the names of differing values, and each trial as in ``show``."""
        return {
            "differing": {
                "params": _differing([trial.params for trial in self.trials]),
                "metrics": _differing([_latest(trial) for trial in self.trials]),
            },
            "trials": [trial.to_json() for trial in self.trials],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many trials side by side as fit, and the others below."""
        lines = self._lines()
        rest = list(range(len(self.trials)))
        while rest:
            shown = len(rest)
            while shown > 1 and not fits(self._table(lines, rest[:shown]), options, console):
                shown -= 1
            yield self._table(lines, rest[:shown])
            yield Text("")
            rest = rest[shown:]
        for metric in self.metrics:
            courses = [[epoch.metrics.get(metric) for epoch in t.epochs] for t in self.trials]
            yield Curves(metric, list(zip(self._labels(), courses, strict=True)))
        yield Text(f"{_MARK} differs; metrics of each trial's latest epoch", style="dim")

    def _labels(self) -> list[str]:
        several = len({trial.study for trial in self.trials}) > 1
        return [
            f"{trial.study}:{trial.number}" if several else f"trial {trial.number}"
            for trial in self.trials
        ]

    def _lines(self) -> list[_Line]:
        params = [trial.params for trial in self.trials]
        metrics = [_latest(trial) for trial in self.trials]
        return [
            self._fact("state", lambda t: t.state),
            self._fact("value", lambda t: value_text(t.value, 6)),
            self._fact("epochs", lambda t: str(len(t.epochs))),
            self._fact("attempts", lambda t: str(len(t.attempts))),
            self._fact("seed", lambda t: str(t.seed)),
            self._fact("code", lambda t: t.code or "-"),
            self._fact("digest", lambda t: (t.digest or "-")[:_DIGEST_SHOWN]),
            *_section("parameters", params, choice_text),
            *_section("metrics", metrics, lambda value: value_text(value, 6)),
        ]

    def _fact(self, name: str, text: Callable[[TrialRecord], str]) -> _Line:
        cells = [text(trial) for trial in self.trials]
        return _Line(name, cells, len(set(cells)) > 1)

    def _table(self, lines: Sequence[_Line], shown: Sequence[int]) -> Table:
        table = plain_table()
        table.add_column("", no_wrap=True)
        table.add_column("", no_wrap=True)
        labels = self._labels()
        for index in shown:
            table.add_column(Text(labels[index]), justify="right", no_wrap=True)
        for line in lines:
            if not line.cells:
                table.add_row("", Text(line.name, style="dim"))
                continue
            style = "bold" if line.differs else ""
            table.add_row(
                Text(_MARK if line.differs else "", style="yellow"),
                Text(line.name, style=style),
                *(Text(line.cells[index], style=style) for index in shown),
            )
        return table


def _section(
    title: str, trials: Sequence[Mapping[str, Any]], text: Callable[[Any], str]
) -> list[_Line]:
    names = list(dict.fromkeys(name for values in trials for name in values))
    if not names:
        return []
    differing = _differing(trials)
    return [
        _Line(title),
        *(
            _Line(
                name,
                [text(values[name]) if name in values else "-" for values in trials],
                name in differing,
            )
            for name in names
        ),
    ]


def _differing(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for values in trials for name in values)
    return [
        name
        for name in names
        # Compared by `repr`, which distinguishes 1, 1.0 and True, and is equal for all NaN.
        if len({repr(values[name]) if name in values else None for values in trials}) > 1
    ]


def _latest(trial: TrialRecord) -> Mapping[str, float]:
    return trial.epochs[-1].metrics if trial.epochs else {}


def ranking_table(records: Sequence[EvaluationRecord], objective: Objective) -> RenderableType:
    """Return a row per checkpoint, in the order given: rank, trial, metrics and path."""
    reported = dict.fromkeys((name for record in records for name in record.metrics), 0.0)
    names = objective_first(reported, objective.name)
    rows = [
        [
            *(str(rank), str(record.trial), str(record.step), str(record.epoch)),
            *(value_text(record.metrics.get(name), 6) for name in names),
        ]
        for rank, record in enumerate(records, 1)
    ]
    paths = [record.path or "-" for record in records]
    headers = ("rank", "trial", "step", "after epoch", *names)
    return WholeColumns(headers, rows, least=5, folded=("checkpoint", paths))


_STYLES = {"ok": "green", "note": "yellow", "unpromised": "bold red", "broken": "bold red"}
_ENDS = {
    0: "everything that is promised by default can be promised here",
    1: "something is broken: no study can be run",
    4: "something that is promised by default cannot be promised here",
}


def diagnosis_page(diagnosis: Diagnosis) -> RenderableType:
    """Return a line for each finding; below it the expectation and the advice, if it is not in order."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for finding in diagnosis.findings:
        if finding.area != area:
            area = finding.area
            table.add_row("", Text(area, style="dim"), "")
        table.add_row(
            Text(finding.level, style=_STYLES[finding.level]),
            Text(finding.name),
            Text(
                f"{finding.seen}  (expected: {finding.expected})"
                + (f"\ndo: {finding.advice}" if finding.advice else "")
            ),
        )
    return Group(table, Text(""), Text(_ENDS[diagnosis.exit_code]))


_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def check_page(report: CheckReport, next_commands: tuple[str, ...] = ()) -> RenderableType:
    """Return the output of `sweeper check`."""
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
    return Group(*parts, *next_lines(next_commands))


def _finding(finding: Finding) -> list[Text]:
    head = Text.assemble(
        (finding.level, _SEVERITY_STYLES[finding.level]),
        f" [{finding.check}]",
        "" if finding.line is None else f" {finding.line}",
    )
    return [head, Text(f"  {one_line(finding.message)}")]


def _estimate(estimate: Estimate) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if estimate.steps_per_epoch is None:
        table.add_row("time", "unknown: how many steps an epoch has, only its end tells")
    else:
        table.add_row(
            "time",
            f"about {time_text(estimate.study_seconds)} with {estimate.workers} "
            f"worker{'' if estimate.workers == 1 else 's'}, {time_text(estimate.trial_seconds)} a "
            f"trial ({time_text(estimate.epoch_seconds)} an epoch of {estimate.steps_per_epoch:,} "
            f"steps, {time_text(estimate.startup_seconds)} to start)",
        )
    table.add_row(
        "disk",
        f"at most {size_text(estimate.disk_bytes)}: {size_text(estimate.checkpoint_bytes)} a "
        f"checkpoint, {estimate.checkpoints_kept} kept of each trial",
    )
    return table
