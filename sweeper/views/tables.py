"""Tables of studies and trials that fit a terminal; columns without room are named below.

Each function returns a rich renderable. Texts of users (names, parameters, errors) are never read
as rich's markup.

If parameters have no room, those that are equal in all trials are named once below; if the others
still have no room, each trial's parameters are written under its row as ``name=value``. Numbers are
never cut.

Rich itself would shrink all columns equally, and break numbers over several lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sweeper.records.code import CodeGroup
from sweeper.records.configurations import ConfigurationRecord, leader_sentence, mean_text
from sweeper.records.exactness import Exactness
from sweeper.records.presentation import parameter_headers
from sweeper.records.results import StudyStatus, TrialStatus
from sweeper.records.status import ranked
from sweeper.spec.repeating import confirmation_name
from sweeper.spec.searching import Objective
from sweeper.views.formats import choice_text, one_line, params_text, time_text, value_text

_ANY_WIDTH = 100_000
_LEAST_FOLDED = 24


def plain_table(first: str | None = None) -> Table:
    """Return a table without lines, in which only the ``first`` column may wrap."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    if first is not None:
        table.add_column(first, overflow="fold")
    return table


def fits(table: Table, options: ConsoleOptions, console: Console) -> bool:
    """Return whether the table fits with every cell on one line."""
    natural = Measurement.get(console, options.update(width=_ANY_WIDTH), table).maximum
    return natural <= options.max_width


@dataclass(frozen=True)
class WholeColumns:
    """Renderable of a table of numbers, which leaves out last columns without room.

    Attributes:
        headers: Headers of the columns.
        rows: Cells of each row.
        least: Number of columns that are always drawn.
        folded: Header and cells of a further column at the right, which may wrap.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: int
    folded: tuple[str, Sequence[str]] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many columns as fit, and name the others."""
        room = options
        if self.folded is not None:
            longest = max((len(cell) for cell in self.folded[1]), default=0)
            taken = min(max(longest, len(self.folded[0])), _LEAST_FOLDED) + 2
            room = options.update(width=max(options.max_width - taken, 1))
        shown = len(self.headers)
        while shown > self.least and not fits(self._table(shown), room, console):
            shown -= 1
        yield self._table(shown, folded=True)
        if shown < len(self.headers):
            names = ", ".join(self.headers[shown:])
            yield Text(f"too wide to show: {names}; --csv and --json have them", style="dim")

    def _table(self, shown: int, *, folded: bool = False) -> Table:
        table = plain_table()
        for header in self.headers[:shown]:
            table.add_column(Text(header), justify="right", no_wrap=True)
        last: Sequence[str] = ()
        if folded and self.folded is not None:
            header, last = self.folded
            table.add_column(header, overflow="fold")
        for index, row in enumerate(self.rows):
            table.add_row(*map(Text, row[:shown]), *map(Text, last[index : index + 1]))
        return table


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
    """A column: header, and function from a trial to its cell."""

    header: str
    cell: Callable[[TrialStatus], str]
    left: bool = False


class TrialsTable:
    """Renderable of one row per trial, in the order given, fitted to the terminal's width.

    Args:
        trials: The trials.
        latest: Metrics whose latest values are shown with each trial's present epoch, in place of
            its value and finished epochs.
        codes: The code of each trial, by number; None if all ran under the same.
        most: Maximum number of rows on a terminal; a note names the others. A pipe gets all.
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
        """Draw the columns and rows that fit, and name the others."""
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
        """Return all columns except for parameters; the first two identify the trial, the next are metrics."""
        found = [
            _Column("trial", lambda t: str(t.number)),
            _Column("state", lambda t: t.state, left=True),
        ]
        if self._latest:
            found.append(_Column("epoch", _epoch_now))
            found += [_Column(name, _latest(name)) for name in self._latest]
        else:
            names = list(dict.fromkeys(name for trial in trials for name in trial.values or ()))
            found += [_Column(name, _value(name)) for name in names]
            if not names:
                found.append(_Column("value", lambda t: value_text(t.value, 6)))
            if any(trial.value_of for trial in trials):
                found.append(_Column("value of", _value_of, left=True))
            found.append(_Column("epochs", _epochs_done))
        if any(trial.attempts > 1 for trial in trials):
            found.append(_Column("attempts", lambda t: str(t.attempts)))
        codes = self._codes
        if codes is not None:
            found.append(_Column("code", lambda t: codes.get(t.number, "-"), left=True))
        return found


def _value_of(trial: TrialStatus) -> str:
    return "-" if trial.value is None else trial.value_of or "last epoch"


def _folded(
    trials: Sequence[TrialStatus],
    own: Sequence[_Column],
    params: Sequence[str],
    console: Console,
    options: ConsoleOptions,
) -> Iterator[RenderableType | Segment]:
    """Draw each trial's row, and below it, indented, the values without a column."""
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
    def column(header: str, name: str) -> _Column:
        return _Column(header, lambda t: choice_text(t.params[name]) if name in t.params else "-")

    return list(map(column, parameter_headers(names, taken), names))


def _value(name: str) -> Callable[[TrialStatus], str]:
    return lambda trial: value_text((trial.values or {}).get(name), 6)


def _latest(name: str) -> Callable[[TrialStatus], str]:
    return lambda trial: value_text(trial.metrics.get(name), 6)


def _epoch_now(trial: TrialStatus) -> str:
    """Format the epoch that a running trial is in, from 1; for others the finished epochs."""
    if trial.state != "running":
        return _epochs_done(trial)
    if trial.epochs is None:
        return str(trial.epoch + 1)
    return f"{min(trial.epoch + 1, trial.epochs)} of {trial.epochs}"


def _epochs_done(trial: TrialStatus) -> str:
    return str(trial.epoch) if trial.epochs is None else f"{trial.epoch} of {trial.epochs}"


def _configurations_table(configurations: Sequence[ConfigurationRecord]) -> WholeColumns:
    """Return one row per configuration: mean, interval, comparison with the leader and parameters."""
    names = list(dict.fromkeys(name for each in configurations for name in each.params))
    own = ["configuration", "mean", "repeats", "difference", "verdict"]
    rows = [
        [
            str(each.number),
            each.text,
            str(len(each.values)),
            mean_text(compared.difference, compared.interval) if compared else "-",
            _standing(each, leads=each is configurations[0]),
            *(choice_text(each.params[n]) if n in each.params else "-" for n in names),
        ]
        for each in configurations
        for compared in [each.comparison]
    ]
    return WholeColumns([*own, *parameter_headers(names, set(own))], rows, least=len(own))


def _standing(configuration: ConfigurationRecord, *, leads: bool) -> str:
    if configuration.state != "complete":
        return configuration.state
    comparison = configuration.comparison
    if comparison is None:
        return "leads" if leads else "-"
    if comparison.verdict == "better":
        return "leader is better"
    needed = "" if comparison.needed is None else f" ({comparison.needed} repeats needed)"
    return f"{comparison.verdict}{needed}"


def configurations_lines(
    configurations: Sequence[ConfigurationRecord], title: str = ""
) -> list[RenderableType]:
    """Return a table of configurations and the sentence about the leader; empty without any."""
    if not configurations:
        return []
    lines: list[RenderableType] = [Text(title, style="bold")] if title else []
    lines.append(_configurations_table(configurations[:SHOWN_CONFIGURATIONS]))
    if len(configurations) > SHOWN_CONFIGURATIONS:
        hidden = len(configurations) - SHOWN_CONFIGURATIONS
        lines.append(Text(f"and {hidden} more; --json has all of them", style="dim"))
    sentence = leader_sentence(configurations)
    return lines if sentence is None else [*lines, Text(sentence, style="bold cyan")]


def comparison_lines(status: StudyStatus, command: str) -> list[RenderableType]:
    """Return the configurations of a study and of its confirmation, or the advice to confirm them."""
    title = f"confirmed by new trainings ({confirmation_name(status.study)}):"
    hint = confirmation_hint(status, command)
    return [
        *configurations_lines(status.configurations),
        *configurations_lines(status.confirmed, title),
        *([] if hint is None else [hint]),
    ]


def confirmation_hint(status: StudyStatus, command: str) -> Text | None:
    """Return the advice to confirm the best of single trainings; None if none is close to it.

    The spread of single trainings is unknown, so a quarter of the range of all values counts as close.
    """
    complete = [t for t in ranked(status.trials, status) if t.state == "complete"]
    if status.configurations or status.confirmed or status.best is None or len(complete) < 2:
        return None
    values = [t.value for t in complete if t.value is not None and math.isfinite(t.value)]
    if len(values) < 2 or abs(values[1] - values[0]) > 0.25 * (max(values) - min(values)):
        return None
    best, second = complete[0].number, complete[1].number
    return Text(
        f"one training each: `{command}` tells whether trial {best} is better than trial {second}",
        style="dim",
    )


SHOWN_CONFIGURATIONS = 20

SHOWN_TRIALS = 20
"""Maximum number of finished trials on a terminal; a pipe gets all."""

_SHOWN_ERRORS = 3

_UNFINISHED = ("waiting", "running", "interrupted", "paused")


def status_objectives(status: StudyStatus) -> tuple[Objective, ...]:
    """Return a study's objectives in order, one or several."""
    return status.objectives or (Objective(status.objective, status.direction),)


def objectives_text(status: StudyStatus) -> str:
    """Format the objectives: ``maximize val_accuracy``."""
    return ", ".join(f"{each.direction} {each.name}" for each in status_objectives(status))


def codes_lines(status: StudyStatus) -> list[RenderableType]:
    """Return one line for each code with its trials; empty if there is only one code."""
    if not status.codes:
        return []
    lines: list[RenderableType] = [
        Text("trials ran under different code, and are ranked separately for each:", "bold yellow")
    ]
    for group in status.codes:
        numbers = ", ".join(map(str, group.trials))
        leader = "" if group.best is None else f", best {value_text(group.value, 6)} ({group.best})"
        now = ", the present one" if group.current else ""
        lines.append(Text(f"  {group.code}{now}: trials {numbers}{leader}"))
    return lines


def lengths_lines(status: StudyStatus) -> list[RenderableType]:
    """Return one line for each length with its trials; empty if all lengths are equal."""
    lengths: dict[int, list[str]] = {}
    for trial in status.trials:
        lengths.setdefault(trial.epochs or 0, []).append(str(trial.number))
    if len(lengths) < 2:
        return []
    each = "; ".join(
        f"{epochs} for trial{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        for epochs, numbers in sorted(lengths.items(), reverse=True)
    )
    return [Text(f"epochs: {each}; trials are ranked by their values at their own lengths")]


def studies_table(statuses: Sequence[StudyStatus]) -> RenderableType:
    """Return a row for each study: progress, running and failed trials, best value."""
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
    """Return a study's objective, counts, trials by rank, best trial and next commands."""
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
    parts += _errors(status.trials)
    if status.pareto:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        parts.append(Text.assemble("Pareto front: ", (f"trials {numbers}", "bold cyan")))
    parts += configurations_lines(status.configurations)
    if status.best is not None and not status.configurations:
        parts.append(
            Text.assemble(
                f"best: trial {status.best.number}  ",
                (value_text(status.best.value, 6), "bold cyan"),
                f"  {params_text(status.best.params)}",
            )
        )
    parts += configurations_lines(
        status.confirmed, f"confirmed by new trainings ({confirmation_name(status.study)}):"
    )
    parts += lengths_lines(status)
    parts += codes_lines(status)
    parts.append(exactness_line(status.exactness))
    return Group(*parts, *next_lines(next_commands))


def _errors(trials: Sequence[TrialStatus]) -> Iterator[RenderableType]:
    """Yield each error of failed trials once, with the trials that it ended."""
    by_error: dict[str, list[str]] = {}
    for trial in trials:
        if trial.error is not None:
            by_error.setdefault(trial.error, []).append(str(trial.number))
    for error, numbers in list(by_error.items())[:_SHOWN_ERRORS]:
        shown = numbers[:_SHOWN_ERRORS] + ["…"] * (len(numbers) > _SHOWN_ERRORS)
        which = f"trial{'s' * (len(numbers) > 1)} {', '.join(shown)}"
        yield Text.assemble((f"{which} failed: ", "bold red"), error)


def exactness_line(exactness: Exactness) -> Text:
    """Return the result of the study's audits in one line."""
    return Text(exactness.line, style="dim" if exactness.warning is None else "bold red")


def next_lines(commands: Sequence[str]) -> list[RenderableType]:
    """Return the next commands, one on each line."""
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
