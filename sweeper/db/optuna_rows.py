"""Optuna's rows, written and read in sweeper's transactions, only by this module.

Optuna's storage commits after every call, so a crash could separate its rows from sweeper's. Writing
both in one transaction needs Optuna's tables, whose definitions are not public. So Optuna is pinned to
a range of versions, a test compares the columns below with Optuna's, and another reads everything back
through ``optuna.load_study``. Optuna is not imported to read, because that takes longer than the reading.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.tables import UtcNow, count
from sweeper.declarations.searching import Objective
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.errors import StorageError
from sweeper.search.spaces import from_internal, from_text, to_internal, to_text

_metadata = sa.MetaData()


def _table(name: str, key: str, /, **columns: Any) -> sa.Table:
    return sa.Table(
        name,
        _metadata,
        sa.Column(key, sa.Integer, primary_key=True),
        *(sa.Column(column, kind) for column, kind in columns.items()),
    )


# PostgreSQL knows the type of an enumeration by its name.
_STATE = sa.Enum("RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING", name="trialstate")
_DIRECTION = sa.Enum("NOT_SET", "MINIMIZE", "MAXIMIZE", name="studydirection")
_VALUE = sa.Enum("FINITE", "INF_POS", "INF_NEG", name="trialvaluetype")
_REPORTED = sa.Enum("FINITE", "INF_POS", "INF_NEG", "NAN", name="trialintermediatevaluetype")
_OF_STUDY = {"study_id": sa.Integer}
_OF_TRIAL = {"trial_id": sa.Integer}
_ATTRIBUTE = {"key": sa.String, "value_json": sa.Text}
_TIMES = {"datetime_start": sa.DateTime, "datetime_complete": sa.DateTime}
_PARAMETER_COLUMNS = {
    "param_name": sa.String,
    "param_value": sa.Double,
    "distribution_json": sa.Text,
}
_REPORTED_COLUMNS = {"intermediate_value": sa.Double, "intermediate_value_type": _REPORTED}
_Studies = _table("studies", "study_id", study_name=sa.String)
_Directions = _table(
    "study_directions",
    "study_direction_id",
    direction=_DIRECTION,
    objective=sa.Integer,
    **_OF_STUDY,
)
_Trials = _table("trials", "trial_id", number=sa.Integer, state=_STATE, **_OF_STUDY, **_TIMES)
_Params = _table("trial_params", "param_id", **_OF_TRIAL, **_PARAMETER_COLUMNS)
_StudyAttributes = _table(
    "study_system_attributes", "study_system_attribute_id", **_OF_STUDY, **_ATTRIBUTE
)
_StudyNotes = _table("study_user_attributes", "study_user_attribute_id", **_OF_STUDY, **_ATTRIBUTE)
_Attributes = _table("trial_user_attributes", "trial_user_attribute_id", **_OF_TRIAL, **_ATTRIBUTE)
_Values = _table(
    "trial_values",
    "trial_value_id",
    objective=sa.Integer,
    value=sa.Double,
    value_type=_VALUE,
    **_OF_TRIAL,
)
_Intermediate = _table(
    "trial_intermediate_values",
    "trial_intermediate_value_id",
    step=sa.Integer,
    **_OF_TRIAL,
    **_REPORTED_COLUMNS,
)

TrialResult = Literal["complete", "pruned", "failed"]
"""End of a trial, which is final."""

_STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}

_NOT_FINITE = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}


def _stored(value: float) -> tuple[float | None, str]:
    """Return the number and the kind under which Optuna stores a value."""
    if math.isnan(value):
        return None, "NAN"
    if math.isinf(value):
        return None, "INF_POS" if value > 0 else "INF_NEG"
    return value, "FINITE"


def _restored(number: float | None, kind: str) -> float:
    """Return the inverse of `_stored`."""
    return _NOT_FINITE[kind] if number is None else number


_PARAMETER = sa.select(_Params).where(
    _Params.c.trial_id == sa.bindparam("trial_id"), _Params.c.param_name == sa.bindparam("name")
)
_NEW_PARAMETER = sa.insert(_Params)
"""Statement that is compiled only once, because a trial may have ten thousand parameters."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Parameters of a trial by name, in the order of suggestion: values and distributions."""

    params: dict[str, CategoricalChoice] = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)


def study_names(connection: Connection) -> tuple[str, ...]:
    return tuple(connection.scalars(sa.select(_Studies.c.study_name)))


def create_study(connection: Connection, name: str, objectives: Sequence[Objective]) -> int:
    """Insert a study with its objectives; return Optuna's id of it."""
    added = sa.insert(_Studies).values(study_name=name).returning(_Studies.c.study_id)
    study_id = int(connection.execute(added).scalar_one())
    rows = [
        {"study_id": study_id, "objective": index, "direction": objective.direction.upper()}
        for index, objective in enumerate(objectives)
    ]
    connection.execute(sa.insert(_Directions), rows)
    names = json.dumps([objective.name for objective in objectives])
    attribute = {"study_id": study_id, "key": "study:metric_names", "value_json": names}
    connection.execute(sa.insert(_StudyAttributes), attribute)
    return study_id


def lock_study(connection: Connection, study_id: int) -> bool:
    """Prevent Optuna's tools from adding trials until the commit; return whether Optuna has the study.

    Optuna's tools can delete the study. They lock the same row to add a trial.
    """
    query = sa.select(_Studies.c.study_id).where(_Studies.c.study_id == study_id)
    return connection.scalar(query.with_for_update()) is not None


def trials_after(
    connection: Connection, study_id: int, trial_id: sa.ScalarSelect[int | None]
) -> int:
    """Return the number of the study's trials in Optuna that are newer than the selected id.

    Unlike a count of all trials, this does not grow with the earlier ones.
    """
    return count(connection, _Trials.c.study_id == study_id, _Trials.c.trial_id > trial_id)


def create_trial(connection: Connection, study_id: int, number: int) -> int:
    """Insert a running trial; return Optuna's id of it."""
    row = {"study_id": study_id, "number": number, "state": "RUNNING"}
    added = sa.insert(_Trials).values(**row, datetime_start=UtcNow())
    return int(connection.execute(added.returning(_Trials.c.trial_id)).scalar_one())


def parameter(
    connection: Connection, trial_id: int, name: str
) -> tuple[Distribution, CategoricalChoice] | None:
    """Return a trial's parameter; None if it is not stored."""
    rows = connection.execute(_PARAMETER, {"trial_id": trial_id, "name": name}).all()
    if not rows:
        return None
    drawn = _read_parameters(rows)[trial_id]
    return drawn.distributions[name], drawn.params[name]


def add_parameter(
    connection: Connection,
    trial_id: int,
    name: str,
    distribution: Distribution,
    value: CategoricalChoice,
) -> None:
    row = {
        "trial_id": trial_id,
        "param_name": name,
        "param_value": to_internal(name, distribution, value),
        "distribution_json": to_text(distribution),
    }
    connection.execute(_NEW_PARAMETER, row)


def set_attributes(connection: Connection, trial_id: int, values: Mapping[str, Any]) -> None:
    """Store user attributes of a trial, which Optuna's tools show; None deletes one."""
    same_keys = _Attributes.c.key.in_(list(values))
    connection.execute(sa.delete(_Attributes).where(_Attributes.c.trial_id == trial_id, same_keys))
    rows = [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in values.items()
        if value is not None
    ]
    if rows:
        connection.execute(sa.insert(_Attributes), rows)


def set_study_attribute(connection: Connection, study_id: int, key: str, value: str | None) -> None:
    """Store a user attribute of a study, which Optuna's tools show; None deletes it."""
    same = sa.and_(_StudyNotes.c.study_id == study_id, _StudyNotes.c.key == key)
    connection.execute(sa.delete(_StudyNotes).where(same))
    if value is not None:
        row = {"study_id": study_id, "key": key, "value_json": json.dumps(value)}
        connection.execute(sa.insert(_StudyNotes), row)


def parameter_count(trial_id: Any) -> sa.ScalarSelect[int]:
    """Return the number of parameters of the trial in a column of the enclosing query, as a subquery."""
    return sa.select(sa.func.count()).where(_Params.c.trial_id == trial_id).scalar_subquery()


def parameters(
    connection: Connection, trial_ids: Sequence[int] | sa.Select[int]
) -> Mapping[int, Drawn]:
    """Return the parameters of the trials, by Optuna's trial id; a trial without any has empty ones."""
    query = sa.select(_Params).where(_Params.c.trial_id.in_(trial_ids))
    return _read_parameters(connection.execute(query.order_by(_Params.c.param_id)))


def _read_parameters(rows: Iterable[Any]) -> Mapping[int, Drawn]:
    texts: dict[str, Distribution] = {}
    drawn: defaultdict[int, Drawn] = defaultdict(Drawn)
    for _, trial_id, name, internal, text in rows:
        if text not in texts:
            texts[text] = from_text(text)
        distribution = texts[text]
        try:
            value = from_internal(distribution, internal)
        except (IndexError, ValueError, OverflowError):
            raise StorageError(
                f"parameter {name!r} of Optuna's trial {trial_id} is stored as {internal!r}, "
                f"which is outside of {distribution}; another tool has changed it: restore it"
            ) from None
        drawn[trial_id].params[name] = value
        drawn[trial_id].distributions[name] = distribution
    return drawn


def set_intermediate_values(
    connection: Connection, trial_id: int, by_step: Mapping[int, float]
) -> None:
    """Store intermediate values, replacing those of the same steps. NaN and infinity are kept."""
    if not by_step:
        return
    same_steps = _Intermediate.c.step.in_(list(by_step))
    connection.execute(
        sa.delete(_Intermediate).where(_Intermediate.c.trial_id == trial_id, same_steps)
    )
    names = ("intermediate_value", "intermediate_value_type")
    rows = [
        {"trial_id": trial_id, "step": step, **dict(zip(names, _stored(value), strict=True))}
        for step, value in by_step.items()
    ]
    connection.execute(sa.insert(_Intermediate), rows)


def intermediate_values(
    connection: Connection, trial_ids: Sequence[int] | sa.Select[int]
) -> dict[int, dict[int, float]]:
    """Return the intermediate values of the trials by Optuna's trial id and step, in order."""
    query = sa.select(_Intermediate).where(_Intermediate.c.trial_id.in_(trial_ids))
    by_trial: dict[int, dict[int, float]] = {}
    for _, step, trial_id, number, kind in connection.execute(query.order_by("step")):
        by_trial.setdefault(trial_id, {})[step] = _restored(number, kind)
    return by_trial


def finish_trials(
    connection: Connection, result: TrialResult, values: Mapping[int, Sequence[float]]
) -> None:
    """End trials with a value for each objective, in order, by Optuna's trial id.

    A pruned trial without a value gets its last intermediate value, as in Optuna.
    """
    bare = [key for key, trial_values in values.items() if result == "pruned" and not trial_values]
    reported = intermediate_values(connection, bare) if bare else {}
    all_values = {**values, **{key: (by_step[max(by_step)],) for key, by_step in reported.items()}}
    rows = []
    for key, trial_values in all_values.items():
        if result != "failed" and not any(map(math.isnan, trial_values)):
            for objective, (number, kind) in enumerate(map(_stored, trial_values)):
                row = {"trial_id": key, "objective": objective, "value": number, "value_type": kind}
                rows.append(row)
    if rows:
        connection.execute(sa.insert(_Values), rows)
    connection.execute(
        sa.update(_Trials)
        .where(_Trials.c.trial_id.in_(list(values)))
        .values(state=_STATES[result], datetime_complete=UtcNow())
    )


def reopen_trial(connection: Connection, trial_id: int, *, anew: bool = False) -> None:
    """Set a finished trial to running again, without a value; ``anew`` without parameters and epochs, too."""
    for table in (_Values, _Params, _Intermediate) if anew else (_Values,):
        connection.execute(sa.delete(table).where(table.c.trial_id == trial_id))
    connection.execute(
        sa.update(_Trials)
        .where(_Trials.c.trial_id == trial_id)
        .values(state="RUNNING", datetime_complete=None)
    )


def forget_parameters(connection: Connection, trial_id: int) -> None:
    """Delete the parameters of a trial, which are drawn again."""
    connection.execute(sa.delete(_Params).where(_Params.c.trial_id == trial_id))


def rename_study(connection: Connection, study_id: int, name: str) -> None:
    connection.execute(
        sa.update(_Studies).where(_Studies.c.study_id == study_id).values(study_name=name)
    )


def delete_study(connection: Connection, study_id: int) -> None:
    """Delete a study with all rows that refer to it in Optuna's tables."""
    # Private, and the only list of Optuna's tables.
    from optuna.storages._rdb import models

    trials = sa.select(_Trials.c.trial_id).where(_Trials.c.study_id == study_id)
    for table in reversed(models.BaseModel.metadata.sorted_tables):
        if "trial_id" in table.c and table.name != _Trials.name:
            connection.execute(sa.delete(table).where(table.c.trial_id.in_(trials)))
    for table in reversed(models.BaseModel.metadata.sorted_tables):
        if "study_id" in table.c:
            connection.execute(sa.delete(table).where(table.c.study_id == study_id))


def values(
    connection: Connection, trial_ids: Sequence[int] | sa.Select[int]
) -> Mapping[int, tuple[float, ...]]:
    """Return every objective of the trials, in order, by Optuna's trial id; empty for one without values."""
    query = sa.select(_Values).where(_Values.c.trial_id.in_(trial_ids))
    by_trial: defaultdict[int, tuple[float, ...]] = defaultdict(tuple)
    for _, _, number, kind, trial_id in connection.execute(query.order_by("objective")):
        by_trial[trial_id] += (_restored(number, kind),)
    return by_trial
