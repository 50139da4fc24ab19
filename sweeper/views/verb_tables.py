"""Tables of single verbs: ``show``, ``compare``, ``evaluate``, ``doctor`` and ``check``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sweeper.records.diagnoses import Diagnosis
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.printing import counted
from sweeper.records.results import AttemptRecord, CheckpointRecord, StudyStatus, TrialRecord
from sweeper.replay.reports import CheckReport, Estimate, Finding, Level
from sweeper.spec.searching import Objective
from sweeper.views.formats import (
    choice_text,
    last_line,
    objective_first,
    one_line,
    params_text,
    size_text,
    time_text,
    value_text,
)
from sweeper.views.tables import STATE_STYLES, exactness_line, next_lines, plain_table

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
        bars = _ASCII_BARS if options.ascii_only else _BARS
        yield Text(
            f"{self._metric} by epoch, 1 to {epochs}, from {value_text(low)} to {value_text(high)}:"
        )
        for (label, course), end in zip(self._courses, ends, strict=True):
            line = sparkline(course, (low, high), epochs, min(_CURVE, epochs), bars)
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


_CURVE = 48
"""Most characters of a curve."""

_DIGEST_SHOWN = 12
_SHOWN_EPOCHS = 30
_SHOWN_FILES = 5
_MARK = "*"

_Cells = Sequence[Sequence[str]]


def trial_on_terminal(
    trial: TrialRecord, study: StudyStatus, commands: Sequence[str] = ()
) -> RenderableType:
    """Return a rich renderable of a trial, with its study's audits.

    Epochs are counted from 1; the epoch of a checkpoint is the last finished one.
    """
    now = datetime.now(UTC)
    worked = [_seconds(attempt, now) for attempt in trial.attempts]
    pauses = [
        None if b.ended_at is None else (a.started_at - b.ended_at).total_seconds()
        for b, a in pairwise(trial.attempts)
    ]
    lead = f"{len(trial.epochs)} epochs · {time_text(sum(filter(None, worked)))} of work in "
    lead += counted(len(trial.attempts), "attempt")
    if pauses:
        lead += f", {time_text(sum(filter(None, pauses)))} of pauses between them"
    parts: list[RenderableType] = [
        Text(f"Trial {trial.number} of {trial.study}", style="bold"),
        Text(lead),
        _facts(trial, study.objective),
    ]
    if trial.error:
        parts += [Text(""), Text(_said_once(trial.error), style="red")]
    attempts = [
        [
            *(str(each.number), f"{each.host}:{'?' if each.pid is None else each.pid}"),
            _step(each.start_step) + (" (resumed)" if _resumes(trial, each) else ""),
            _step(each.end_step),
            ("at most " if each.outcome == "lost" else "") + time_text(seconds),
            f"{each.started_at:%Y-%m-%d %H:%M:%S}",
            time_text(pause),
            _ending(each, trial),
        ]
        for each, seconds, pause in zip(trial.attempts, worked, [None, *pauses], strict=False)
    ]
    headers = ["attempt", "where", "from step", "to step", "worked", "began (UTC)", "pause before"]
    parts += _own_table([*headers, "how it ended"], attempts)
    parts += _own_table(["after epoch", study.objective, "decision", "compared"], _rungs(trial))
    if trial.earlier_lengths:
        lengths = [
            *(
                [
                    *(str(each.epochs), str(each.trained), each.state),
                    params_text(each.values) if each.values else value_text(each.value, 6),
                    (each.digest or "-")[:_DIGEST_SHOWN],
                ]
                for each in trial.lengths
            )
        ]
        parts += _own_table(["length", "epochs trained", "state", "value", "digest"], lengths)
    shown = trial.epochs[-_SHOWN_EPOCHS:]
    hidden = len(trial.epochs) - len(shown)
    reported = dict.fromkeys((name for epoch in shown for name in epoch.metrics), 0.0)
    names = objective_first(reported, study.objective)
    epochs = [
        [str(e.epoch + 1), *(value_text(e.metrics.get(name), 6) for name in names)] for e in shown
    ]
    cut = f"{hidden} earlier epochs: use --json or --csv" if hidden else ""
    parts += _own_table(["epoch", *names], epochs, cut=cut, left=())
    checkpoints = [
        [
            *(str(each.step), str(each.epoch), size_text(each.bytes), each.digest[:_DIGEST_SHOWN]),
            next((str(a.number) for a in trial.attempts if _wrote(a, each)), "-"),
            each.path,
        ]
        for each in trial.checkpoints
    ]
    headers = ["step", "after epoch", "size", "digest", "attempt", "path"]
    parts += _own_table(headers, checkpoints)
    parts += _own_table(["how", "found", "when (UTC)", "what was said"], _verified(trial))
    evaluations = [
        [
            *(each.data, str(each.step), str(each.epoch), "no" if each.path is None else "yes"),
            params_text(each.metrics),
        ]
        for each in trial.evaluations
    ]
    parts += _own_table(["evaluated on", "step", "after epoch", "kept", "metrics"], evaluations)
    return Group(*parts, Text(""), exactness_line(study.exactness), *next_lines(commands))


def _facts(trial: TrialRecord, objective: str) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("state", Text(trial.state, style=STATE_STYLES.get(trial.state, "")))
    measured: Mapping[str, float | None] = trial.values or {objective: trial.value}
    facts = [(name, value_text(value, 6)) for name, value in measured.items()]
    facts += [(name, choice_text(value)) for name, value in trial.params.items()]
    facts += [("seed", str(trial.seed)), ("digest", trial.digest or "-")]
    facts.append(("code", trial.code or "-"))
    if trial.value_of is not None:
        facts.append(("value of", trial.value_of))
    if trial.output_only:
        facts.append(("not captured", f"{', '.join(trial.output_only)} (output only)"))
    for name, used in (("files read", "read"), ("files written", "written")):
        if paths := [str(file["path"]) for file in trial.files[used]]:
            more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
            facts.append((name, f"{', '.join(paths[:_SHOWN_FILES])}{more}"))
    facts += [("noticed", notice) for notice in trial.files["notices"]]
    if trial.warm_start:
        report = trial.warm_start
        left = len(report["mismatches"])
        rest = f", {left} that did not fit" if left else ""
        said = f"{report['path']} ({report['kind']}, {report['digest'][:8]})"
        facts.append(("began from", f"{said}: {len(report['matched'])} variables{rest}"))
    for name, value in facts:
        grid.add_row(Text(name), Text(value))
    return grid


def _own_table(
    headers: Sequence[str], rows: _Cells, *, cut: str = "", left: Sequence[str] | None = None
) -> list[RenderableType]:
    """Return a table below an empty line, with its last column at the left; empty without rows."""
    if not rows:
        return []
    parts = [Text(""), Text(cut, style="dim")] if cut else [Text("")]
    return [*parts, plain_table(headers, rows, headers[-1:] if left is None else left)]


def _seconds(attempt: AttemptRecord, now: datetime) -> float | None:
    end = attempt.ended_at or (now if attempt.outcome is None else None)
    return None if end is None else (end - attempt.started_at).total_seconds()


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)


def _resumes(trial: TrialRecord, attempt: AttemptRecord) -> bool:
    return attempt.number > max(trial.anew_after, 1) and bool(attempt.start_step)


def _wrote(attempt: AttemptRecord, checkpoint: CheckpointRecord) -> bool:
    return f"/attempt-{attempt.number:02d}/" in checkpoint.path


def _said_once(error: str) -> str:
    """Return an error whose traceback ends with the same error without that last line of the traceback."""
    traceback, _, line = error.rstrip("\n").rpartition("\n")
    above, _, last = traceback.rstrip("\n").rpartition("\n")
    return f"{above}\n{line}" if last and line.startswith(last) else error.rstrip("\n")


def _ending(attempt: AttemptRecord, trial: TrialRecord) -> str:
    if attempt.outcome in ("failed", "crashed") and attempt.error and attempt.error == trial.error:
        return f"{attempt.outcome}, see above"
    left = attempt.number <= trial.anew_after
    why = last_line(attempt.error or "").partition("; its output is in ")[0]
    said = {
        None: "running",
        "interrupted": f"interrupted: {why or 'it was asked to stop, and wrote a checkpoint'}",
        "paused": "paused: it reached a rung of the study's budget",
        "lost": f"lost: its worker on {attempt.host} is gone",
        "crashed": f"crashed: {why or 'its process died'}",
        "failed": f"failed: {why or 'its log has why'}",
    }.get(attempt.outcome, str(attempt.outcome))
    return f"{said}; not resumed, because the definition changed" if left else said


def _rungs(trial: TrialRecord) -> _Cells:
    decided = {None: "waits for the others", True: "promoted", False: "ended here"}
    rows = []
    for rung in trial.rungs:
        said = ""
        if rung.decision is not None:
            promoted = [each for each in rung.decision.compared if each.promoted]
            names = ", ".join(f"{t.number} ({value_text(t.value, 6)})" for t in promoted[:8])
            said = f"{counted(len(rung.decision.compared), 'trial')}; promoted: {names or 'none'}"
        rows.append(
            [str(rung.epochs), value_text(rung.value, 6), decided[rung.promoted], said or "-"]
        )
    return rows


def _verified(trial: TrialRecord) -> _Cells:
    found, rows = trial.verification, []
    if found is not None:
        how = "killed and resumed" if found.mode == "interrupt" else "replayed"
        said = str(found.report.get("message") or "-")
        rows.append([how, found.verdict, f"{found.checked_at:%Y-%m-%d %H:%M:%S}", said])
    rows += [
        [
            f"audited from step {audit.from_step} to {audit.to_step}",
            *(audit.outcome or "waits", "-", audit.message or "-"),
        ]
        for audit in trial.audits
    ]
    return rows


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
        """Draw the trials side by side, and their curves below."""
        yield self._table()
        yield Text("")
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

    def _table(self) -> Table:
        rows = [
            [
                Text(_MARK if line.differs else "", style="yellow"),
                Text(line.name, style="bold" if line.differs else "" if line.cells else "dim"),
                *(Text(cell, style="bold" if line.differs else "") for cell in line.cells),
            ]
            for line in self._lines()
        ]
        return plain_table(["", "", *self._labels()], rows, left=("",))


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
    cells = [[*row, path] for row, path in zip(rows, paths, strict=True)]
    return plain_table([*headers, "checkpoint"], cells, left=("checkpoint",))


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
