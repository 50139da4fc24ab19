"""Next trial of a study whose configurations are trained several times, and trials that are not trained.

With a pruner, a configuration's repeats run one after another, so that the same repeats are trained on
any number of workers: after a pruned one, the remaining repeats are stored as pruned without an attempt.
A confirmation is trained in rounds, of which `sweeper.records.comparisons.race` decides the members.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.tables import AnyRow, Study, Trial, change
from sweeper.declarations.repeating import Repeating
from sweeper.declarations.searching import cost_sign
from sweeper.records.comparisons import race
from sweeper.records.results import is_or_are
from sweeper.train.randomness.seeds import TrialSeeds


def repeating_of(study: AnyRow) -> Repeating:
    return Repeating.of(study.definition)


def next_repeat(connection: Connection, study: AnyRow) -> int | str | None:
    """Return the next trial of a study with repeats, or the reason to wait; None if all have ended."""
    results = _results(connection, study)
    if repeating_of(study).confirmed:
        number_or_reason = _next_of_race(connection, study, results)
    else:
        number_or_reason = _next_of_search(study, results)
    unfinished = sum(row.result is None for row in results.values())
    if number_or_reason is None and unfinished:
        return f"all {len(results)} trials have begun, and {unfinished} {is_or_are(unfinished)} still running"
    return number_or_reason


def _results(connection: Connection, study: AnyRow) -> dict[int, AnyRow]:
    rows = connection.execute(
        sa.select(Trial.number, Trial.result, Trial.optuna_trial_id, Trial.reuses).where(
            Trial.study_id == study.id
        )
    )
    return {row.number: row for row in rows}


def _next_of_search(study: AnyRow, results: Mapping[int, AnyRow]) -> int | str | None:
    definition = study.definition
    repeating = repeating_of(study)
    one_by_one = definition.get("pruner") is not None
    unfinished = [number for number, row in results.items() if row.result is None]
    lowest = repeating.index_of(min(unfinished)) if unfinished else study.target
    limit = math.inf
    if study.window is not None:
        limit = definition.get("concurrency", study.window)
    waiting: str | None = None
    for configuration in range(study.target // repeating.repeats):
        if study.window is not None and lowest <= configuration - study.window:
            return (
                f"configuration {configuration} uses the result of configuration {lowest}, which is "
                "still running"
            )
        numbers = [repeating.number(configuration, r) for r in range(repeating.repeats)]
        missing = next((number for number in numbers if number not in results), None)
        if missing is None:
            continue
        if one_by_one and any(number in unfinished for number in numbers):
            waiting = (
                f"the next repeat of configuration {configuration} waits for the one before it"
            )
            continue
        running = sum(results[number].reuses is None for number in unfinished)
        if running >= limit:
            return f"{running} trials are running (concurrency={limit})"
        return missing
    return waiting


def _next_of_race(
    connection: Connection, study: AnyRow, results: Mapping[int, AnyRow]
) -> int | str | None:
    repeating = repeating_of(study)
    for number in range(len(repeating.confirmed) * repeating.repeats):
        if number not in results:
            return number
    ended = {number: row.optuna_trial_id for number, row in results.items() if row.result}
    values = optuna_rows.values(connection, [*ended.values()])
    first = {number: next(iter(values[key]), None) for number, key in ended.items()}
    standing = race(first, study.direction, repeating)
    if standing.round is None:
        return None
    members = [repeating.number(number, standing.round) for number in standing.running]
    missing = [number for number in members if number not in results]
    if not missing:
        return "the next round waits for the running trials of this one"
    change(connection, Study, study.id, target=len(results) + len(missing))
    return missing[0]


def patience_end(connection: Connection, study: AnyRow, number: int) -> int | None:
    """Return the total with which the study ends, if its patience is at its end before trial ``number``.

    Only trials within the window count, which have all ended, so the end is the same on any number of workers.
    """
    patience = study.definition.get("patience")
    repeating = repeating_of(study)
    if patience is None or repeating.confirmed or repeating.repeat_of(number):
        return None
    index = repeating.index_of(number)
    window_end = repeating.number(max(0, index - (study.window or 1) + 1), 0)
    ended = {
        n: row.optuna_trial_id for n, row in _results(connection, study).items() if n < window_end
    }
    values = optuna_rows.values(connection, [*ended.values()])
    sign = cost_sign(study.direction)
    by_configuration: dict[int, list[float]] = {}
    for n in sorted(ended):
        by_configuration.setdefault(repeating.index_of(n), []).extend(values[ended[n]][:1])
    means = {
        n: sign * fmean(repeats)
        for n, repeats in by_configuration.items()
        if len(repeats) == repeating.repeats
    }
    best = min(means, key=lambda n: (means[n], n), default=0)
    return repeating.number(index, 0) if len(by_configuration) - 1 - best >= patience else None


def shown_repeat(study: AnyRow, number: int) -> dict[str, int]:
    """Return the trial's configuration and repeat for Optuna's tools; empty without repeats."""
    repeating = repeating_of(study)
    if repeating.is_single:
        return {}
    return {
        "configuration": repeating.configuration_of(number),
        "repeat": repeating.repeat_of(number),
    }


def skip_remaining(connection: Connection, study_id: int, number: int) -> None:
    """Store the repeats after a pruned one as pruned, without an attempt."""
    study = connection.execute(sa.select(Study).where(Study.id == study_id)).one()
    repeating = repeating_of(study)
    if repeating.is_single or repeating.confirmed:
        return
    results = _results(connection, study)
    # The numbers of a configuration's repeats follow each other.
    for skipped in range(number + 1, repeating.number(repeating.index_of(number) + 1, 0)):
        if skipped in results:
            continue
        optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, skipped)
        optuna_rows.set_attributes(connection, optuna_id, shown_repeat(study, skipped))
        optuna_rows.finish_trials(connection, "pruned", {optuna_id: ()})
        connection.execute(
            sa.insert(Trial).values(
                study_id=study_id,
                number=skipped,
                optuna_trial_id=optuna_id,
                seed=TrialSeeds(study.seed, repeating.seed_position(skipped)).root,
                current_attempt=0,
                crashes=0,
                result="pruned",
            )
        )


def hidden_numbers(study: AnyRow, rows: Iterable[AnyRow]) -> set[int]:
    """Return the numbers of hidden trials among all of a study's.

    A mean without one of its repeats would be selected, so all repeats of a configuration are hidden together,
    and so are the trials that took the result of one.
    """
    trials = list(rows)
    repeating = repeating_of(study)
    configurations = {repeating.configuration_of(row.number) for row in trials if row.hidden}
    hidden = {r.number for r in trials if repeating.configuration_of(r.number) in configurations}
    return hidden | {row.number for row in trials if row.reuses in hidden}


def other_parameters(connection: Connection, name: str, number: int) -> str | None:
    """Return how the trial's parameters differ from those of its configuration's complete repeats, or None."""
    study = connection.execute(sa.select(Study).where(Study.name == name)).one()
    repeating = repeating_of(study)
    results = _results(connection, study)
    index = repeating.index_of(number)
    complete = [n for n, row in results.items() if row.result == "complete"]
    other = min((n for n in complete if repeating.index_of(n) == index), default=number)
    ids = [results[n].optuna_trial_id for n in (number, other)]
    drawn = optuna_rows.parameters(connection, ids)
    names, other_names = ({*drawn[optuna_id].params} for optuna_id in ids)
    if names == other_names:
        return None
    asks = "and does not ask" if names < other_names else "asks"
    return (
        f"trial {number} is repeat {repeating.repeat_of(number)} of the same configuration as trial "
        f"{other}, {asks} for {', '.join(map(repr, sorted(names ^ other_names)))}, unlike that trial; a "
        "configuration's repeats have the same parameters: do not let a parameter depend on trial.repeat"
    )
