"""Next trial of a study whose configurations are trained several times, and trials that are not trained.

With a pruner, a configuration's repeats run one after another, so that the same repeats are trained on
any number of workers: after a pruned one, the remaining repeats are stored as pruned without an attempt.
A confirmation is trained in rounds, of which `sweeper.records.comparisons.race` decides the members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.tables import AnyRow, Study, Trial
from sweeper.records.comparisons import race
from sweeper.records.status import are
from sweeper.spec.repeating import Confirmation, Numbering
from sweeper.train.randomness.seeds import TrialSeeds


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The next trial to begin: its number, and Optuna's id of the study's newest trial, or -1."""

    number: int
    newest: int


def numbering_of(study: AnyRow) -> Numbering:
    """Return the numbering of a study's trials."""
    return Numbering.of(study.definition)


def next_repeat(connection: Connection, study: AnyRow) -> NextTrial | str | None:
    """Return the next trial of a study with repeats, or the reason to wait; None if all have ended."""
    definition = study.definition
    results = _results(connection, study)
    newest = max((row.optuna_trial_id for row in results.values()), default=-1)
    open_trials = sorted(n for n, row in results.items() if row.result is None)
    found: int | str | None
    if definition.get("confirm"):
        found = _next_of_race(
            connection, study, Confirmation.from_json(definition["confirm"]), results
        )
    else:
        found = _next_of_search(study, results, open_trials)
    if found is None and open_trials:
        count = len(open_trials)
        return f"all {len(results)} trials have begun, and {count} {are(count)} still running"
    return NextTrial(found, newest) if isinstance(found, int) else found


def _results(connection: Connection, study: AnyRow) -> dict[int, AnyRow]:
    rows = connection.execute(
        sa.select(Trial.number, Trial.result, Trial.optuna_trial_id).where(
            Trial.study_id == study.id
        )
    )
    return {row.number: row for row in rows}


def _next_of_search(
    study: AnyRow, results: Mapping[int, AnyRow], open_trials: list[int]
) -> int | str | None:
    definition, numbering = study.definition, numbering_of(study)
    total = study.target // numbering.repeats
    one_by_one = definition.get("pruner") is not None
    lowest = numbering.repeat_of(open_trials[0]).configuration if open_trials else None
    waiting: str | None = None
    for configuration in range(total):
        if (
            study.window is not None
            and lowest is not None
            and lowest <= configuration - study.window
        ):
            waiting = (
                f"configuration {configuration} uses the result of configuration {lowest}, which is "
                "still running"
            )
            break
        numbers = [numbering.number(configuration, r) for r in range(numbering.repeats)]
        missing = next((number for number in numbers if number not in results), None)
        if missing is None:
            continue
        if one_by_one and any(n in results and results[n].result is None for n in numbers):
            waiting = (
                f"the next repeat of configuration {configuration} waits for the one before it"
            )
            continue
        limit = definition.get("concurrency", study.window)
        if study.window is not None and len(open_trials) >= limit:
            return f"{len(open_trials)} trials are running (concurrency={limit})"
        return missing
    return waiting


def _next_of_race(
    connection: Connection,
    study: AnyRow,
    confirmation: Confirmation,
    results: Mapping[int, AnyRow],
) -> int | str | None:
    numbering = Numbering(confirmed=len(confirmation.configurations))
    for number in range(numbering.number(0, confirmation.repeats)):
        if number not in results:
            return number
    unfinished = sum(row.result is None for row in results.values())
    if unfinished:
        return f"the next round waits for {unfinished} running trial{'s' * (unfinished > 1)}"
    values = race_values(connection, study, numbering)
    latest = numbering.repeat_of(max(results)).repeat
    before = {c: {r: v for r, v in own.items() if r < latest} for c, own in values.items()}
    limits = {"repeats": confirmation.repeats, "at_most": confirmation.at_most}
    # The members of the latest round are decided by the rounds before it.
    members = race(before, study.direction, **limits).running
    if latest >= confirmation.repeats:
        for configuration in members:
            if numbering.number(configuration, latest) not in results:
                return numbering.number(configuration, latest)
    standing = race(values, study.direction, **limits)
    if standing.round is None or standing.round <= latest:
        # Without a value of the latest round, all of its trainings have failed.
        return None
    connection.execute(
        sa.update(Study)
        .where(Study.id == study.id)
        .values(target=len(results) + len(standing.running))
    )
    return numbering.number(standing.running[0], standing.round)


def race_values(
    connection: Connection, study: AnyRow, numbering: Numbering
) -> dict[int, dict[int, float]]:
    """Return the values of complete trials by configuration (its index) and repeat."""
    rows = connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id)
        .where(Trial.study_id == study.id, Trial.result == "complete")
        .order_by(Trial.number)
    ).all()
    values = optuna_rows.values(connection, [row.optuna_trial_id for row in rows])
    found: dict[int, dict[int, float]] = {c: {} for c in range(numbering.confirmed)}
    for row in rows:
        trained = numbering.repeat_of(row.number)
        found[trained.configuration][trained.repeat] = values[row.optuna_trial_id]
    return found


def shown_repeat(study: AnyRow, number: int) -> dict[str, int]:
    """Return the trial's configuration and repeat for Optuna's tools; empty without repeats."""
    definition = study.definition
    numbering = Numbering.of(definition)
    if numbering.is_plain:
        return {}
    trained = numbering.repeat_of(number)
    confirm = definition.get("confirm")
    shown = confirm["configurations"][trained.configuration] if confirm else trained.configuration
    return {"configuration": shown, "repeat": trained.repeat}


def skip_remaining(connection: Connection, study_id: int, number: int) -> None:
    """Store the repeats after a pruned one as pruned, without an attempt."""
    study = connection.execute(sa.select(Study).where(Study.id == study_id)).one()
    numbering = numbering_of(study)
    if numbering.repeats == 1 or numbering.confirmed:
        return
    trained = numbering.repeat_of(number)
    results = _results(connection, study)
    for repeat in range(trained.repeat + 1, numbering.repeats):
        skipped = numbering.number(trained.configuration, repeat)
        if skipped in results:
            continue
        optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, skipped)
        optuna_rows.set_attributes(connection, optuna_id, shown_repeat(study, skipped))
        optuna_rows.finish_trial(connection, optuna_id, "pruned")
        connection.execute(
            sa.insert(Trial).values(
                study_id=study_id,
                number=skipped,
                optuna_trial_id=optuna_id,
                seed=TrialSeeds(study.seed, numbering.seed_position(skipped)).root,
                current_attempt=0,
                crashes=0,
                result="pruned",
            )
        )


def other_parameters(connection: Connection, study_id: int, number: int) -> str | None:
    """Return how the trial's parameters differ from those of its configuration's complete repeats, or None."""
    study = connection.execute(sa.select(Study).where(Study.id == study_id)).one()
    numbering = numbering_of(study)
    if numbering.is_plain:
        return None
    trained = numbering.repeat_of(number)
    rows = connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id)
        .where(
            Trial.study_id == study_id, sa.or_(Trial.result == "complete", Trial.number == number)
        )
        .order_by(Trial.number)
    ).all()
    alike = [
        r for r in rows if numbering.repeat_of(r.number).configuration == trained.configuration
    ]
    params = optuna_rows.drawn_values(connection, [row.optuna_trial_id for row in alike])
    own = next(params.get(row.optuna_trial_id, {}) for row in alike if row.number == number)
    for row in alike:
        other = params.get(row.optuna_trial_id, {})
        names = sorted({*own} ^ {*other})
        if names:
            shown = ", ".join(map(repr, names))
            missing = "and does not ask" if set(names) <= set(other) else "asks"
            return (
                f"trial {number} is repeat {trained.repeat} of the same configuration as trial "
                f"{row.number}, {missing} for {shown}, unlike that trial; a configuration's repeats "
                "have the same parameters: do not let a parameter depend on trial.repeat"
            )
    return None
