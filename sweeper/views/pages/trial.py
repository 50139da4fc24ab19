"""Page of a trial: its attempts, curves, checkpoints, audits and evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sweeper.records.results import AttemptRecord, CheckpointRecord, TrialRecord
from sweeper.views.figures.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    as_text,
    figure,
    shortened,
)
from sweeper.views.formats import (
    choice_text,
    objective_first,
    params_text,
    size_text,
    time_text,
    value_text,
)
from sweeper.views.pages.content import (
    Cell,
    Link,
    Page,
    Picture,
    Section,
    Table,
    no_address,
    numbers,
    texts,
)
from sweeper.views.pages.tables import (
    Lineage,
    compared_text,
    decision_text,
    epochs_text,
    lengths_table,
    lineage,
    moment,
    verified_table,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLACK)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SHAPES = ("circle", "square", "diamond", "cross", "triangle-up", "x")
_FEW = 20
"""Largest number of epochs that all have a tick on the axis."""


_FILES = 5
"""Maximum number of files whose paths are shown."""


def trial_curves(trial: TrialRecord, objective: str, now: datetime) -> Figure:
    """Draw a trial's metrics at the time ``now``; epochs are counted from 1.

    The objective and the same metric of the training data are shown, all others on request.
    """
    reported = dict.fromkeys((name for epoch in trial.epochs for name in epoch.metrics), 0.0)
    names = objective_first(reported, objective)
    return figure(
        [
            _curve(trial, name, index, shown=_is_alike(name, objective))
            for index, name in enumerate(names)
        ],
        f"Trial {trial.number}",
        xaxis={
            "title": {"text": "epoch"},
            "rangemode": "tozero",
            **({"dtick": 1} if len(trial.epochs) <= _FEW else {}),
        },
        yaxis={"title": {"text": as_text(shortened(objective))}},
        hovermode="x unified",
        showlegend=True,
        **_resumes(trial, now),
    )


def _is_alike(name: str, objective: str) -> bool:
    """Return whether two metrics are the same metric of training and validation data."""
    return name.removeprefix("val_") == objective.removeprefix("val_")


def _curve(trial: TrialRecord, name: str, index: int, *, shown: bool) -> dict[str, Any]:
    points = [(e.epoch + 1, e.metrics[name]) for e in trial.epochs if name in e.metrics]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": as_text(shortened(name)),
        "x": [epoch for epoch, _ in points],
        "y": [value if math.isfinite(value) else None for _, value in points],
        "visible": True if shown else "legendonly",
        "line": {"color": _COLOURS[index % len(_COLOURS)], "dash": _DASHES[index % len(_DASHES)]},
        "marker": {"symbol": _SHAPES[index % len(_SHAPES)]},
    }


def _resumes(trial: TrialRecord, now: datetime) -> dict[str, Any]:
    found = [
        each for each in lineage(trial, now).attempts if each.resumes and each.begins_at is not None
    ]
    return {
        "shapes": [
            {
                "type": "line",
                "x0": each.begins_at,
                "x1": each.begins_at,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "#444444", "dash": "dot", "width": 1.5},
            }
            for each in found
        ],
        "annotations": [
            {
                "x": each.begins_at,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"attempt {each.attempt.number} resumes at step {each.attempt.start_step}",
                "font": {"size": 12, "color": "#222222"},
            }
            for each in found
        ],
    }


CURVES = "trial-curves"
_SHOWN_EPOCHS = 30


def trial_page(
    trial: TrialRecord,
    objective: str | None,
    *,
    now: datetime,
    most: int | None = None,
    commands: Sequence[str] = (),
    study: Link | None = None,
    elsewhere: Link | None = None,
) -> Page:
    """Return the page of a trial at the moment ``now``.

    Args:
        trial: The trial.
        objective: The metric of its value, if known.
        now: End of the working time of a running attempt.
        most: Maximum number of its epochs, if known.
        commands: Next commands.
        study: Link to the study's page.
        elsewhere: Link to the trial in optuna-dashboard.
    """
    objective = objective or "value"
    found = lineage(trial, now)
    several = len(trial.attempts) > 1
    lead = f"{epochs_text(trial, most)} epochs · {time_text(found.worked)} of work in "
    lead += f"{len(trial.attempts)} attempt{'s' if len(trial.attempts) != 1 else ''}"
    lead += f", {time_text(found.paused)} of pauses between them" if several else ""
    verified = verified_table([trial], no_address)
    lengths = lengths_table([trial], no_address)
    sections = (
        Section("attempts", "Attempts", tables=(_attempts(found),)),
        Section("rungs", "Rungs", tables=(_rungs(trial, objective),)) if trial.rungs else None,
        Section("lengths", "Lengths", tables=(_own(lengths),)) if lengths else None,
        Section(
            "curves",
            "Curves",
            picture=_curves(trial, objective, now),
            tables=(_epochs(trial, objective),),
        )
        if trial.epochs
        else None,
        Section("checkpoints", "Checkpoints", tables=(_checkpoints(trial),)),
        Section("verified", "Verifications and audits", tables=(_own(verified),)),
        Section("evaluations", "Evaluations on held-out data", tables=(_evaluations(trial),))
        if trial.evaluations
        else None,
        Section("commands", "What to type next", commands=tuple((c, "") for c in commands))
        if commands
        else None,
    )
    return Page(
        title=f"trial {trial.number} of {trial.study}",
        heading=f"Trial {trial.number} of {trial.study}",
        lead=lead,
        facts=(
            ("state", Cell(trial.state, kind="state")),
            *_facts(trial, objective),
        ),
        error=trial.error or "",
        sections=tuple(section for section in sections if section is not None),
        path=() if study is None else (study, Link(f"trial {trial.number}")),
        elsewhere=elsewhere,
        live=trial.state == "running",
    )


def _facts(trial: TrialRecord, objective: str) -> list[tuple[str, Cell]]:
    measured: Mapping[str, float | None] = trial.values or {objective: trial.value}
    facts = [(name, Cell(value_text(value, 6))) for name, value in measured.items()]
    if trial.value_of is not None:
        facts.append(("value of", Cell(trial.value_of)))
    facts += [(name, Cell(choice_text(value))) for name, value in trial.params.items()]
    facts += [
        ("seed", Cell(str(trial.seed))),
        ("digest", Cell(trial.digest or "-", kind="digest")),
        ("code", Cell(trial.code or "-", kind="code")),
    ]
    if trial.output_only:
        facts.append(("not captured", Cell(f"{', '.join(trial.output_only)} (output only)")))
    for name, used in (("files read", "read"), ("files written", "written")):
        if paths := [str(file["path"]) for file in trial.files[used]]:
            more = f" and {len(paths) - _FILES} more" if len(paths) > _FILES else ""
            facts.append((name, Cell(f"{', '.join(paths[:_FILES])}{more}")))
    facts += [("noticed", Cell(notice)) for notice in trial.files["notices"]]
    if trial.warm_start:
        facts.append(("began from", Cell(_began_from(trial.warm_start))))
    return facts


def _began_from(report: Mapping[str, Any]) -> str:
    matched, left = len(report["matched"]), len(report["mismatches"])
    rest = f", {left} that did not fit" if left else ""
    return f"{report['path']} ({report['kind']}, {report['digest'][:8]}): {matched} variables{rest}"


def _own(table: Table) -> Table:
    """Return the table without its first column, which names the trial."""
    return Table(table.caption, table.columns[1:], tuple(row[1:] for row in table.rows))


def _attempts(found: Lineage) -> Table:
    rows = tuple(
        (
            str(each.attempt.number),
            f"{each.attempt.host}:{'?' if each.attempt.pid is None else each.attempt.pid}",
            _step(each.attempt.start_step) + (" (resumed)" if each.resumes else ""),
            _step(each.attempt.end_step),
            ("at most " if each.attempt.outcome == "lost" else "") + time_text(each.worked),
            moment(each.attempt.started_at),
            time_text(each.pause),
            each.ending,
        )
        for each in found.attempts
    )
    columns = (
        *texts("attempt", "where"),
        *numbers("from step", "to step", "worked", "began (UTC)", "pause before"),
        *texts("how it ended"),
    )
    return Table("Attempts at the trial", columns, rows, key="attempt")


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)


def _rungs(trial: TrialRecord, objective: str) -> Table:
    rows = tuple(
        (
            str(rung.epochs),
            value_text(rung.value, 6),
            decision_text(rung),
            compared_text(rung, trial.number),
        )
        for rung in trial.rungs
    )
    columns = (*numbers("after epoch", objective), *texts("decision", "compared"))
    return Table("Rungs of the budget", columns, rows)


def _curves(trial: TrialRecord, objective: str, now: datetime) -> Picture:
    alt = (
        "Every metric by epoch, with a line where an attempt resumed; the table of epochs has "
        "the values."
    )
    return Picture(CURVES, "Curves", alt, lambda: trial_curves(trial, objective, now))


def _epochs(trial: TrialRecord, objective: str) -> Table:
    shown = trial.epochs[-_SHOWN_EPOCHS:]
    reported = dict.fromkeys((name for epoch in shown for name in epoch.metrics), 0.0)
    names = objective_first(reported, objective)
    rows = tuple(
        (str(epoch.epoch + 1), *(value_text(epoch.metrics.get(name), 6) for name in names))
        for epoch in shown
    )
    folded = f"The latest {len(shown)} of {len(trial.epochs)} epochs as a table"
    hidden = len(trial.epochs) - len(shown)
    cut = f"{hidden} earlier epochs: use --json or --csv" if hidden else ""
    return Table("Epochs", numbers("epoch", *names), rows, folded=folded, cut=cut)


def _checkpoints(trial: TrialRecord) -> Table:
    rows = tuple(
        (
            str(each.step),
            str(each.epoch),
            size_text(each.bytes),
            Cell(each.digest, kind="digest"),
            _attempt_of(each, trial.attempts),
            Cell(each.path, kind="code"),
        )
        for each in trial.checkpoints
    )
    columns = (*numbers("step", "after epoch", "size"), *texts("digest", "attempt", "path"))
    return Table("Kept checkpoints", columns, rows)


def _attempt_of(checkpoint: CheckpointRecord, attempts: Sequence[AttemptRecord]) -> str:
    """Return the attempt that wrote the checkpoint, by its directory."""
    for attempt in attempts:
        if f"/attempt-{attempt.number:02d}/" in checkpoint.path:
            return str(attempt.number)
    return "-"


def _evaluations(trial: TrialRecord) -> Table:
    rows = tuple(
        (
            each.data,
            str(each.step),
            str(each.epoch),
            "no" if each.path is None else "yes",
            moment(each.evaluated_at),
            params_text(each.metrics),
        )
        for each in trial.evaluations
    )
    columns = (
        *texts("evaluated on"),
        *numbers("step", "after epoch"),
        *texts("kept", "evaluated (UTC)", "metrics"),
    )
    return Table("Evaluations of the trial's checkpoints", columns, rows)
