"""Tables of studies and trials. Rich decides what a narrow terminal folds, and cuts no value.

Each function returns a rich renderable. Texts of users (names, parameters, errors) are never read
as rich's markup.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sweeper.declarations.observing import observed_text
from sweeper.declarations.repeating import confirmation_name
from sweeper.declarations.searching import Objective, direction_of
from sweeper.records.code import CodeGroup
from sweeper.records.comparisons import Comparison
from sweeper.records.configurations import (
    ConfigurationRecord,
    identity_of,
    leader_sentence,
    mean_text,
)
from sweeper.records.events import StudyOpened
from sweeper.records.exactness import Exactness
from sweeper.records.printing import counted, trials_named
from sweeper.records.results import (
    StudyStatus,
    TrialStatus,
    parameter_headers,
    ranked,
    twins_text,
)
from sweeper.views.formats import choice_text, one_line, params_text, time_text, value_text


class _PlainTable(Table):
    """Table whose texts are folded before any of its numbers and headers, if the width allows that."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        numbers = [column for column in self.columns if column.justify == "right"]
        width = sum(
            2 + max(len(str(cell)) for cell in (column.header, *column.cells)) for column in numbers
        )
        texts = len(self.columns) - len(numbers)
        fits = width - 2 + texts * _LEAST_TEXT <= options.max_width
        for column in numbers:
            # Without room for all, rich would cut them instead of folding them.
            column.no_wrap = fits
        yield from super().__rich_console__(console, options)


_LEAST_TEXT = 6
"""Columns of a terminal that a folded text has at least."""


def plain_table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], left: Collection[str] = ()
) -> Table:
    """Return a table without lines: numbers have six digits, and None is ``-``.

    Columns are right-aligned, except for those of ``left``.
    """
    table = _PlainTable(box=None, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(
            Text(header), justify="left" if header in left else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: Any) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, float) or value is None:
        return Text(value_text(value, 6))
    return Text(str(value))


STATE_STYLES = {
    "complete": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "paused": "yellow",
    "pruned": "yellow",
    "failed": "bold red",
    "waiting": "dim",
}


@dataclass(frozen=True)
class TrialsTable:
    """Renderable of one row per trial, in the order given.

    Attributes:
        trials: The trials.
        latest: Metrics whose latest values are shown with each trial's present epoch, in place of
            its value and finished epochs.
        codes: The code of each trial, by number; None if all ran under the same.
        most: Maximum number of rows on a terminal; a note names the others. A pipe gets all.
    """

    trials: Sequence[TrialStatus]
    latest: Sequence[str] = ()
    codes: Mapping[int, str] | None = None
    most: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the rows, and count those that are left out."""
        trials = self.trials[: self.most] if options.is_terminal else self.trials
        rows = [self._cells(trial) for trial in trials]
        headers = list(dict.fromkeys(name for row in rows for name in row))
        params = list(dict.fromkeys(name for trial in trials for name in trial.params))
        cells = [
            [*(row.get(name) for name in headers), *(_param(trial, name) for name in params)]
            for row, trial in zip(rows, trials, strict=True)
        ]
        texts = ("state", "value of", "code", "tags", "note")
        yield plain_table([*headers, *parameter_headers(params, headers)], cells, left=texts)
        if len(trials) < len(self.trials):
            hidden = len(self.trials) - len(trials)
            yield Text(f"and {hidden} more; --csv and --json have all of them", style="dim")

    def _cells(self, trial: TrialStatus) -> dict[str, Any]:
        """Return a trial's cells by header, except for its parameters."""
        reused = "" if trial.reuses is None else f" (trial {trial.reuses})"
        hidden = ", hidden" * trial.hidden
        state = Text(f"{trial.state}{reused}{hidden}", STATE_STYLES[trial.state])
        cells: dict[str, Any] = {"trial": trial.number, "state": state}
        if self.latest:
            cells["epoch"] = _epoch(trial, current=trial.state == "running")
            cells |= {name: trial.metrics.get(name) for name in self.latest}
        else:
            several = dict.fromkeys(name for other in self.trials for name in other.values or ())
            cells |= {n: (trial.values or {}).get(n) for n in several} or {"value": trial.value}
            if any(other.value_of for other in self.trials):
                cells["value of"] = "-" if trial.value is None else trial.value_of or "last epoch"
            cells["epochs"] = _epoch(trial)
        if any(other.attempts > 1 for other in self.trials):
            cells["attempts"] = trial.attempts
        if any(other.tags for other in self.trials):
            cells["tags"] = " ".join(trial.tags) or "-"
        if any(other.note for other in self.trials):
            cells["note"] = trial.note
        if self.codes is not None:
            cells["code"] = self.codes.get(trial.number)
        return cells


def _param(trial: TrialStatus | ConfigurationRecord, name: str) -> str:
    return choice_text(trial.params[name]) if name in trial.params else "-"


def _epoch(trial: TrialStatus, *, current: bool = False) -> str:
    """Format the number of finished epochs, or with ``current`` the epoch that the trial is in, from 1."""
    if trial.epochs is None:
        return str(trial.epoch + current)
    return f"{min(trial.epoch + current, trial.epochs)} of {trial.epochs}"


def _configurations_table(configurations: Sequence[ConfigurationRecord]) -> Table:
    """Return one row per configuration: mean, interval, comparison with the leader and parameters."""
    names = list(
        dict.fromkeys(name for configuration in configurations for name in configuration.params)
    )
    headers = ["configuration", "mean", "repeats", "difference", "verdict"]
    rows = [
        [
            configuration.number,
            configuration.text,
            len(configuration.values),
            difference_text(configuration),
            standing(configuration, leads=configuration is configurations[0]),
            *(_param(configuration, name) for name in names),
        ]
        for configuration in configurations
    ]
    return plain_table([*headers, *parameter_headers(names, headers)], rows, left=("verdict",))


def difference_text(configuration: ConfigurationRecord) -> str:
    """Return the mean difference to the leader with half its interval; ``-`` without a comparison."""
    compared = configuration.comparison
    return "-" if compared is None else mean_text(compared.difference, compared.interval)


def standing(configuration: ConfigurationRecord, *, leads: bool) -> str:
    """Return a configuration's state, or its comparison with the leader; ``leads`` if it is the first."""
    if configuration.state != "complete":
        return configuration.state
    comparison = configuration.comparison
    if comparison is None:
        return "leads" if leads else "-"
    if comparison.verdict == "better":
        return "leader is better"
    needed = "" if comparison.needed is None else f" ({comparison.needed} repeats needed)"
    return f"{comparison.verdict}{needed}"


def configurations_lines(status: StudyStatus) -> list[RenderableType]:
    """Return tables of the configurations of a study and of its confirmation, with their leaders."""
    confirmed = f"confirmed by new trainings ({confirmation_name(status.study)}):"
    lines: list[RenderableType] = []
    for title, configurations in (("", status.configurations), (confirmed, status.confirmed)):
        if not configurations:
            continue
        lines += [Text(title, style="bold")] * bool(title)
        lines.append(_configurations_table(configurations[:SHOWN_ROWS]))
        if len(configurations) > SHOWN_ROWS:
            hidden = len(configurations) - SHOWN_ROWS
            lines.append(Text(f"and {hidden} more; --json has all of them", style="dim"))
        sentence = leader_sentence(configurations)
        lines += [] if sentence is None else [Text(sentence, style="bold cyan")]
        if any(_interval_contradicts(configuration.comparison) for configuration in configurations):
            lines.append(Text(_CORRECTED, style="dim"))
    return lines


def _interval_contradicts(comparison: Comparison | None) -> bool:
    """Return whether the interval is without 0, although the leader is not distinguishable."""
    if comparison is None or comparison.verdict == "better" or comparison.interval is None:
        return False
    low, high = comparison.interval
    return low * high > 0


_CORRECTED = (
    "each difference has its own 95% interval; a verdict is corrected for all comparisons, so an interval "
    "without 0 is not enough"
)


def comparison_lines(status: StudyStatus, command: str) -> list[RenderableType]:
    """Return the tables of configurations, or the advice to confirm single trainings."""
    twins = twins_text(status)
    lines = [None if twins is None else Text(twins), confirmation_hint(status, command)]
    return [*configurations_lines(status), *(line for line in lines if line is not None)]


def confirmation_hint(status: StudyStatus, command: str) -> Text | None:
    """Return the advice to confirm the best of single trainings; None if none is close to it.

    The spread of single trainings is unknown, so a quarter of the range of all values counts as close.
    """
    visible = [trial for trial in status.trials if not trial.hidden]
    complete = list(
        # The first trial of each set of parameters, which is what a confirmation compares.
        {
            identity_of(t.params): t
            for t in reversed(ranked(visible, status))
            if t.state == "complete"
        }.values()
    )[::-1]
    if status.configurations or status.confirmed or status.best is None or len(complete) < 2:
        return None
    values = [t.value for t in complete if t.value is not None and math.isfinite(t.value)]
    if len(values) < 2 or abs(values[1] - values[0]) > 0.25 * (max(values) - min(values)):
        return None
    best = complete[0].number
    second = complete[1].number
    return Text(
        f"one training each: `{command}` tells whether trial {best} is better than trial {second}",
        style="dim",
    )


SHOWN_ROWS = 20
"""Maximum number of configurations, and of finished trials on a terminal; a pipe gets all trials."""

_SHOWN_ERRORS = 3

_UNFINISHED = ("waiting", "running", "interrupted", "paused")


def status_objectives(status: StudyStatus) -> tuple[Objective, ...]:
    """Return a study's objectives in order, one or several."""
    return status.objectives or (Objective(status.objective, status.direction),)


def objectives_text(status: StudyStatus) -> str:
    """Format the objectives: ``maximize val_accuracy``."""
    return ", ".join(
        f"{objective.direction} {objective.name}" for objective in status_objectives(status)
    )


def directions_text(opened: StudyOpened) -> str:
    """Format the objectives whose direction a user should see.

    These are the ones whose direction nobody gave, ``maximize val_accuracy, by its name``, and those whose
    name says otherwise: ``minimize val_accuracy, as given; by its name it would be maximized``.
    """
    objectives = status_objectives(opened.status)
    named = [
        f"{objective.direction} {objective.name}"
        for objective in objectives
        if objective.name in opened.directed_by_name
    ]
    texts = []
    if named:
        source = "by its name" if len(named) == 1 else "by their names"
        texts.append(f"{', '.join(named)}, {source}")
    for objective in objectives:
        by_name = direction_of(objective.name)
        if by_name not in {None, objective.direction}:
            texts.append(
                f"{objective.direction} {objective.name}, as given; by its name it would be {by_name}d"
            )
    return "; ".join(texts)


def codes_lines(status: StudyStatus) -> list[Text]:
    """Return one line for each code with its trials; empty if there is only one code."""
    if not status.codes:
        return []
    lines = [
        Text("trials ran under different code, and are ranked separately for each:", "bold yellow")
    ]
    for group in status.codes:
        numbers = trials_named(group.trials)
        leader = "" if group.best is None else f", best {value_text(group.value, 6)} ({group.best})"
        present = ", the present one" if group.current else ""
        lines.append(Text(f"  {group.code}{present}: {numbers}{leader}"))
    return lines


def lengths_lines(status: StudyStatus) -> list[RenderableType]:
    """Return one line for each length with its trials; empty if all lengths are equal."""
    lengths: dict[int, list[int]] = {}
    for trial in status.trials:
        lengths.setdefault(trial.epochs or 0, []).append(trial.number)
    if len(lengths) < 2:
        return []
    lengths_text = "; ".join(
        f"{epochs} for {trials_named(numbers)}"
        for epochs, numbers in sorted(lengths.items(), reverse=True)
    )
    return [Text(f"epochs: {lengths_text}; trials are ranked by their values at their own lengths")]


def _best_of(status: StudyStatus) -> str | None:
    """Return the best trial's number, or the configuration of which the best value is the mean."""
    if status.best is None:
        return None
    if status.best.configuration is None:
        return str(status.best.number)
    return f"mean of configuration {status.best.configuration}"


def studies_table(statuses: Sequence[StudyStatus]) -> RenderableType:
    """Return a row for each study: progress, counts by state, best value; rare states only where there are some."""
    if not statuses:
        return Text("no studies yet; start one with: sweeper run FILE")
    rare = [
        state
        for state in ("interrupted", "paused")
        if any(getattr(status, state) for status in statuses)
    ]
    states = ["running", *rare, "failed", "waiting"]
    # They are no trials, so they are in no other column.
    observed = ["observations"] if any(status.observations for status in statuses) else []
    rows = [
        [
            status.study,
            f"{status.finished}/{status.target}",
            *(_count(status, state) for state in states),
            status.best.value if status.best else None,
            _best_of(status),
            *([len(status.observations)] if observed else []),
        ]
        for status in statuses
    ]
    table = plain_table(
        ["study", "done", *states, "best", "trial", *observed], rows, left=("study",)
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
    parts: list[RenderableType] = [counts_line(status), Text(objectives_text(status))]
    visible = [trial for trial in status.trials if not trial.hidden]
    unfinished = [trial for trial in visible if trial.state in _UNFINISHED]
    finished = [trial for trial in visible if trial.state not in _UNFINISHED]
    names = [objective.name for objective in status_objectives(status)]
    for lines in (
        configurations_lines(status),
        [TrialsTable(unfinished, latest=names)] if unfinished else [],
        [TrialsTable(ranked(finished, status), codes=_codes(status.codes), most=SHOWN_ROWS)]
        if finished
        else [],
    ):
        parts += [Text(""), *lines] if lines else []
    if status.trials:
        parts.append(Text(""))
    parts += _errors(status.trials)
    if status.pareto:
        front = trials_named(trial.number for trial in status.pareto)
        parts.append(Text.assemble("Pareto front: ", (front, "bold cyan")))
    if status.best is not None and not status.configurations:
        parts.append(
            Text.assemble(
                f"best{' single training' * bool(status.confirmed)}: trial {status.best.number}  ",
                (value_text(status.best.value, 6), "bold cyan"),
                f"  {params_text(status.best.params)}",
            )
        )
    if (twins := twins_text(status)) is not None:
        parts.append(Text(twins, style="dim"))
    parts += lengths_lines(status)
    parts += codes_lines(status)
    parts += annotation_lines(status)
    parts.append(exactness_line(status.exactness))
    return Group(*parts, *next_lines(next_commands))


def trials_listed(
    trials: Sequence[TrialStatus], status: StudyStatus, hidden: int
) -> RenderableType:
    """Return the table of some trials of a study, and how many hidden ones are left out."""
    parts: list[RenderableType] = [TrialsTable(trials, codes=_codes(status.codes))]
    if not trials:
        parts = [Text(f"no trial of study {status.study} is to be listed")]
    if hidden:
        parts.append(Text(f"{counted(hidden, 'hidden trial')}: --all lists them", style="dim"))
    return Group(*parts)


def annotation_lines(status: StudyStatus) -> list[RenderableType]:
    """Return lines on hidden trials and observations; empty without them."""
    lines: list[RenderableType] = []
    hidden = [trial.number for trial in status.trials if trial.hidden]
    if hidden:
        lines.append(Text(f"hidden: {trials_named(hidden)}", style="dim"))
    observed = observed_text(status.observations)
    return lines if observed is None else [*lines, Text(observed, style="dim")]


def _errors(trials: Sequence[TrialStatus]) -> Iterator[RenderableType]:
    """Yield each error once, with the trials that failed or were interrupted because of it."""
    by_error: dict[tuple[str, str], list[int]] = {}
    for trial in trials:
        if trial.error is not None:
            state: str = "cannot succeed" if trial.shows_a_mistake else trial.state
            by_error.setdefault((state, trial.error), []).append(trial.number)
    for (state, error), numbers in list(by_error.items())[:_SHOWN_ERRORS]:
        which = trials_named(numbers, _SHOWN_ERRORS)
        yield Text.assemble((f"{which} {state}: ", "bold red"), error)


def exactness_line(exactness: Exactness) -> Text:
    """Return the result of the study's audits in one line."""
    return Text(exactness.line, style="dim" if exactness.warning is None else "bold red")


def next_lines(commands: Sequence[str]) -> list[RenderableType]:
    """Return the next commands, one on each line."""
    if not commands:
        return []
    return [Text(""), Text("next:", style="dim"), *(Text(f"  {one_line(c)}") for c in commands)]


_COUNTED = ("complete", "pruned", "failed", "running", "interrupted", "paused", "waiting")


def counts_line(status: StudyStatus, states: Sequence[str] = _COUNTED) -> Text:
    """Return a study's progress, and its number of trials in each of these states."""
    line = Text.assemble((status.study, "bold"), f"  {status.finished}/{status.target} done")
    for state in states:
        count = getattr(status, state)
        if count:
            line.append(f", {count} ")
            line.append(state, style=STATE_STYLES[state])
        if state == "complete" and status.reused:
            line.append(f" ({status.reused} reused)")
    if status.seconds_left is not None:
        line.append(f", ~{time_text(status.seconds_left)} left")
    return line


def _codes(groups: Sequence[CodeGroup]) -> dict[int, str] | None:
    if len(groups) < 2:
        return None
    return {number: group.code for group in groups for number in group.trials}
