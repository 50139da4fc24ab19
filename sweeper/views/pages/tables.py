"""Tables of a study's page, and of its trials' pages: rows of text from records."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median, stdev
from typing import TYPE_CHECKING, Any

from sweeper.records.code import Environment
from sweeper.records.lengths import RungDecision, RungRecord
from sweeper.records.results import AttemptRecord, StudyResults, TrialRecord, WorkerRecord
from sweeper.records.status import ranked
from sweeper.spec.searching import Objective
from sweeper.spec.space import Categorical, Distribution, IntRange
from sweeper.support.shown import shown_text
from sweeper.views.figures.curves import steps_per_epoch
from sweeper.views.figures.drawing import objective_value, objectives_of, ordered
from sweeper.views.formats import choice_text, last_line, params_text, time_text, value_text
from sweeper.views.pages.content import Cell, Row, Table, TrialAddress, numbers, texts, trial_cell

if TYPE_CHECKING:
    from sweeper.db.repository import StudyRow


@dataclass(frozen=True, slots=True)
class LineageAttempt:
    """One attempt, as part of its trial.

    Attributes:
        pause: Seconds between the end of the attempt before and its start; None for the first.
        worked: Its seconds, until now if it runs; None if its end is unknown.
        begins_at: Finished epochs at its start, as a fraction; None if unknown.
        resumes: Whether it resumes from a checkpoint of an earlier attempt.
        ending: Its outcome and reason, in a few words.
    """

    attempt: AttemptRecord
    pause: float | None
    worked: float | None
    begins_at: float | None
    resumes: bool
    ending: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Attempts of a trial, in order.

    Attributes:
        worked: Total seconds of all attempts.
        paused: Total seconds between attempts.
    """

    attempts: tuple[LineageAttempt, ...]
    worked: float
    paused: float

    @property
    def resumed_from(self) -> tuple[int, ...]:
        """Return the steps at which attempts resumed, in order."""
        return tuple(
            each.attempt.start_step
            for each in self.attempts
            if each.resumes and each.attempt.start_step is not None
        )


def lineage(trial: TrialRecord, now: datetime) -> Lineage:
    """Return a trial's lineage at the moment ``now``."""
    an_epoch = steps_per_epoch(trial)
    found: list[LineageAttempt] = []
    before: AttemptRecord | None = None
    for attempt in trial.attempts:
        end = attempt.ended_at
        if end is None and attempt.outcome is None:
            end = now
        pause = None
        if before is not None and before.ended_at is not None:
            pause = max((attempt.started_at - before.ended_at).total_seconds(), 0.0)
        resumes = before is not None and bool(attempt.start_step)
        begins_at = None
        if an_epoch and attempt.start_step is not None:
            begins_at = attempt.start_step / an_epoch
        found.append(
            LineageAttempt(
                attempt=attempt,
                pause=pause,
                worked=None if end is None else (end - attempt.started_at).total_seconds(),
                begins_at=begins_at,
                resumes=resumes and attempt.number > trial.anew_after,
                ending=_ending(attempt, left=attempt.number <= trial.anew_after),
            )
        )
        before = attempt
    return Lineage(
        tuple(found),
        worked=sum(each.worked or 0.0 for each in found),
        paused=sum(each.pause or 0.0 for each in found),
    )


def _ending(attempt: AttemptRecord, *, left: bool) -> str:
    why = last_line(attempt.error or "").partition("; its output is in ")[0]
    match attempt.outcome:
        case None:
            said = "running"
        case "interrupted":
            said = "interrupted: it was asked to stop, and wrote a checkpoint"
        case "paused":
            said = "paused: it reached a rung of the study's budget"
        case "lost":
            said = f"lost: its worker on {attempt.host} is gone"
        case "crashed":
            said = f"crashed: {why or 'its process died'}"
        case "failed":
            said = f"failed: {why or 'its log has why'}"
        case _:
            said = attempt.outcome
    return f"{said}; not resumed, because the definition changed" if left else said


_MOST_NAMED = 8


def decision_text(rung: RungRecord) -> str:
    """Format a rung's decision for a trial."""
    if rung.decision is None:
        return "waits for the others"
    return "promoted" if rung.promoted else "ended here"


def compared_text(rung: RungRecord, number: int) -> str:
    """Format the trials with which ``number`` was compared at a rung; empty before the decision."""
    decision = rung.decision
    if decision is None:
        return ""
    went_on = [trial for trial in decision.compared if trial.promoted]
    named = ", ".join(
        f"{trial.number} ({value_text(trial.value, 6)})"
        for trial in went_on[:_MOST_NAMED]
        if trial.number != number
    )
    more = " and more" if len(went_on) > _MOST_NAMED else ""
    others = f"; also promoted: {named}{more}" if named else ""
    return (
        f"{len(decision.compared)} trials of bracket {decision.bracket} from trial {decision.first} "
        f"on, of which {len(went_on)} went on{others}"
    )


def decisions_of(trials: Iterable[TrialRecord]) -> tuple[RungDecision, ...]:
    """Return all decided rungs, in the order of their rounds and epochs."""
    found = {
        (rung.decision.first, rung.decision.epochs): rung.decision
        for trial in trials
        for rung in trial.rungs
        if rung.decision is not None
    }
    return tuple(found[key] for key in sorted(found))


def promoted_text(decision: RungDecision) -> str:
    """Format the promoted trials of a rung with their values, in ascending order of number."""
    went_on = [trial for trial in decision.compared if trial.promoted]
    return ", ".join(f"{trial.number} ({value_text(trial.value, 6)})" for trial in went_on)


_LAST_EPOCHS = 5
_FEWEST_OF_THE_BEST = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of a group of values.

    Attributes:
        of: Description of the group.
        count: Number of values; the other fields are None if it is 0.
        deviation: Standard deviation; None for fewer than two values.
    """

    of: str
    count: int
    least: float | None = None
    middle: float | None = None
    greatest: float | None = None
    deviation: float | None = None


def spreads(results: StudyResults, objective: Objective) -> tuple[Spread, ...]:
    """Return the spreads of one objective: of the best trials, all trials, seeds, and the last epochs."""
    complete = [
        (trial, value)
        for trial in results.trials
        if trial.state == "complete"
        and (value := objective_value(trial, objective.name)) is not None
        and math.isfinite(value)
    ]
    values = ordered([value for _, value in complete], objective.direction)
    top = values[: max(_FEWEST_OF_THE_BEST, math.ceil(len(values) / 10))]
    found = [
        _spread(f"the best {len(top)} of {len(values)} complete trials (other parameters)", top),
        _spread(f"all {len(values)} complete trials", values),
    ]
    if not results.status.objectives and results.status.best is not None:
        best = results.best
        found.append(_last_epochs(best, objective))
        found.append(_of_seeds(best, complete))
    return tuple(found)


def _last_epochs(best: TrialRecord, objective: Objective) -> Spread:
    known = [e.metrics[objective.name] for e in best.epochs if objective.name in e.metrics]
    last = [value for value in known[-_LAST_EPOCHS:] if math.isfinite(value)]
    return _spread(f"the last {len(last)} epochs of the best trial, {best.number}", last)


def _of_seeds(best: TrialRecord, complete: Sequence[tuple[TrialRecord, float]]) -> Spread:
    """Return the trials with the best one's parameters, which differ only in their seeds."""
    by_params: defaultdict[str, list[float]] = defaultdict(list)
    for trial, value in complete:
        by_params[_params_key(trial)].append(value)
    same = by_params[_params_key(best)]
    if len(same) < 2:
        return Spread("seeds alone: no other trial has the best one's parameters", 0)
    return _spread(f"seeds alone: the {len(same)} trials with the best one's parameters", same)


def _params_key(trial: TrialRecord) -> str:
    return json.dumps(dict(trial.params), sort_keys=True)


def _spread(of: str, values: Sequence[float]) -> Spread:
    if not values:
        return Spread(of, 0)
    deviation = stdev(values) if len(values) > 1 else None
    return Spread(of, len(values), min(values), median(values), max(values), deviation)


_LEADERS = 5


@dataclass(frozen=True)
class Shown:
    """Content of a study's page.

    Attributes:
        results: The study's results.
        row: The stored study.
        now: End of the working time of running attempts.
        address: Function from a trial's number to its page's address.
        environments: Environments of its attempts.
        changes: Accepted changes of the definition, a sentence each.
        workers: Processes that serve or served it.
    """

    results: StudyResults
    row: StudyRow
    now: datetime
    address: TrialAddress
    environments: tuple[Environment, ...] = ()
    changes: tuple[str, ...] = ()
    workers: tuple[WorkerRecord, ...] = ()

    @property
    def source(self) -> str | None:
        """Return ``FILE[:NAME]`` of the study; None if unknown."""
        given = self.row.source or {}
        location, name = given.get("location"), given.get("name")
        return f"{location}:{name}" if location and name else location or None


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
    ("audit", "audited"),
)

THROUGH = frozenset({"complete", "pruned", "paused"})
"""Outcomes of attempts without an interruption: at the trial's end, or at a rung."""


def moment(at: datetime | None) -> str:
    """Format a time in UTC to the second; ``-`` for none."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def objectives_text(results: StudyResults) -> str:
    """Format the objectives: ``val_accuracy (maximize)``."""
    return ", ".join(f"{o.name} ({o.direction})" for o in objectives_of(results))


def value_cell(value: float | None) -> str:
    """Format a number for the pages; a phrase for none."""
    return "none yet" if value is None else value_text(value, 6)


def settings_table(shown: Shown) -> Table:
    """Return the study's settings."""
    given = {"at": "end", "seed": shown.row.seed, **shown.row.definition}
    given["trials"] = shown.results.status.target
    rows = [("objective", objectives_text(shown.results))]
    rows += [(words, _plain(given[name])) for name, words in _SETTINGS if name in given]
    return Table("Settings of the study", texts("setting", "value"), tuple(rows))


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
    """Return the parameters and their ranges, each from the first trial that has it."""
    found: dict[str, Distribution] = {}
    for trial in results.trials:
        for name, distribution in trial.distributions.items():
            found.setdefault(name, distribution)
    used = {n: sum(n in t.params for t in results.trials) for n in found}
    rows = tuple((name, *_range(d), str(used[name])) for name, d in found.items())
    columns = (*texts("parameter", "kind", "values"), *numbers("trials"))
    return Table("The parameters and their ranges", columns, rows)


def _range(distribution: Distribution) -> tuple[str, str]:
    if isinstance(distribution, Categorical):
        return "one of", ", ".join(choice_text(choice) for choice in distribution.choices)
    kind = "whole number" if isinstance(distribution, IntRange) else "number"
    words = f"{distribution.low:g} to {distribution.high:g}"
    if distribution.log:
        words += ", on a logarithmic scale"
    elif distribution.step not in (None, 1):
        words += f", in steps of {distribution.step:g}"
    return kind, words


def running_table(shown: Shown) -> Table | None:
    """Return the progress of each running trial; None if none runs."""
    status = shown.results.status
    running = [trial for trial in status.trials if trial.state == "running"]
    if not running:
        return None
    names = [objective.name for objective in objectives_of(shown.results)]
    rows: tuple[Row, ...] = tuple(
        (
            trial_cell(trial.number, shown.address),
            Cell(
                f"{trial.epoch} of {trial.epochs}" if trial.epochs else str(trial.epoch),
                progress=(trial.epoch, trial.epochs) if trial.epochs else None,
            ),
            *(value_text(trial.metrics.get(name), 6) for name in names),
            str(trial.attempts),
        )
        for trial in running
    )
    columns = (*texts("trial", "epochs finished"), *numbers(*names, "attempt"))
    return Table("Running trials", columns, rows, key="running")


def leaders_table(shown: Shown) -> Table | None:
    """Return the leading complete trials, the best first, with their metrics on held-out data.

    Returns None if no trial is complete.
    """
    status = shown.results.status
    complete = [t for t in ranked(shown.results.trials, status) if t.state == "complete"]
    if not complete:
        return None
    leading = complete[: max(_LEADERS, len(status.pareto))]
    evaluated = sorted({(e.data, n) for t in leading for e in t.evaluations for n in e.metrics})
    table = _trials_table(shown, leading, "Leading trials", "leading")
    held_out = texts(*(f"{name} on {data} (held out)" for data, name in evaluated))
    rows = (
        (*row, *(_held_out(trial, data, name) for data, name in evaluated))
        for row, trial in zip(table.rows, leading, strict=True)
    )
    return Table(table.caption, (*table.columns, *held_out), tuple(rows), key=table.key)


def _held_out(trial: TrialRecord, data: str, name: str) -> str:
    """Format the metric of the latest checkpoint that was measured on these data."""
    found = [e for e in trial.evaluations if e.data == data and name in e.metrics]
    if not found:
        return "not measured"
    newest = max(found, key=lambda e: e.step)
    return f"{value_text(newest.metrics[name], 6)} (step {newest.step})"


def all_trials_table(shown: Shown) -> Table:
    """Return every trial that has begun, by its number."""
    trials = sorted(shown.results.trials, key=lambda trial: trial.number)
    return _trials_table(shown, trials, "All trials", "trial")


def _trials_table(shown: Shown, trials: Sequence[TrialRecord], caption: str, key: str) -> Table:
    results = shown.results
    params = list(dict.fromkeys(name for trial in results.trials for name in trial.params))
    objectives = [objective.name for objective in objectives_of(results)]
    rows = []
    for trial in trials:
        found = lineage(trial, shown.now)
        reason = ""
        if trial.state == "failed":
            reason = last_line(trial.error or "")
        elif trial.state == "interrupted" and found.attempts:
            reason = found.attempts[-1].ending
        rows.append(
            (
                trial_cell(trial.number, shown.address),
                Cell(trial.state, kind="state", note=shown_text(reason)),
                *(value_cell(objective_value(trial, name)) for name in objectives),
                *(choice_text(trial.params[n]) if n in trial.params else "-" for n in params),
                epochs_text(trial, most_epochs(shown.row)),
                str(len(trial.attempts)),
                time_text(found.worked),
                time_text(found.paused) if len(trial.attempts) > 1 else "-",
                "-" if trial.verification is None else trial.verification.verdict,
                str(trial.seed),
                Cell(trial.digest or "none", kind="digest"),
            )
        )
    columns = (
        *texts("trial", "state"),
        *numbers(*objectives),
        *texts(*params),
        *numbers("epochs", "attempts", "worked", "paused"),
        *texts("verified", "seed", "digest"),
    )
    return Table(caption, columns, tuple(rows), key=key)


def epochs_text(trial: TrialRecord, most: int | None) -> str:
    """Format a trial's finished epochs, with the total if it is known."""
    return str(len(trial.epochs)) if most is None else f"{len(trial.epochs)} of {most}"


def most_epochs(row: StudyRow) -> int | None:
    """Return the number of epochs of the study's trials; None if unknown."""
    most = row.definition.get("epochs")
    return most if isinstance(most, int) else None


def spread_table(results: StudyResults) -> Table:
    """Return the spreads of each objective."""
    rows = [
        (
            objective.name,
            spread.of,
            str(spread.count),
            *(
                value_text(number, 4)
                for number in (spread.least, spread.middle, spread.greatest, spread.deviation)
            ),
        )
        for objective in objectives_of(results)
        for spread in spreads(results, objective)
    ]
    columns = (
        *texts("objective", "spread of"),
        *numbers("values", "least", "middle", "greatest", "std. deviation"),
    )
    return Table("How far the answer spreads", columns, tuple(rows))


def comparison_table(results: StudyResults, other: StudyResults) -> Table:
    """Return a comparison of two studies with the same objectives."""

    def column(found: StudyResults) -> list[str]:
        lines = [f"{found.status.finished} of {found.status.target}"]
        for objective in objectives_of(found):
            top, whole = spreads(found, objective)[:2]
            best = top.greatest if objective.direction == "maximize" else top.least
            lines += [value_cell(best), value_cell(top.middle), value_cell(whole.middle)]
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
    return Table("Side by side", texts("", results.status.study, other.status.study), rows)


def interrupted_table(shown: Shown) -> Table:
    """Return the attempts of every interrupted or unfinished trial.

    A trial that paused at a rung and was promoted does not count as interrupted.
    """
    rows = []
    for trial in shown.results.trials:
        if {attempt.outcome for attempt in trial.attempts} <= THROUGH:
            continue
        for attempt in trial.attempts:
            ended = attempt.ended_at
            took = None if ended is None else (ended - attempt.started_at).total_seconds()
            rows.append(
                (
                    trial_cell(trial.number, shown.address),
                    str(attempt.number),
                    attempt.outcome or "running",
                    "not known" if attempt.start_step is None else str(attempt.start_step),
                    "-" if attempt.end_step is None else str(attempt.end_step),
                    moment(attempt.started_at),
                    time_text(took),
                    attempt.host,
                    shown_text(last_line(attempt.error or "")) or "-",
                )
            )
    columns = (
        *texts("trial", "attempt", "outcome"),
        *numbers("from step", "to step"),
        *texts("began (UTC)", "took", "host", "why"),
    )
    return Table("Attempts that were interrupted or resumed", columns, tuple(rows))


def rungs_table(results: StudyResults) -> Table | None:
    """Return the decisions at the rungs of a budget; None if there is none."""
    rows = tuple(
        (
            str(each.first),
            str(each.bracket),
            str(each.epochs),
            str(len(each.compared)),
            promoted_text(each) or "nobody",
            moment(each.decided_at),
        )
        for each in decisions_of(results.trials)
    )
    columns = (
        *numbers("from trial", "bracket", "after epoch", "compared"),
        *texts("promoted", "decided (UTC)"),
    )
    return Table("Decisions at the rungs of the budget", columns, rows) if rows else None


def lengths_table(trials: Iterable[TrialRecord], address: TrialAddress) -> Table | None:
    """Return the results of extended trials at each length; None if none was extended."""
    rows = tuple(
        (
            trial_cell(trial.number, address),
            str(length.epochs),
            str(length.trained),
            length.state,
            params_text(length.values) if length.values else value_cell(length.value),
            Cell(length.digest or "none", kind="digest"),
        )
        for trial in trials
        if trial.earlier_lengths
        for length in trial.lengths
    )
    columns = (
        *texts("trial"),
        *numbers("length", "epochs trained"),
        *texts("state", "value", "digest"),
    )
    return Table("Results of extended trials at each length", columns, rows) if rows else None


def verified_table(trials: Iterable[TrialRecord], address: TrialAddress) -> Table:
    """Return every verification and audit."""
    rows: list[Row] = []
    for trial in trials:
        found, whose = trial.verification, trial_cell(trial.number, address)
        if found is not None:
            how = "killed and resumed" if found.mode == "interrupt" else "replayed"
            said = str(found.report.get("message") or "-")
            rows.append((whose, how, found.verdict, moment(found.checked_at), said))
        rows += [
            (
                whose,
                f"audited from step {audit.from_step} to {audit.to_step}",
                audit.outcome,
                "-",
                audit.message or "-",
            )
            for audit in trial.audits
        ]
    columns = texts("trial", "how", "found", "when (UTC)", "what was said")
    return Table("Replays and their verdicts", columns, tuple(rows))


def workers_table(workers: Sequence[WorkerRecord]) -> Table:
    """Return the processes that serve or served the study."""
    rows = tuple(
        (
            f"{worker.host}, process {worker.pid}",
            worker.engine,
            str(worker.slots),
            moment(worker.joined_at),
            _whereabouts(worker),
        )
        for worker in workers
    )
    columns = (*texts("where", "engine"), *numbers("slots"), *texts("joined (UTC)", "now"))
    return Table("Workers of the study", columns, rows)


def _whereabouts(worker: WorkerRecord) -> str:
    if worker.live:
        return "at work"
    if worker.left_at is None:
        return "disappeared"
    return f"left {moment(worker.left_at)}{f': {worker.error}' if worker.error else ''}"


def environments_table(environments: Sequence[Environment]) -> Table:
    """Return the environments of the attempts."""
    rows = []
    for found in environments:
        versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        rows.append(
            (
                ", ".join(found.hosts),
                versions or "not known",
                found.processor or "not known",
                ", ".join(found.devices) or "not known",
                "/".join(map(str, found.threads)) or "not known",
                str(found.attempts),
            )
        )
    columns = (
        *texts("hosts", "versions", "processor", "devices", "threads (op/between)"),
        *numbers("attempts"),
    )
    return Table("Environments of the attempts", columns, tuple(rows))


def identity_table(shown: Shown) -> Table:
    """Return fingerprints and digests."""
    row = shown.row
    rows: list[Row] = [
        ("fingerprint of definition and code", Cell(row.fingerprint, kind="code")),
        ("fingerprint of the code", "none stored" if row.code is None else row.code.digest),
        ("the study's file", shown.source or "unknown: it was defined in a notebook or a script"),
    ]
    rows += [
        (f"digest of trial {t.number}", Cell(t.digest or "none", kind="code"))
        for t in shown.results.pareto
    ]
    rows += [("accepted change", change) for change in shown.changes]
    return Table("What identifies the study", texts("what", "value"), tuple(rows))
