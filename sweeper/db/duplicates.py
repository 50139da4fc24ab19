"""Proposals that a study has already trained: reused, trained with further seeds, or drawn again.

The parameters of a trial are known once its factories have requested them. Then, before it trains, its
worker proposes them here. The answer depends on the trials with lower numbers alone: while one of these may
still turn out to have the same parameters, the trial waits. So the same trials are trained on any number
of workers. A trial that reuses the result of one that still trains holds no slot; it ends with that one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.leases import is_lost, open_attempts
from sweeper.db.repeats import repeating_of, skip_remaining
from sweeper.db.tables import AnyRow, Epoch, Study, Trial, change
from sweeper.declarations.searching import MOST_REDRAWS
from sweeper.records.code import digest_of
from sweeper.records.configurations import identity_of
from sweeper.train.randomness.seeds import TrialSeeds


@dataclass(frozen=True, slots=True)
class Proposal:
    """Decision on a trial whose parameters are known.

    "reuse" takes the result of the trial ``of``. "again" runs the factories again, after ``redraws``
    draws or with the seeds after those of ``proposals`` earlier ones. "wait" is for a lower trial to request
    its parameters; "leave" ends the attempt, so that the slot claims that lower trial.
    """

    decision: Literal["train", "reuse", "again", "wait", "leave"]
    of: int | None = None
    redraws: int = 0
    proposals: int = 0


def propose(connection: Connection, trial: AnyRow, *, alone: bool) -> Proposal:
    """Decide on the current trial, a row with its ``id``, before it trains for the first time.

    ``alone`` is of a trial whose result depends on its number.
    """
    study = connection.execute(sa.select(Study).where(Study.id == trial.study_id)).one()
    row = connection.execute(sa.select(Trial).where(Trial.id == trial.id)).one()
    parameters = optuna_rows.parameters(connection, (row.optuna_trial_id,))
    params = parameters[row.optuna_trial_id].params
    repeating = repeating_of(study)
    repeat = repeating.repeat_of(row.number)
    epochs = row.epochs or study.definition.get("epochs")
    policy = study.definition.get("duplicates", "reuse")
    # Other seeds and other parameters are given to what was proposed already, whatever else it depends on.
    alone = alone and policy == "reuse"
    names = [study.fingerprint or "", f"{repeat} of {epochs}", identity_of(params)]
    configuration = digest_of(*names, *([f"number {row.number}"] if alone else []))
    if policy != "redraw":  # whose parameters are known once they will not be drawn again
        change(connection, Trial, row.id, configuration=configuration)
    trained_anyway = policy == "train" and repeating.repeats == 1
    # Rungs compare single trainings, and a trial without parameters was not proposed.
    compared = params and not study.definition.get("budget") and not repeating.confirmed
    if trained_anyway or alone or not compared:
        return Proposal("train")
    below = (Trial.study_id == study.id, Trial.number < row.number)
    unknown = sa.select(Trial).where(*below, Trial.result.is_(None), Trial.configuration.is_(None))
    rows = connection.execute(unknown).all()
    lower = [candidate for candidate in rows if repeating.repeat_of(candidate.number) == repeat]
    # The parameters that a lower trial has requested so far may be drawn again.
    blocking = lower if policy == "redraw" else [*_unknown(connection, lower, params)]
    if blocking:
        live = {
            attempt.trial_id
            for attempt in connection.execute(open_attempts())
            if not is_lost(attempt)
        }
        return Proposal("wait" if all(r.id in live for r in blocking) else "leave")
    same = sa.select(Trial).where(*below, Trial.configuration == configuration)
    duplicates = connection.execute(same.order_by(Trial.number)).all()
    if policy == "train":
        return _next_seeds(connection, study, row, len(duplicates))
    if policy == "redraw":
        proposal = _redraw(connection, study, row, duplicate=bool(duplicates))
        if proposal is not None:
            return proposal
        change(connection, Trial, row.id, configuration=configuration)
    original = next((r for r in duplicates if r.result != "failed" and r.reuses is None), None)
    if original is None:
        return Proposal("train", redraws=row.redraws)
    return Proposal("reuse", original.number, row.redraws)


def _unknown(connection: Connection, lower: Sequence[AnyRow], params: Any) -> Iterator[AnyRow]:
    """Yield the trials that may still have these parameters."""
    drawn = optuna_rows.parameters(connection, [r.optuna_trial_id for r in lower]) if lower else {}
    for row in lower:
        drawn_params = drawn[row.optuna_trial_id].params
        shared = {name: params[name] for name in drawn_params if name in params}
        if len(shared) == len(drawn_params) and identity_of(shared) == identity_of(drawn_params):
            yield row


def _next_seeds(connection: Connection, study: AnyRow, row: AnyRow, proposals: int) -> Proposal:
    if row.proposals == proposals:
        return Proposal("train", proposals=proposals)
    position = repeating_of(study).seed_position(row.number, proposals)
    seed = TrialSeeds(study.seed, position).root
    change(connection, Trial, row.id, proposals=proposals, seed=seed)
    return Proposal("again", proposals=proposals)


def _redraw(
    connection: Connection, study: AnyRow, row: AnyRow, *, duplicate: bool
) -> Proposal | None:
    """Have the parameters drawn again if they are a duplicate's; a configuration's repeats draw the same."""
    repeating = repeating_of(study)
    first = repeating.number(repeating.index_of(row.number), 0)
    redraws = row.redraws + int(duplicate)
    if first != row.number:
        lead = Trial.study_id == study.id, Trial.number == first
        leader = connection.execute(sa.select(Trial).where(*lead)).one()
        if leader.configuration is None and leader.result is None:
            return Proposal("wait")
        redraws = leader.redraws
    enqueued = study.definition.get("enqueue", ())[repeating.index_of(row.number) :][:1]
    names = optuna_rows.parameters(connection, (row.optuna_trial_id,))[row.optuna_trial_id].params
    fixed = study.definition.get("sampler") == "grid" or {*names} <= {*next(iter(enqueued), ())}
    if fixed or redraws == row.redraws or redraws > MOST_REDRAWS:
        return None
    change(connection, Trial, row.id, redraws=redraws)
    optuna_rows.forget_parameters(connection, row.optuna_trial_id)
    return Proposal("again", redraws=redraws)


def reuse(connection: Connection, study_id: int, trial_id: int, of: int) -> None:
    """Let a trial end with the trial ``of``, at once if that has ended.

    The other row is locked: it may be ended at this moment by another worker, which then sees this trial.
    """
    change(connection, Trial, trial_id, reuses=of)
    number = Trial.study_id == study_id, Trial.number == of
    original = connection.execute(sa.select(Trial).where(*number).with_for_update()).one()
    if original.result is not None:
        pass_on(connection, original.id)


def pass_on(connection: Connection, trial_id: int) -> None:
    """Give a trial's result to those that reuse it; after a failure, the lowest of them trains."""
    original = connection.execute(sa.select(Trial).where(Trial.id == trial_id)).one()
    waiting = sa.select(Trial).where(
        Trial.study_id == original.study_id,
        Trial.reuses == original.number,
        Trial.result.is_(None),
    )
    rows = connection.execute(waiting.order_by(Trial.number)).all()
    if original.result == "failed":
        for row in rows:
            change(connection, Trial, row.id, reuses=None)
        return
    if original.result is None or not rows:
        return
    values = optuna_rows.values(connection, (original.optuna_trial_id,))[original.optuna_trial_id]
    reported = optuna_rows.intermediate_values(connection, (original.optuna_trial_id,))
    epochs = connection.execute(sa.select(Epoch).where(Epoch.trial_id == trial_id)).all()
    columns = {name: getattr(original, name) for name in ("result", "digest", "value_of", "seed")}
    for row in rows:
        change(connection, Trial, row.id, **columns)
        connection.execute(sa.delete(Epoch).where(Epoch.trial_id == row.id))
        copies = [
            {"trial_id": row.id, "epoch": epoch.epoch, "metrics": epoch.metrics} for epoch in epochs
        ]
        if copies:
            connection.execute(sa.insert(Epoch), copies)
        steps = reported.get(original.optuna_trial_id, {})
        optuna_rows.set_intermediate_values(connection, row.optuna_trial_id, steps)
        optuna_rows.finish_trials(connection, original.result, {row.optuna_trial_id: values})
        attributes = {"digest": original.digest, "result of trial": original.number}
        optuna_rows.set_attributes(connection, row.optuna_trial_id, attributes)
        if original.result == "pruned":
            skip_remaining(connection, original.study_id, row.number)
