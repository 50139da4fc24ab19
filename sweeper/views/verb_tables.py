"""Tables of single verbs: ``show``, ``compare``, ``evaluate``, ``doctor`` and ``check``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.declarations.observing import observed_text
from sweeper.declarations.searching import Objective
from sweeper.records.diagnoses import Diagnosis
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.lengths import LengthRecord
from sweeper.records.printing import counted
from sweeper.records.results import AttemptRecord, StudyStatus, TrialRecord
from sweeper.views.formats import (
    choice_text,
    last_line,
    objective_first,
    params_text,
    size_text,
    time_text,
    value_text,
)
from sweeper.views.tables import STATE_STYLES, exactness_line, next_lines, plain_table

_DIGEST = 12
_SHOWN_EPOCHS = 30
_SHOWN_TRIALS = 8
_SHOWN_FILES = 5
_MARK = "*"

_Cells = Sequence[Sequence[Any]]


def trial_on_terminal(
    trial: TrialRecord, study: StudyStatus, commands: Sequence[str] = ()
) -> RenderableType:
    """Return a rich renderable of a trial, with its study's audits.

    Epochs are counted from 1; the epoch of a checkpoint is the last finished one.
    """
    parts: list[RenderableType] = [
        Text(f"Trial {trial.number} of {trial.study}", style="bold"),
        Text(_lead(trial)),
        _facts(trial, study),
    ]
    if trial.error:
        parts += [Text(""), Text(_without_repetition(trial.error), style="red")]
    headers = ["attempt", "where", "from step", "to step", "worked", "began (UTC)", "end"]
    parts += _section(headers, _attempts(trial))
    parts += _section(["after epoch", study.objective, "decision", "compared"], _rungs(trial))
    if trial.earlier_lengths:
        lengths = [
            [
                length.epochs,
                length.trained,
                length.state,
                _value(length),
                (length.digest or "-")[:_DIGEST],
            ]
            for length in trial.lengths
        ]
        parts += _section(["length", "epochs trained", "state", "value", "digest"], lengths)
    latest = trial.epochs[-_SHOWN_EPOCHS:]
    hidden = len(trial.epochs) - len(latest)
    reported = dict.fromkeys((name for epoch in latest for name in epoch.metrics), 0.0)
    names = objective_first(reported, study.objective)
    # Other metrics have the digits of the progress lines: float32, as Keras reports them, may differ in the sixth
    # from the parameter that they repeat, such as a learning rate.
    measured = [trial.values or (), study.objective]
    digits = {name: 6 if any(name in of for of in measured) else 5 for name in names}
    epochs = [
        [e.epoch + 1, *(value_text(e.metrics.get(name), digits[name]) for name in names)]
        for e in latest
    ]
    cut = f"{hidden} earlier epochs: use --json or --csv" if hidden else ""
    parts += _section(["epoch", *names], epochs, cut=cut, left=())
    parts += _checkpoints(trial)
    parts += _section(["how", "found", "when (UTC)", "what was said"], _verified(trial))
    evaluations = [
        [e.data, e.step, e.epoch, "no" if e.path is None else "yes", params_text(e.metrics)]
        for e in trial.evaluations
    ]
    parts += _section(["evaluated on", "step", "after epoch", "kept", "metrics"], evaluations)
    whole = Text.assemble("the study's ", exactness_line(study.exactness))
    return Group(*parts, Text(""), whole, *next_lines(commands))


def _checkpoints(trial: TrialRecord) -> list[RenderableType]:
    """Return a table of a trial's checkpoints, and the directory that contains them, in one line to copy."""
    if not trial.checkpoints:
        return []
    paths = [checkpoint.path for checkpoint in trial.checkpoints]
    directory = paths[0].rpartition("/")[0]
    while any(not path.startswith(f"{directory}/") for path in paths):
        directory = directory.rpartition("/")[0]
    rows = []
    for checkpoint in trial.checkpoints:
        path = checkpoint.path.removeprefix(directory).lstrip("/")
        size = size_text(checkpoint.bytes)
        digest = checkpoint.digest[:_DIGEST]
        rows.append([checkpoint.step, checkpoint.epoch, size, digest, path])
    table = _section(["step", "after epoch", "size", "digest", "checkpoint"], rows)
    return [*table, Text(f"in {directory}", no_wrap=True, overflow="ignore")]


def _lead(trial: TrialRecord) -> str:
    durations = [seconds for seconds in map(_seconds, trial.attempts) if seconds is not None]
    most = "at most " if any(map(_is_upper_bound, trial.attempts)) else ""
    worked = ""
    if durations or not trial.attempts:
        worked = f" · {most}{time_text(sum(durations))} of work"
    epochs = counted(len(trial.epochs), "epoch")
    attempts = counted(len(trial.attempts), "attempt")
    return f"{epochs}{worked} in {attempts}"


def _seconds(attempt: AttemptRecord) -> float | None:
    end = attempt.ended_at or (datetime.now(UTC) if attempt.outcome is None else None)
    return None if end is None else (end - attempt.started_at).total_seconds()


def _is_upper_bound(attempt: AttemptRecord) -> bool:
    """Return whether an attempt's time ends when its loss was noticed, because nobody saw its end."""
    return attempt.outcome == "lost" and _seconds(attempt) is not None


def _value(length: LengthRecord) -> str:
    return params_text(length.values) if length.values else value_text(length.value, 6)


def _attempts(trial: TrialRecord) -> _Cells:
    rows = []
    for attempt in trial.attempts:
        resumes = attempt.number > max(trial.ignore_checkpoints_through, 1) and attempt.start_step
        first_step = f"{attempt.start_step} (resumed)" if resumes else attempt.start_step
        where = f"{attempt.host}:{'?' if attempt.pid is None else attempt.pid}"
        most = "at most " if _is_upper_bound(attempt) else ""
        started_at = f"{attempt.started_at:%Y-%m-%d %H:%M:%S}"
        rows.append(
            [
                attempt.number,
                where,
                first_step,
                attempt.end_step,
                most + time_text(_seconds(attempt)),
                started_at,
                _ending(attempt, trial),
            ]
        )
    return rows


def _facts(trial: TrialRecord, study: StudyStatus) -> Table:
    objective = study.objective
    grid = _grid()
    grid.add_row("state", Text(trial.state, style=STATE_STYLES.get(trial.state, "")))
    measured: Mapping[str, float | None] = trial.values or {objective: trial.value}
    facts = [(name, value_text(value, 6)) for name, value in measured.items()]
    facts += [(name, choice_text(value)) for name, value in trial.params.items()]
    facts += [("seed", str(trial.seed)), ("digest", trial.digest or "-")]
    facts.append(("code", trial.code or "-"))
    facts += _annotations(trial, study)
    if trial.value_of is not None:
        facts.append(("value of", trial.value_of))
    if trial.output_only:
        facts.append(("not captured", f"{', '.join(trial.output_only)} (output only)"))
    for use in ("read", "written"):
        if trial.files[use]:
            facts.append((f"files {use}", _files_text(trial.files[use])))
    facts += [("noticed", notice) for notice in trial.files["notices"]]
    if trial.warm_start:
        report = trial.warm_start
        mismatched = len(report["mismatches"])
        rest = f", {mismatched} that did not fit" if mismatched else ""
        file_text = f"{report['path']} ({report['kind']}, {report['digest'][:8]})"
        facts.append(("began from", f"{file_text}: {len(report['matched'])} variables{rest}"))
    for name, value in facts:
        grid.add_row(Text(name), Text(value))
    return grid


def _annotations(trial: TrialRecord, study: StudyStatus) -> list[tuple[str, str]]:
    used = observed_text([o for o in study.observations if o.is_used_by(trial.number)])
    texts = {
        "tags": " ".join(trial.tags),
        "note": trial.note,
        "hidden": "not listed, and never the best one" if trial.hidden else None,
        "drawn with": used,
    }
    return [(name, text) for name, text in texts.items() if text]


def _files_text(files: Sequence[Mapping[str, Any]]) -> str:
    paths = [str(file["path"]) for file in files[:_SHOWN_FILES]]
    hidden = len(files) - len(paths)
    more = f" and {hidden} more" if hidden else ""
    return f"{', '.join(paths)}{more}"


def _grid() -> Table:
    """Return an empty table of names and texts."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _section(
    headers: Sequence[str], rows: _Cells, *, cut: str = "", left: Sequence[str] | None = None
) -> list[RenderableType]:
    """Return a table below an empty line, with its last column at the left; empty without rows."""
    if not rows:
        return []
    parts = [Text(""), Text(cut, style="dim")] if cut else [Text("")]
    return [*parts, plain_table(headers, rows, headers[-1:] if left is None else left)]


def _without_repetition(error: str) -> str:
    """Return an error whose traceback ends with the same error without that last line of the traceback."""
    traceback, _, line = error.rstrip("\n").rpartition("\n")
    above, _, last = traceback.rstrip("\n").rpartition("\n")
    return f"{above}\n{line}" if last and line.startswith(last) else error.rstrip("\n")


def _ending(attempt: AttemptRecord, trial: TrialRecord) -> str:
    ending: str = attempt.outcome or "running"
    if attempt.error:
        shown_above = attempt.error == trial.error
        why = last_line(attempt.error).partition("; its output is in ")[0]
        ending += ", see above" if shown_above else f": {why}"
    ignored = attempt.number <= trial.ignore_checkpoints_through
    return f"{ending}; not resumed, because the definition changed" if ignored else ending


def _rungs(trial: TrialRecord) -> _Cells:
    decided = {None: "waits for the others", True: "promoted", False: "ended here"}
    rows = []
    for rung in trial.rungs:
        summary = ""
        if rung.decision is not None:
            promoted = [compared for compared in rung.decision.compared if compared.promoted]
            names = ", ".join(
                f"{t.number} ({value_text(t.value, 6)})" for t in promoted[:_SHOWN_TRIALS]
            )
            summary = (
                f"{counted(len(rung.decision.compared), 'trial')}; promoted: {names or 'none'}"
            )
        rows.append([rung.epochs, rung.value, decided[rung.promoted], summary or "-"])
    return rows


def _verified(trial: TrialRecord) -> _Cells:
    verification = trial.verification
    rows = []
    if verification is not None:
        method = "killed and resumed" if verification.mode == "interrupt" else "replayed"
        message = str(verification.report.get("message") or "-")
        rows.append(
            [method, verification.verdict, f"{verification.checked_at:%Y-%m-%d %H:%M:%S}", message]
        )
    rows += [
        [
            f"audited from step {audit.from_step} to {audit.to_step}",
            *(audit.outcome or "waits", "-", audit.message or "-"),
        ]
        for audit in trial.audits
    ]
    return rows


@dataclass(frozen=True)
class Comparison:
    """Two or more trials side by side, in the given order."""

    trials: Sequence[TrialRecord]

    def to_json(self) -> dict[str, Any]:
        """Return the names of differing values, and each trial as in ``show``."""
        return {
            "differing": {
                "params": _differing([trial.params for trial in self.trials]),
                "metrics": _differing([_latest(trial) for trial in self.trials]),
            },
            "trials": [trial.to_json() for trial in self.trials],
        }

    def __rich__(self) -> RenderableType:
        """Draw a column for each trial, with a mark on the rows that differ."""
        trials = self.trials
        facts = [
            {
                "state": trial.state,
                "value": value_text(trial.value, 6),
                "epochs": str(len(trial.epochs)),
                "attempts": str(len(trial.attempts)),
                "seed": str(trial.seed),
                "code": trial.code or "-",
                "digest": (trial.digest or "-")[:_DIGEST],
            }
            for trial in trials
        ]
        rows = [
            *_compared("", facts, str),
            *_compared("parameters", [trial.params for trial in trials], choice_text),
            *_compared("metrics", [_latest(trial) for trial in trials], lambda v: value_text(v, 6)),
        ]
        several = len({trial.study for trial in trials}) > 1
        labels = [f"{t.study}:{t.number}" if several else f"trial {t.number}" for t in trials]
        note = Text(f"{_MARK} differs; metrics of each trial's latest epoch", style="dim")
        return Group(plain_table(["", "", *labels], rows, left=("",)), Text(""), note)


def _compared(
    title: str, trials: Sequence[Mapping[str, Any]], text: Callable[[Any], str]
) -> list[list[Text]]:
    """Return a row for each name: a mark if the trials differ, the name, and each trial's text."""
    differing = _differing(trials)
    names = list(dict.fromkeys(name for values in trials for name in values))
    rows = [[Text(), Text(title, "dim"), *(Text() for _ in trials)]] if title and names else []
    for name in names:
        style = "bold" if name in differing else ""
        mark = Text(_MARK if style else "", "yellow")
        cells = [text(values[name]) if name in values else "-" for values in trials]
        rows.append([mark, *(Text(cell, style) for cell in (name, *cells))])
    return rows


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
            *(rank, record.trial, record.step, record.epoch),
            *(record.metrics.get(name) for name in names),
            record.path,
        ]
        for rank, record in enumerate(records, 1)
    ]
    headers = ("rank", "trial", "step", "after epoch", *names, "checkpoint")
    return plain_table(headers, rows, left=("checkpoint",))


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
