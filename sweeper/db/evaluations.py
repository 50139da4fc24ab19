"""Evaluations of checkpoints on held-out data: written by checkpoint and data set, and read.

Evaluating a checkpoint on the same data again replaces its row; other data get another row. The
path of a checkpoint is only in its own row, because it may change.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.studies import find_study, find_trial_id
from sweeper.db.tables import AnyRow, Checkpoint, Evaluation, Trial, UtcNow
from sweeper.records.evaluations import EvaluationRecord
from sweeper.spec.space import Distribution


def evaluations_of_trials(
    connection: Connection, trial_ids: sa.Select[int]
) -> dict[int, list[EvaluationRecord]]:
    """Return each trial's evaluations, by data set and step, by the trial's id."""
    paths = {
        (row.trial_id, row.step, row.digest): row.path
        for row in connection.execute(
            sa.select(Checkpoint.trial_id, Checkpoint.step, Checkpoint.digest, Checkpoint.path)
            .where(Checkpoint.trial_id.in_(trial_ids))
            .order_by(Checkpoint.id)
        )
    }
    found: dict[int, list[EvaluationRecord]] = {}
    for row in connection.execute(
        sa.select(Evaluation, Trial.number)
        .join(Trial, Trial.id == Evaluation.trial_id)
        .where(Evaluation.trial_id.in_(trial_ids))
        .order_by(Evaluation.data, Evaluation.data_digest, Evaluation.step, Evaluation.id)
    ):
        found.setdefault(row.trial_id, []).append(_evaluation(row, paths))
    return found


def distributions(connection: Connection, study: str) -> Mapping[int, Mapping[str, Distribution]]:
    """Return the distributions of each trial's parameters, by trial.

    Raises:
        UnknownStudyError: There is no such study.
    """
    of_study = Trial.study_id == find_study(connection, study).id
    numbers = {
        row.optuna_trial_id: int(row.number)
        for row in connection.execute(
            sa.select(Trial.optuna_trial_id, Trial.number).where(of_study)
        )
    }
    ids = sa.select(Trial.optuna_trial_id).where(of_study)
    return {
        numbers[optuna_id]: {name: each.distribution for name, each in asked.items()}
        for optuna_id, asked in optuna_rows.parameters(connection, ids).items()
    }


def record_evaluation(
    connection: Connection,
    study: str,
    number: int,
    *,
    step: int,
    epoch: int,
    digest: str,
    data: str,
    data_digest: str,
    metrics: Mapping[str, float],
) -> None:
    """Store an evaluation with the time of the database's clock; see `EvaluationRecord`.

    Raises:
        UnknownStudyError: There is no such study, or no such trial has begun in it.
    """
    trial_id = find_trial_id(connection, study, number, lock=True)
    key = {"step": step, "digest": digest, "data": data, "data_digest": data_digest}
    same = [getattr(Evaluation, column) == value for column, value in key.items()]
    connection.execute(sa.delete(Evaluation).where(Evaluation.trial_id == trial_id, *same))
    connection.execute(
        sa.insert(Evaluation).values(
            trial_id=trial_id,
            evaluated_at=UtcNow(),
            epoch=epoch,
            metrics=dict(metrics),
            **key,
        )
    )


def _evaluation(row: AnyRow, paths: Mapping[tuple[int, int, str], str]) -> EvaluationRecord:
    return EvaluationRecord(
        trial=row.number,
        step=row.step,
        epoch=row.epoch,
        digest=row.digest,
        data=row.data,
        data_digest=row.data_digest,
        metrics=row.metrics,
        evaluated_at=row.evaluated_at,
        path=paths.get((row.trial_id, row.step, row.digest)),
    )
