"""Drawing of a run's state on a terminal of a given width and height.

Columns are chosen by priority until the window is full, so a narrow window has fewer columns, and a
low one fewer trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.records.results import BestTrial
from sweeper.views.formats import objective_first, params_text, rate_text, time_text, value_text
from sweeper.views.terminal.lines import checkpoint_text
from sweeper.views.terminal.model import Snapshot, TrialProgress

_OBJECTIVE = "bold cyan"
_METRIC_COLUMNS = 5
_WIDEST_METRIC = 24
_NARROWEST_METRIC = 8
_GAP = 2
_BAR = 12
_MOST_NUMBERS = 6
_LEAST_TRIALS = 1
"""Number of running trials that are always drawn."""


def draw(
    snapshot: Snapshot, width: int, height: int = 1000, *, stop: str = "Ctrl-C"
) -> RenderableType:
    """Draw a snapshot of a run.

    Args:
        snapshot: The snapshot.
        width: Columns of the terminal.
        height: Lines of the terminal.
        stop: The user's action to stop the run; empty if it is over.
    """
    if snapshot.measured is not None:
        return Group(Text(""), _evaluation(snapshot, stop))
    if snapshot.study is None:
        return Text(f"{snapshot.doing or 'opening the study'} ...", style="dim")
    above = [Text(""), *_header(snapshot)]
    if snapshot.doing is not None:
        above.append(Text(f"{snapshot.doing} ...", style="dim"))
    below = [*_leaders(snapshot), *_advice(snapshot, stop)]
    taken = sum(_lines(text, width) for text in (*above, *below))
    # One line is the table's header, and the last of the window is the cursor's.
    room = max(_LEAST_TRIALS, height - taken - 2)
    return Group(*above, *_trials(snapshot, width, room), *below)


def _lines(text: Text, width: int) -> int:
    if text.no_wrap:
        return 1
    # Words are kept whole, which may take a little more than the bare sum.
    lines, used = 1, 0
    for word in text.plain.split(" "):
        needed = len(word) + (used > 0)
        if used and used + needed > width:
            lines, used = lines + 1, 0
            needed = len(word)
        used += needed
        lines += max(0, used - 1) // width
        used = (used - 1) % width + 1 if used else 0
    return lines


def _header(snapshot: Snapshot) -> list[Text]:
    study, verified = snapshot.study, snapshot.verified
    if study is None:
        return []
    words: list[tuple[str, str]] = [(study.study, "bold")]
    if verified is None:
        words.append((f"  {snapshot.done}/{study.target} done", ""))
        words += _counts(
            (snapshot.pruned, "pruned", "yellow"), (snapshot.failed, "failed", "bold red")
        )
        words.append((f", {len(snapshot.running)} running", ""))
        words += _counts(
            (snapshot.elsewhere, "elsewhere", ""),
            (snapshot.interrupted, "interrupted", "yellow"),
            (snapshot.paused, "paused", "yellow"),
            (snapshot.waiting, "waiting", "dim"),
        )
    else:
        words.append((f"  {verified.done}/{study.target} verified", ""))
        words.append((f", {verified.alike} identical", "green" if verified.alike else ""))
        words += _counts((verified.differing, "differing", "bold red"))
        words.append((f", {len(snapshot.running)} replayed now", ""))
        words += _counts((snapshot.waiting, "waiting", "dim"))
    words.append((f"  {time_text(snapshot.seconds)}", "dim"))
    if snapshot.seconds_left:
        words.append((f", ~{time_text(snapshot.seconds_left)} left", ""))
    lines = [Text.assemble(*words)]
    if snapshot.checkpoint is not None:
        kept = snapshot.checkpoint
        text = f"last checkpoint: {checkpoint_text(kept)} (trial {kept.trial}, step {kept.step})"
        lines.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


def _counts(*counts: tuple[int, str, str]) -> Iterable[tuple[str, str]]:
    return ((f", {count} {what}", style) for count, what, style in counts if count)


def _leaders(snapshot: Snapshot) -> list[Text]:
    study = snapshot.study
    if study is None or snapshot.verified is not None:
        return []
    if study.objectives:
        return [Text(f"objectives: {', '.join(study.objectives)}", style="dim")]
    if not snapshot.leaders:
        return [Text("best: none yet", style="dim")]
    names = ["best:", *("then:" for _ in snapshot.leaders[1:])]
    return [
        _leader(name, leader, study.objective)
        for name, leader in zip(names, snapshot.leaders, strict=True)
    ]


def _leader(name: str, leader: BestTrial, objective: str) -> Text:
    return Text.assemble(
        f"{name} trial {leader.number}  ",
        (f"{objective} {value_text(leader.value)}", _OBJECTIVE),
        (f"  {params_text(leader.params)}", ""),
        no_wrap=True,
        overflow="ellipsis",
    )


def _advice(snapshot: Snapshot, stop: str) -> list[Text]:
    """Return the line on the effect of ``stop``, or, after it, on trials that have not stopped and how to resume."""
    study = snapshot.study
    if study is None or not stop:
        return []
    if snapshot.verified is not None:
        return [Text(f"{stop} stops; the verdicts so far are stored", style="dim")]
    if snapshot.stopping is None:
        return [
            Text.assemble(
                (f"{stop} checkpoints and stops; go on with: ", "dim"), study.resume_command
            )
        ]
    return [
        Text(_stopping(snapshot, stop), style="bold yellow"),
        Text.assemble(("go on with: ", "dim"), study.resume_command),
    ]


def _stopping(snapshot: Snapshot, stop: str) -> str:
    """Return the line on trials that have not stopped yet."""
    numbers = [str(trial.number) for trial in snapshot.running]
    if not numbers:
        return "stopping"
    which = f"trial {numbers[0]}" if len(numbers) == 1 else f"trials {', '.join(numbers)}"
    if len(numbers) > _MOST_NUMBERS:
        which = f"{len(numbers)} trials"
    if snapshot.killing:
        return f"killing {which}; go on from the newest checkpoint"
    verbs = "finishes its step and writes" if len(numbers) == 1 else "finish their step and write"
    return f"stopping: {which} {verbs} a checkpoint; {stop} again kills"


@dataclass(frozen=True)
class _Column:
    """One column: header, cell, width and priority.

    Of two columns, the one with the lower ``rank`` stays longer as the window gets narrower.
    """

    title: str
    cell: Callable[[TrialProgress], RenderableType]
    width: int
    rank: int
    style: str = ""
    left: bool = False


def _trials(snapshot: Snapshot, width: int, room: int) -> list[RenderableType]:
    running = snapshot.running
    if not running:
        return []
    shown = running if len(running) <= room else running[: max(_LEAST_TRIALS, room - 1)]
    columns = _fitting(_columns(snapshot), width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for column in columns:
        table.add_column(
            Text(column.title),
            justify="left" if column.left else "right",
            width=column.width,
            style=column.style,
            no_wrap=True,
            overflow="ellipsis",
        )
    for trial in shown:
        table.add_row(*(column.cell(trial) for column in columns))
    drawn: list[RenderableType] = [table]
    if len(shown) < len(running):
        drawn.append(Text(f"and {len(running) - len(shown)} more running", style="dim"))
    return drawn


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return the columns that fit, in order; the first in rank always fits."""
    kept: list[_Column] = []
    used = 0
    for column in sorted(columns, key=lambda c: c.rank):
        if kept and used + column.width > width:
            continue
        kept.append(column)
        used += column.width + _GAP
    return [column for column in columns if column in kept]


def _columns(snapshot: Snapshot) -> list[_Column]:
    running = snapshot.running
    objective = snapshot.study.objective if snapshot.study else None
    steps = max((2 * len(str(trial.steps)) + 1 for trial in running if trial.steps), default=0)
    text = [
        _text_column("trial", running, lambda t: str(t.number), 0),
        _text_column("state", running, _state, 6, left=True),
        _text_column("epoch", running, _epoch, 1),
        _text_column("step", running, _step, 4, least=steps),
        _Column("", lambda t: ProgressBar(total=1.0, completed=t.fraction, width=_BAR), _BAR, 20),
        _text_column("steps/s", running, lambda t: rate_text(t.rate), 5),
        _text_column("left", running, lambda t: time_text(t.seconds_left), 3, least=6),
    ]
    seen = {name: 0.0 for trial in running for name in trial.metrics}
    if objective is not None and not (snapshot.study and snapshot.study.objectives):
        seen.setdefault(objective, 0.0)
    names = objective_first(seen, objective)[:_METRIC_COLUMNS]
    for index, name in enumerate(names):
        text.append(_metric_column(name, 2 if name == objective else 8 + index, name == objective))
    return text


def _text_column(
    title: str,
    running: Iterable[TrialProgress],
    cell: Callable[[TrialProgress], str],
    rank: int,
    *,
    left: bool = False,
    least: int = 0,
) -> _Column:
    longest = max((len(cell(trial)) for trial in running), default=0)
    return _Column(title, cell, max(len(title), longest, least), rank, left=left)


def _metric_column(name: str, rank: int, is_objective: bool) -> _Column:
    return _Column(
        name,
        lambda trial: value_text(trial.metrics.get(name)),
        min(max(len(name), _NARROWEST_METRIC), _WIDEST_METRIC),
        rank,
        style=_OBJECTIVE if is_objective else "",
    )


def _state(trial: TrialProgress) -> str:
    return "resumed" if trial.resumed_at and not trial.metrics else trial.phase


def _epoch(trial: TrialProgress) -> str:
    return f"{trial.epoch}/{trial.epochs}" if trial.epochs else "-"


def _step(trial: TrialProgress) -> str:
    if not trial.epochs:
        return "-"
    return f"{trial.step}/{trial.steps}" if trial.steps else str(trial.step)


def _evaluation(snapshot: Snapshot, stop: str) -> Text:
    measured = snapshot.measured
    if measured is None:
        return Text()
    opened = measured.opened
    words = [
        (opened.study, "bold"),
        (f"  {measured.done}/{opened.checkpoints} checkpoints measured", ""),
        *_counts((measured.passed_over, "passed over", "yellow")),
        (f"  {time_text(snapshot.seconds)}", "dim"),
    ]
    if measured.best is not None:
        trial, step, value = measured.best
        words.append((f"\nbest: trial {trial} at step {step}  ", ""))
        words.append((f"{opened.metric} {value_text(value)}", _OBJECTIVE))
    if stop:
        words.append((f"\n{stop} stops; what was measured is stored", "dim"))
    return Text.assemble(*words)
