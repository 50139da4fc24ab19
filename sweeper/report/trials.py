"""One row a trial, with a column a parameter where the terminal is wide enough.

Where it is not, parameters that are the same in all trials are named once, below; if the rest still
has no room, each trial's parameters stand under its row as ``name=value``. No number is ever cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sweeper.records.result_tables import parameter_headers
from sweeper.report.formats import choice_text, params_text, value_text
from sweeper.report.widths import fits, plain_table
from sweeper.results import TrialStatus

STATE_STYLES = {
    "complete": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "paused": "yellow",
    "pruned": "yellow",
    "failed": "bold red",
    "waiting": "dim",
}

_INDENT = 7


@dataclass(frozen=True)
class _Column:
    """A column: its header, and what it shows of a trial."""

    header: str
    cell: Callable[[TrialStatus], str]
    left: bool = False


class TrialsTable:
    """What rich prints as one row a trial, in the order given, and fits to the terminal's width.

    Args:
        trials: The trials.
        latest: The metrics whose latest values are shown, with the epoch that each trial is in, in
            place of its value and the epochs that it has finished.
        codes: What each ran under, by number; None where all ran under the same.
        most: Rows on a terminal; what is cut is said. A pipe gets all.
    """

    def __init__(
        self,
        trials: Sequence[TrialStatus],
        *,
        latest: Sequence[str] = (),
        codes: Mapping[int, str] | None = None,
        most: int | None = None,
    ) -> None:
        self._trials = trials
        self._latest = latest
        self._codes = codes
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as much as there is room for, and say what was left out."""
        trials = self._trials
        if self._most is not None and options.is_terminal:
            trials = trials[: self._most]
        names = list(dict.fromkeys(name for trial in trials for name in trial.params))
        differing = [n for n in names if len(trials) < 2 or not _is_alike(trials, n)]
        own = self._own_columns(trials)
        for columns in (names, differing):
            table = _table(trials, [*own, *_parameters(columns, {each.header for each in own})])
            if fits(table, options, console):
                yield table
                break
        else:
            columns = differing
            yield from _folded(trials, own, differing, console, options)
        if len(columns) < len(names):
            alike = {n: trials[0].params[n] for n in names if n not in differing}
            yield Text(f"the same in all of these: {params_text(alike)}", style="dim")
        if len(trials) < len(self._trials):
            hidden = len(self._trials) - len(trials)
            yield Text(f"and {hidden} more; --csv and --json have all of them", style="dim")

    def _own_columns(self, trials: Sequence[TrialStatus]) -> list[_Column]:
        """Return all columns but the parameters'; the first two name the trial, the next ones its metrics."""
        found = [_Column("trial", lambda t: str(t.number)), _Column("state", _state, left=True)]
        if self._latest:
            found.append(_Column("epoch", _epoch_now))
            found += [_Column(name, _latest(name)) for name in self._latest]
        else:
            names = list(dict.fromkeys(name for trial in trials for name in trial.values or ()))
            found += [_Column(name, _value(name)) for name in names]
            if not names:
                found.append(_Column("value", lambda t: value_text(t.value, 6)))
            found.append(_Column("epochs", _epochs_done))
        if any(trial.attempts > 1 for trial in trials):
            found.append(_Column("attempts", lambda t: str(t.attempts)))
        codes = self._codes
        if codes is not None:
            found.append(_Column("code", lambda t: codes.get(t.number, "-"), left=True))
        return found


def _folded(
    trials: Sequence[TrialStatus],
    own: Sequence[_Column],
    params: Sequence[str],
    console: Console,
    options: ConsoleOptions,
) -> Iterator[RenderableType | Segment]:
    """Draw each trial's row, and below it, indented, what has no column of its own."""
    kept = list(own)
    while len(kept) > 2 and not fits(_table(trials, kept), options, console):
        kept.pop()
    lines = console.render_lines(_table(trials, kept), options, pad=False)
    for index, line in enumerate(lines):
        yield from line
        yield Segment.line()
        if index == 0:
            continue
        trial = trials[index - 1]
        words = [f"{column.header}={column.cell(trial)}" for column in own[len(kept) :]]
        words.append(params_text({n: trial.params[n] for n in params if n in trial.params}))
        yield Padding(Text(" ".join(words)), (0, 0, 0, _INDENT))


def _table(trials: Sequence[TrialStatus], columns: Sequence[_Column]) -> Table:
    table = plain_table()
    for column in columns:
        table.add_column(
            Text(column.header), justify="left" if column.left else "right", no_wrap=True
        )
    for trial in trials:
        table.add_row(
            *(
                Text(column.cell(trial), style=STATE_STYLES[trial.state] * (index == 1))
                for index, column in enumerate(columns)
            )
        )
    return table


def _is_alike(trials: Sequence[TrialStatus], name: str) -> bool:
    first = trials[0].params
    return all(name in t.params and t.params[name] == first.get(name) for t in trials)


def _parameters(names: Sequence[str], taken: Collection[str]) -> list[_Column]:
    headers = parameter_headers(names, taken)
    return [_Column(header, _parameter(name)) for header, name in zip(headers, names, strict=True)]


def _parameter(name: str) -> Callable[[TrialStatus], str]:
    return lambda t: choice_text(t.params[name]) if name in t.params else "-"


def _value(name: str) -> Callable[[TrialStatus], str]:
    return lambda trial: value_text((trial.values or {}).get(name), 6)


def _latest(name: str) -> Callable[[TrialStatus], str]:
    return lambda trial: value_text(trial.metrics.get(name), 6)


def _state(trial: TrialStatus) -> str:
    return trial.state


def _epoch_now(trial: TrialStatus) -> str:
    """Write the epoch that the trial is in, or goes on in, from 1."""
    if trial.epochs is None:
        return str(trial.epoch + 1)
    return f"{min(trial.epoch + 1, trial.epochs)} of {trial.epochs}"


def _epochs_done(trial: TrialStatus) -> str:
    return str(trial.epoch) if trial.epochs is None else f"{trial.epoch} of {trial.epochs}"
