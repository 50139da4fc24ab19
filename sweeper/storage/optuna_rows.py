"""Optuna's own rows, written and read inside our transactions. The only module that knows them.

Optuna's storage commits after every call, so a study kept through it could be cut between its rows
and ours. Writing both in one transaction needs Optuna's table definitions, which are not public:
Optuna is pinned to one major version, and a test reads everything back through
``optuna.load_study``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy.engine import Connection

from sweeper.errors import ParameterError
from sweeper.search.spaces import alike, from_internal, from_text, to_internal, to_text
from sweeper.space import CategoricalChoice, Distribution
from sweeper.storage.tables import UtcNow

__all__ = [
    "Parameter",
    "TrialResult",
    "create_study",
    "create_trial",
    "finish_trial",
    "has_study",
    "intermediate_values",
    "parameters",
    "set_intermediate_values",
    "set_parameter",
    "study_names",
    "trial_count",
    "values",
]

_Studies: Any = models.StudyModel.__table__
_Directions: Any = models.StudyDirectionModel.__table__
_Trials: Any = models.TrialModel.__table__
_Params: Any = models.TrialParamModel.__table__
_Values: Any = models.TrialValueModel.__table__
_Intermediate: Any = models.TrialIntermediateValueModel.__table__

TrialResult = Literal["complete", "pruned", "failed"]
"""How a trial ended for good."""

_LONGEST_NAME = 512

_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A stored parameter: what it was drawn from, and its value."""

    distribution: Distribution
    value: CategoricalChoice


def study_names(connection: Connection) -> tuple[str, ...]:
    """Return the names of all of Optuna's studies in the database."""
    return tuple(connection.scalars(sa.select(_Studies.c.study_name)))


def create_study(
    connection: Connection, name: str, direction: Literal["minimize", "maximize"]
) -> int:
    """Insert a study with one objective; return Optuna's id of it."""
    study_id = _inserted(connection, sa.insert(_Studies).values(study_name=name))
    connection.execute(
        sa.insert(_Directions).values(
            study_id=study_id, objective=0, direction=StudyDirection[direction.upper()]
        )
    )
    return study_id


def has_study(connection: Connection, study_id: int) -> bool:
    """Whether Optuna still has the study; its tools can delete it."""
    found = connection.scalar(sa.select(_Studies.c.study_id).where(_Studies.c.study_id == study_id))
    return found is not None


def trial_count(connection: Connection, study_id: int) -> int:
    """Return how many trials Optuna has in the study, in whatever state."""
    count = sa.select(sa.func.count()).select_from(_Trials).where(_Trials.c.study_id == study_id)
    return int(connection.scalar(count) or 0)


def create_trial(connection: Connection, study_id: int, number: int) -> int:
    """Insert a running trial; return Optuna's id of it."""
    return _inserted(
        connection,
        sa.insert(_Trials).values(
            study_id=study_id, number=number, state=TrialState.RUNNING, datetime_start=UtcNow()
        ),
    )


def set_parameter(
    connection: Connection, study_id: int, trial_id: int, name: str, drawn: Parameter
) -> CategoricalChoice:
    """Store a parameter unless it is stored; return the value that holds.

    Raises:
        ParameterError: It is stored with another distribution; or with another kind or other
            choices by another trial of the study, which no sampler of Optuna's could read.
    """
    distribution = drawn.distribution
    stored = parameters(connection, (trial_id,)).get(trial_id, {}).get(name)
    if stored is not None:
        if to_text(stored.distribution) != to_text(distribution):
            msg = (
                f"parameter {name!r} is stored as {stored.distribution}, and the resumed trial "
                f"suggests {distribution}; restore the range, or start a study of another name"
            )
            raise ParameterError(msg)
        return stored.value
    if len(name) > _LONGEST_NAME:
        msg = f"parameter {name[:40]!r}… has a name of {len(name)} characters; use at most 512"
        raise ParameterError(msg)
    _check_alike(connection, study_id, name, distribution)
    connection.execute(
        sa.insert(_Params).values(
            trial_id=trial_id,
            param_name=name,
            param_value=to_internal(name, distribution, drawn.value),
            distribution_json=to_text(distribution),
        )
    )
    return drawn.value


def parameters(
    connection: Connection, trial_ids: Sequence[int] | sa.Select[int]
) -> dict[int, dict[str, Parameter]]:
    """Return the parameters of the trials, by Optuna's trial id, in the order of suggestion."""
    rows = connection.execute(
        sa.select(
            _Params.c.trial_id,
            _Params.c.param_name,
            _Params.c.param_value,
            _Params.c.distribution_json,
        )
        .where(_Params.c.trial_id.in_(trial_ids))
        .order_by(_Params.c.param_id)
    )
    texts: dict[str, Distribution] = {}
    found: dict[int, dict[str, Parameter]] = {}
    for trial_id, name, internal, text in rows:
        if text not in texts:
            texts[text] = from_text(text)
        distribution = texts[text]
        value = from_internal(distribution, internal)
        found.setdefault(trial_id, {})[name] = Parameter(distribution, value)
    return found


def set_intermediate_values(
    connection: Connection, trial_id: int, by_step: Mapping[int, float]
) -> None:
    """Store intermediate values, replacing those of the same steps. NaN and infinity are kept."""
    if not by_step:
        return
    connection.execute(
        sa.delete(_Intermediate).where(
            _Intermediate.c.trial_id == trial_id, _Intermediate.c.step.in_(list(by_step))
        )
    )
    represent = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr
    rows = []
    for step, value in by_step.items():
        stored, kind = represent(value)
        rows.append(
            {
                "trial_id": trial_id,
                "step": step,
                "intermediate_value": stored,
                "intermediate_value_type": kind,
            }
        )
    connection.execute(sa.insert(_Intermediate), rows)


def intermediate_values(
    connection: Connection, trial_ids: Sequence[int] | sa.Select[int]
) -> dict[int, dict[int, float]]:
    """Return the intermediate values of the trials by Optuna's trial id and step, in order."""
    rows = connection.execute(
        sa.select(
            _Intermediate.c.trial_id,
            _Intermediate.c.step,
            _Intermediate.c.intermediate_value,
            _Intermediate.c.intermediate_value_type,
        )
        .where(_Intermediate.c.trial_id.in_(trial_ids))
        .order_by(_Intermediate.c.step)
    )
    represent = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value
    found: dict[int, dict[int, float]] = {}
    for trial_id, step, stored, kind in rows:
        found.setdefault(trial_id, {})[step] = represent(stored, kind)
    return found


def finish_trial(
    connection: Connection,
    trial_id: int,
    result: TrialResult,
    value: float | None,
) -> None:
    """End a trial. A pruned one without a value gets its last intermediate value, as in Optuna."""
    if result == "pruned" and value is None:
        reported = intermediate_values(connection, (trial_id,)).get(trial_id, {})
        value = reported[max(reported)] if reported else None
    if value is not None and result != "failed" and not math.isnan(value):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        connection.execute(
            sa.insert(_Values).values(trial_id=trial_id, objective=0, value=stored, value_type=kind)
        )
    connection.execute(
        sa.update(_Trials)
        .where(_Trials.c.trial_id == trial_id)
        .values(state=_STATES[result], datetime_complete=UtcNow())
    )


def values(connection: Connection, trial_ids: Sequence[int] | sa.Select[int]) -> dict[int, float]:
    """Return the final values of the trials that have one, by Optuna's trial id."""
    rows = connection.execute(
        sa.select(_Values.c.trial_id, _Values.c.value, _Values.c.value_type).where(
            _Values.c.trial_id.in_(trial_ids), _Values.c.objective == 0
        )
    )
    represent = models.TrialValueModel.stored_repr_to_value
    return {trial_id: represent(stored, kind) for trial_id, stored, kind in rows}


def _check_alike(
    connection: Connection, study_id: int, name: str, distribution: Distribution
) -> None:
    earlier = connection.execute(
        sa.select(_Params.c.distribution_json, _Trials.c.number)
        .join(_Trials, _Trials.c.trial_id == _Params.c.trial_id)
        .where(_Trials.c.study_id == study_id, _Params.c.param_name == name)
        .order_by(_Params.c.param_id)
        .limit(1)
    ).first()
    if earlier is None:
        return
    other = from_text(earlier.distribution_json)
    if alike(other, distribution):
        return
    msg = (
        f"parameter {name!r} is {other} in trial {earlier.number} and {distribution} here; "
        "give it the same kind and choices in every trial, or two names"
    )
    raise ParameterError(msg)


def _inserted(connection: Connection, statement: sa.Insert) -> int:
    key = connection.execute(statement).inserted_primary_key
    if key is None:
        msg = f"the database returned no key for {statement}"
        raise RuntimeError(msg)
    return int(key[0])
