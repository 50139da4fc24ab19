"""Inserting a branch: its trial's rows, Optuna's and ours, and what it begins from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.records.ancestry import ParentRecord
from sweeper.search.spaces import to_text
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.studies import no_such_trial
from sweeper.storage.tables import AnyRow, Trial
from sweeper.storage.trial_tables.branches import Branch


@dataclass(frozen=True, slots=True)
class NewBranch:
    """A branch to be added.

    Attributes:
        number: Its own, as `Branches.next_number` gave it.
        parent: What it begins from.
        params: Its parameters, in the parent's order.
        distributions: What Optuna's tools are to show them as drawn from; each contains its value.
        counted: Whether it is one of the study's total.
    """

    number: int
    parent: ParentRecord
    params: Mapping[str, CategoricalChoice]
    distributions: Mapping[str, Distribution]
    counted: bool = False


def insert_branch(connection: Connection, study: AnyRow, branch: NewBranch) -> None:
    """Insert a branch's rows, Optuna's and ours; the study is locked."""
    of_parent = sa.select(Trial).where(
        Trial.study_id == study.id, Trial.number == branch.parent.number
    )
    parent = connection.execute(of_parent).first()
    if parent is None:
        raise no_such_trial(connection, study, branch.parent.number)
    optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, branch.number)
    for name, value in branch.params.items():
        drawn = optuna_rows.Parameter(branch.distributions[name], value)
        optuna_rows.set_parameter(connection, optuna_id, name, drawn, lambda: None)
    shown = {"parent": branch.parent.to_json(), "changed": dict(branch.parent.changed)}
    optuna_rows.set_attributes(connection, optuna_id, shown)
    trial_id = connection.execute(
        sa.insert(Trial)
        .values(
            study_id=study.id,
            number=branch.number,
            optuna_trial_id=optuna_id,
            seed=parent.seed,
            current_attempt=0,
            crashes=0,
        )
        .returning(Trial.id)
    ).scalar_one()
    origin = branch.parent
    drawn_from = {n: (v, to_text(origin.distributions[n])) for n, v in origin.params.items()}
    connection.execute(
        sa.insert(Branch).values(
            trial_id=trial_id,
            parent_id=parent.id,
            step=origin.step,
            epoch=origin.epoch,
            digest=origin.digest,
            seeded_as=origin.seeded_as,
            epochs=origin.epochs,
            drawn=json.dumps(drawn_from),
            changed=json.dumps(dict(origin.changed)),
            outside=json.dumps(list(origin.outside)),
            counted=branch.counted,
        )
    )
