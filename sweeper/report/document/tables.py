"""The tables of a report: rows of text from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.declared.space import Categorical, CategoricalChoice, Distribution, IntRange
from sweeper.records.environments import Environment
from sweeper.report.document.spread import Spread, spreads
from sweeper.report.figures.choosing import objective_value, objectives_of
from sweeper.report.formats import last_line, params_text, time_text, value_text
from sweeper.report.rungs import decisions_of, promoted_text
from sweeper.results import StudyResults, TrialRecord
from sweeper.support.shown import shown_text


@dataclass(frozen=True)
class Row:
    """The study as it is stored, and what surrounds it.

    Attributes:
        definition: Its settings, as plain JSON.
        fingerprint: Of definition and code.
        code: The code's, in full; None where none is stored.
        changes: Of the definition, that were accepted: a sentence each.
        source: ``FILE[:NAME]`` that it is run from, as it was given; None where not known.
        environments: Under which its attempts ran.
    """

    definition: dict[str, Any]
    fingerprint: str
    code: str | None
    changes: tuple[str, ...]
    source: str | None
    environments: tuple[Environment, ...]


@dataclass(frozen=True)
class Table:
    """A table of the page; every cell is text."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


_SETTINGS = (
    ("epochs", "epochs a trial"),
    ("trials", "trials"),
    ("sampler", "sampler"),
    ("pruner", "pruner"),
    ("budget", "budget"),
    ("concurrency", "trials at once at most"),
    ("seed", "seed"),
    ("at", "a trial's value is of its epoch"),
    ("deterministic", "deterministic kernels"),
    ("threads", "threads a trial"),
    ("checkpoint_every", "a checkpoint every"),
)

THROUGH = frozenset({"complete", "pruned", "paused"})
"""Outcomes of attempts that nothing interrupted: one at its end, or at a rung of the budget."""


def question_table(results: StudyResults, row: Row) -> Table:
    """The study's settings."""
    given = {"at": "last", "trials": results.status.target, **row.definition}
    given["trials"] = results.status.target
    rows = [("objective", objectives_text(results))]
    rows += [(words, _plain(given[name])) for name, words in _SETTINGS if name in given]
    return Table("What was asked", ("setting", "value"), tuple(rows))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        parts = [_plain(v) if k == "class" else f"{k}={_plain(v)}" for k, v in value.items()]
        return ", ".join(parts)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def space_table(results: StudyResults) -> Table:
    """Its parameters, as the first trial that has each drew it."""
    found: dict[str, Distribution] = {}
    for trial in results.trials:
        for name, distribution in trial.distributions.items():
            found.setdefault(name, distribution)
    used = {n: sum(n in t.params for t in results.trials) for n in found}
    rows = tuple((name, *_range(d), str(used[name])) for name, d in found.items())
    return Table("The parameters and their ranges", ("parameter", "kind", "values", "trials"), rows)


def _range(distribution: Distribution) -> tuple[str, str]:
    if isinstance(distribution, Categorical):
        return "one of", ", ".join(_choice(choice) for choice in distribution.choices)
    kind = "whole number" if isinstance(distribution, IntRange) else "number"
    words = f"{distribution.low:g} to {distribution.high:g}"
    if distribution.log:
        words += ", on a logarithmic scale"
    elif distribution.step not in (None, 1):
        words += f", in steps of {distribution.step:g}"
    return kind, words


def best_table(results: StudyResults) -> Table | None:
    """The best trial or the Pareto front; None where no trial is complete."""
    leading = results.pareto
    if not leading:
        return None
    names = list(dict.fromkeys(name for trial in leading for name in trial.params))
    objectives = objectives_of(results)
    evaluated = sorted({(e.data, n) for t in leading for e in t.evaluations for n in e.metrics})
    headers = ("trial", *(o.name for o in objectives), *names, "seed", "digest")
    held_out = [f"{name} on {data} (held out)" for data, name in evaluated]
    rows = [
        (
            str(trial.number),
            *(value_text_or_none(objective_value(trial, o.name)) for o in objectives),
            *(_param(trial, name) for name in names),
            str(trial.seed),
            trial.digest or "none",
            *(_held_out(trial, data, name) for data, name in evaluated),
        )
        for trial in leading
    ]
    return Table("The answer's parameters", (*headers, *held_out), tuple(rows))


def _held_out(trial: TrialRecord, data: str, name: str) -> str:
    """Of the checkpoint with the most steps that was measured on these data."""
    found = [e for e in trial.evaluations if e.data == data and name in e.metrics]
    if not found:
        return "not measured"
    newest = max(found, key=lambda e: e.step)
    return f"{value_text(newest.metrics[name], 6)} (step {newest.step})"


def spread_table(results: StudyResults) -> Table:
    """The spreads of each objective."""
    rows = [
        (objective.name, *_spread_row(spread))
        for objective in objectives_of(results)
        for spread in spreads(results, objective)
    ]
    headers = ("objective", "spread of", "values", "least", "middle", "greatest", "std. deviation")
    return Table("How far the answer spreads", headers, tuple(rows))


def _spread_row(spread: Spread) -> tuple[str, ...]:
    numbers = (spread.least, spread.middle, spread.greatest, spread.deviation)
    return (spread.of, str(spread.count), *(value_text(number, 4) for number in numbers))


def comparison_table(results: StudyResults, other: StudyResults) -> Table:
    """Two studies of the same objectives, side by side."""

    def column(found: StudyResults) -> list[str]:
        lines = [f"{found.status.finished} of {found.status.target}"]
        for objective in objectives_of(found):
            top, whole = spreads(found, objective)[:2]
            best = top.greatest if objective.direction == "maximize" else top.least
            lines += [
                value_text_or_none(best),
                value_text_or_none(top.middle),
                value_text_or_none(whole.middle),
            ]
        names = {name for trial in found.trials for name in trial.params}
        lines.append(", ".join(sorted(names)) or "none")
        lines.append(str(max((len(trial.epochs) for trial in found.trials), default=0)))
        return lines

    headings = ["finished trials"]
    for objective in objectives_of(results):
        headings += [
            f"best {objective.name}",
            f"{objective.name}, middle of the best",
            f"{objective.name}, middle of all complete trials",
        ]
    headings += ["parameters", "epochs of the longest trial"]
    rows = tuple(zip(headings, column(results), column(other), strict=True))
    return Table("Side by side", ("", results.status.study, other.status.study), rows)


def trials_table(results: StudyResults) -> Table:
    """Every trial that has begun."""
    names = list(dict.fromkeys(name for trial in results.trials for name in trial.params))
    objectives = objectives_of(results)
    rows = tuple(
        (
            str(trial.number),
            trial.state,
            *(value_text_or_none(objective_value(trial, o.name)) for o in objectives),
            *(_param(trial, name) for name in names),
            str(len(trial.epochs)),
            str(len(trial.attempts)),
            str(trial.seed),
            trial.digest or "none",
        )
        for trial in results.trials
    )
    headers = (
        *("trial", "state", *(o.name for o in objectives), *names),
        *("epochs", "attempts", "seed", "digest"),
    )
    return Table("Every trial", headers, rows)


def _param(trial: TrialRecord, name: str) -> str:
    if name not in trial.params:
        return "-"
    return _choice(trial.params[name])


def _choice(value: CategoricalChoice) -> str:
    return params_text({"": value}).removeprefix("=")


def interrupted_table(results: StudyResults) -> Table:
    """The attempts of every trial that was interrupted, or is not over.

    That one pauses at a rung and goes on when it is promoted is no interruption.
    """
    rows = []
    for trial in results.trials:
        if {attempt.outcome for attempt in trial.attempts} <= THROUGH:
            continue
        for attempt in trial.attempts:
            ended = attempt.ended_at
            took = None if ended is None else (ended - attempt.started_at).total_seconds()
            rows.append(
                (
                    str(trial.number),
                    str(attempt.number),
                    attempt.outcome or "running",
                    "not known" if attempt.start_step is None else str(attempt.start_step),
                    "-" if attempt.end_step is None else str(attempt.end_step),
                    f"{attempt.started_at:%Y-%m-%d %H:%M:%S}",
                    time_text(took),
                    attempt.host,
                    shown_text(last_line(attempt.error or "")) or "-",
                )
            )
    headers = (
        *("trial", "attempt", "outcome", "from step", "to step"),
        *("began (UTC)", "took", "host", "why"),
    )
    return Table("Attempts that did not go through at once", headers, tuple(rows))


def rungs_table(results: StudyResults) -> Table | None:
    """What was decided at the rungs of a budget; None where nothing was."""
    decided = decisions_of(results.trials)
    if not decided:
        return None
    rows = tuple(
        (
            str(each.first),
            str(each.bracket),
            str(each.epochs),
            str(len(each.compared)),
            promoted_text(each) or "nobody",
            f"{each.decided_at:%Y-%m-%d %H:%M:%S}",
        )
        for each in decided
    )
    headers = ("from trial", "bracket", "after epoch", "compared", "promoted", "decided (UTC)")
    return Table("What was decided at the rungs of the budget", headers, rows)


def descent_table(results: StudyResults) -> Table | None:
    """Which trials went on from a checkpoint of another; None where none did."""
    rows = tuple(
        (
            str(trial.number),
            str(parent.number),
            str(parent.step),
            str(parent.epoch),
            params_text(parent.changed) or "nothing",
            parent.digest,
        )
        for trial in results.trials
        if (parent := trial.parent) is not None
    )
    headers = ("trial", "goes on from trial", "at step", "after epoch", "changed", "digest there")
    return Table("Trials that go on from another one", headers, rows) if rows else None


def lengths_table(results: StudyResults) -> Table | None:
    """What extended trials gave at each length; None where none was extended."""
    rows = tuple(
        (
            str(trial.number),
            str(length.epochs),
            str(length.trained),
            length.state,
            params_text(length.values) if length.values else value_text_or_none(length.value),
            length.digest or "none",
        )
        for trial in results.trials
        if trial.earlier_lengths
        for length in trial.lengths
    )
    headers = ("trial", "length", "epochs trained", "state", "value", "digest")
    return Table("What extended trials gave at each length", headers, rows) if rows else None


def verified_table(results: StudyResults) -> Table:
    """Every verification and audit."""
    rows: list[tuple[str, ...]] = []
    for trial in results.trials:
        found = trial.verification
        if found is not None:
            how = "killed and resumed" if found.mode == "interrupt" else "replayed"
            said = str(found.report.get("message") or "-")
            when = f"{found.checked_at:%Y-%m-%d %H:%M:%S}"
            rows.append((str(trial.number), how, found.verdict, when, said))
        rows += [
            (
                str(trial.number),
                f"audited from step {audit.from_step} to {audit.to_step}",
                audit.outcome or "waits",
                "-",
                audit.message or "-",
            )
            for audit in trial.audits
        ]
    headers = ("trial", "how", "found", "when (UTC)", "what was said")
    return Table("What was run again and compared", headers, tuple(rows))


def environments_table(environments: Sequence[Environment]) -> Table:
    """The surroundings of the attempts."""
    rows = []
    for found in environments:
        versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        threads = "/".join(map(str, found.threads)) or "not known"
        rows.append(
            (
                ", ".join(found.hosts),
                versions or "not known",
                found.processor or "not known",
                ", ".join(found.devices) or "not known",
                threads,
                str(found.attempts),
            )
        )
    headers = ("hosts", "versions", "processor", "devices", "threads (op/between)", "attempts")
    return Table("Where the attempts ran", headers, tuple(rows))


def identity_table(results: StudyResults, row: Row) -> Table:
    """Fingerprints and digests."""
    rows = [
        ("fingerprint of definition and code", row.fingerprint),
        ("fingerprint of the code", row.code or "none stored"),
        ("the study's file", row.source or "not known: it was defined in a notebook or a script"),
    ]
    rows += [(f"digest of trial {t.number}", t.digest or "none") for t in results.pareto]
    rows += [("accepted change", change) for change in row.changes]
    return Table("What identifies the study", ("what", "value"), tuple(rows))


def objectives_text(results: StudyResults) -> str:
    """The objectives in words."""
    return ", ".join(f"{o.name} ({o.direction})" for o in objectives_of(results))


def value_text_or_none(value: float | None) -> str:
    """A number as the page has it; words where there is none."""
    return "none yet" if value is None else value_text(value, 6)
