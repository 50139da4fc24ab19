"""Trials side by side: parameters and metrics in rows, what differs marked, and how they went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from sweeper.report.curves import Curves
from sweeper.report.formats import choice_text, value_text
from sweeper.report.widths import fits, plain_table
from sweeper.results import TrialRecord

_DIGEST_SHOWN = 12
_MARK = "*"


@dataclass(frozen=True)
class _Line:
    """One row: its name and each trial's text; a heading where there are no texts."""

    name: str
    cells: Sequence[str] = ()
    differs: bool = False


@dataclass(frozen=True)
class Comparison:
    """Trials that are compared, and the metrics whose course is drawn.

    Attributes:
        trials: In the order asked for, two or more.
        metrics: The objectives of their studies.
    """

    trials: Sequence[TrialRecord]
    metrics: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return what differs, by name, and each trial as ``show`` has it."""
        return {
            "differing": {
                "params": _differing([trial.params for trial in self.trials]),
                "metrics": _differing([_latest(trial) for trial in self.trials]),
            },
            "trials": [trial.to_json() for trial in self.trials],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many trials side by side as there is room for, and the others below."""
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
        yield Text(f"{_MARK} differs; metrics are of each trial's latest epoch", style="dim")

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
        # By their text, which tells 1 from 1.0 and True, and has one word for every NaN.
        if len({repr(values[name]) if name in values else None for values in trials}) > 1
    ]


def _latest(trial: TrialRecord) -> Mapping[str, float]:
    return trial.epochs[-1].metrics if trial.epochs else {}
