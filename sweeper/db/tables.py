"""Sweeper's tables, in the same database as Optuna's.

Optuna's tables contain each trial's parameters, values and intermediate values; these contain
everything else. No foreign key refers to Optuna's tables, so that Optuna's tools can delete their
studies. Only the migrations create the schema; a test compares the two.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Text,
    TypeDecorator,
    UniqueConstraint,
    delete,
    false,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.engine import Connection, Row
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

AnyRow = Row[*tuple[Any, ...]]
"""Row of any select."""

Record = TypeVar("Record")


def record_of(kind: Callable[..., Record], row: AnyRow, **values: Any) -> Record:
    """Return a record of ``row``: its fields are the columns of their names, unless they are in ``values``."""
    names = [field.name for field in fields(cast("Any", kind)) if field.name not in values]
    return kind(**{name: row._mapping[name] for name in names if name in row._mapping}, **values)


def change(connection: Connection, table: Any, key: int, **values: Any) -> None:
    """Set columns of the row with this id."""
    connection.execute(update(table).where(table.id == key).values(**values))


def replace_row(connection: Connection, table: Any, key: Mapping[str, Any], **values: Any) -> None:
    """Insert a row in place of that with the same ``key``, if there is one."""
    same = (getattr(table, name) == value for name, value in key.items())
    connection.execute(delete(table).where(*same))
    connection.execute(insert(table).values(**key, **values))


def count(connection: Connection, *conditions: Any) -> int:
    """Return the number of rows that meet the conditions."""
    return connection.execute(select(func.count()).where(*conditions)).scalar_one()


def rows_by_trial(
    connection: Connection, table: Any, trial_ids: Any, *order: Any
) -> defaultdict[int, list[AnyRow]]:
    """Return the table's rows of the trials, in order, by the trial's id."""
    rows: defaultdict[int, list[AnyRow]] = defaultdict(list)
    of_trials = select(table).where(table.trial_id.in_(trial_ids))
    for row in connection.execute(of_trials.order_by(*order)):
        rows[row.trial_id].append(row)
    return rows


class Base(DeclarativeBase):
    """Base class of sweeper's tables, with their metadata; Optuna's tables have their own."""


class Json(TypeDecorator[Any]):
    """JSON as text, because JSON columns support neither NaN nor infinity."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class Utc(TypeDecorator[datetime]):
    """Time in UTC, which columns keep without a time zone."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class UtcNow(FunctionElement[datetime]):
    """Present time of the database's clock in UTC, because workers' clocks may differ, plus ``seconds``."""

    type = Utc()
    inherit_cache = True

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(literal(float(seconds), Float(53)))


@compiles(UtcNow, "sqlite")
def _sqlite_now(element: UtcNow, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds')"


@compiles(UtcNow, "postgresql")
def _postgresql_now(element: UtcNow, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"((clock_timestamp() AT TIME ZONE 'utc') + make_interval(secs => {seconds}))"


class Study(Base):
    """One study, with its definition."""

    __tablename__ = "sweeper_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    optuna_study_id: Mapped[int] = mapped_column(unique=True)
    definition: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON")
    objective: Mapped[str] = mapped_column(Text)
    direction: Mapped[str] = mapped_column(Text)
    target: Mapped[int]
    window: Mapped[int | None]
    seed: Mapped[int] = mapped_column(BigInteger)
    source: Mapped[Any] = mapped_column(
        Json, nullable=True, comment="JSON: where the definition came from"
    )
    created_at: Mapped[datetime] = mapped_column(Utc)
    sweeper_version: Mapped[str] = mapped_column(Text)
    stop_requested: Mapped[str | None] = mapped_column(Text)
    stop_requested_at: Mapped[datetime | None] = mapped_column(Utc)
    inexact_accepted_at: Mapped[datetime | None] = mapped_column(Utc)
    identity: Mapped[str] = mapped_column(Text, server_default="")
    code: Mapped[str | None] = mapped_column(Text, comment="JSON: what the factories reach")
    fingerprint: Mapped[str | None] = mapped_column(Text, comment="of definition and code")
    epochs: Mapped[int | None] = mapped_column(comment="of new trials, once raised")


class Trial(Base):
    """One trial. ``result`` is "complete", "pruned" or "failed", and null before the end.

    Attempts up to ``ignore_checkpoints_through`` ran under another definition, so their checkpoints are not used.
    A trial that ``reuses`` another one is not claimed, and ends with it. ``paused`` is set only while a trial
    waits at a rung of its budget, or is promoted and not yet claimed.

    Because of the partial index, the cost of a claim does not grow with the number of finished trials.
    """

    __tablename__ = "sweeper_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number", name="sweeper_trials_number"),
        Index("sweeper_trials_configuration", "study_id", "configuration"),
        Index("sweeper_trials_reusing", "study_id", "reuses"),
        Index(
            "sweeper_trials_unfinished",
            "study_id",
            "number",
            sqlite_where=text("result IS NULL"),
            postgresql_where=text("result IS NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id, ondelete="CASCADE"))
    number: Mapped[int]
    optuna_trial_id: Mapped[int] = mapped_column(unique=True)
    seed: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str | None] = mapped_column(Text)
    value_of: Mapped[str | None] = mapped_column(
        Text, comment="what the value is of, if not of the last epoch"
    )
    current_attempt: Mapped[int] = mapped_column(comment="the number of the latest attempt")
    crashes: Mapped[int]
    memory_faults: Mapped[int] = mapped_column(server_default="0")
    errors: Mapped[int] = mapped_column(server_default="0")
    result: Mapped[str | None] = mapped_column(Text)
    ignore_checkpoints_through: Mapped[int] = mapped_column(server_default="0")
    paused: Mapped[str | None] = mapped_column(Text, comment='"waits" at a rung, or "promoted"')
    epochs: Mapped[int | None] = mapped_column(comment="where it is not the definition's number")
    configuration: Mapped[str | None] = mapped_column(
        Text, comment="digest of definition, repeat and parameters, once all are asked for"
    )
    reuses: Mapped[int | None] = mapped_column(comment="number of the trial whose result it takes")
    redraws: Mapped[int] = mapped_column(server_default="0")
    proposals: Mapped[int] = mapped_column(
        server_default="0", comment="earlier ones, whose seeds precede its own"
    )
    hidden: Mapped[bool] = mapped_column(server_default=false())
    note: Mapped[str | None] = mapped_column(Text)
    tags: Mapped[Any] = mapped_column(Json, nullable=True, comment="JSON")


UNPROPOSED = {"configuration": None, "reuses": None, "redraws": 0, "proposals": 0}
"""Columns of a trial whose factories have not run."""

UNFINISHED = {
    "result": None,
    "digest": None,
    "value_of": None,
    "crashes": 0,
    "memory_faults": 0,
    "errors": 0,
}
"""Columns of a finished trial that gets another attempt."""


class Attempt(Base):
    """One attempt at a trial. ``id`` is the fencing token, which only increases.

    Because of the partial unique index, a trial never has two open attempts.
    """

    __tablename__ = "sweeper_attempts"
    __table_args__ = (
        UniqueConstraint("trial_id", "number", name="sweeper_attempts_number"),
        Index(
            "sweeper_attempts_one_open",
            "trial_id",
            unique=True,
            sqlite_where=text("outcome IS NULL"),
            postgresql_where=text("outcome IS NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    number: Mapped[int]
    claim_key: Mapped[str] = mapped_column(Text, unique=True)
    host: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    worker_pid: Mapped[int]
    worker_started: Mapped[float] = mapped_column(Float(53))
    pid: Mapped[int | None]
    isolation: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime | None] = mapped_column(Utc)
    started_at: Mapped[datetime] = mapped_column(Utc)
    ended_at: Mapped[datetime | None] = mapped_column(Utc)
    outcome: Mapped[str | None] = mapped_column(Text)
    start_step: Mapped[int | None] = mapped_column(BigInteger)
    end_step: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(Text)
    error_kind: Mapped[str | None] = mapped_column(Text, comment="mistake, lasting or other")
    fingerprint: Mapped[Any] = mapped_column(Json, nullable=True, comment="JSON")
    worker_key: Mapped[str | None] = mapped_column(Text)
    devices: Mapped[str | None] = mapped_column(Text)
    definition: Mapped[str | None] = mapped_column(Text, comment="the study's fingerprint")
    files: Mapped[Any] = mapped_column(
        Json, nullable=True, comment="JSON: files read and written outside"
    )


class Parameter(Base):
    """Parameter of a study with a distribution, by the first trial that suggested it from that one.

    Optuna's tables contain this too, but finding it there takes a query over every trial of the study.
    """

    __tablename__ = "sweeper_parameters"

    study_id: Mapped[int] = mapped_column(
        ForeignKey(Study.id, ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    number: Mapped[int] = mapped_column(
        primary_key=True, autoincrement=False, comment="of the first trial that has it"
    )
    distribution: Mapped[str] = mapped_column(Text, comment="JSON, as Optuna writes it")


class Observed(Base):
    """Result of a training outside of a study, for its sampler; no trial."""

    __tablename__ = "sweeper_observations"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id, ondelete="CASCADE"), index=True)
    params: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON")
    objectives: Mapped[Any] = mapped_column(
        Json, nullable=False, comment="JSON: the values, in order"
    )
    since: Mapped[int] = mapped_column(comment="the first trial or configuration that uses it")
    until: Mapped[int | None] = mapped_column(comment="the first one that does not any more")
    source: Mapped[str | None] = mapped_column(
        Text, comment="where it came from, if not from the definition"
    )


class Epoch(Base):
    """One finished epoch."""

    __tablename__ = "sweeper_epochs"

    trial_id: Mapped[int] = mapped_column(
        ForeignKey(Trial.id, ondelete="CASCADE"), primary_key=True
    )
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    metrics: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON with NaN and Infinity")


class Checkpoint(Base):
    """One committed checkpoint of an attempt."""

    __tablename__ = "sweeper_checkpoints"
    __table_args__ = (UniqueConstraint("trial_id", "path", name="sweeper_checkpoints_path"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    digest: Mapped[str] = mapped_column(Text)
    bytes: Mapped[int] = mapped_column(BigInteger)
    path: Mapped[str] = mapped_column(Text)


class DefinitionChange(Base):
    """An accepted change of a study's definition."""

    __tablename__ = "sweeper_definition_changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id, ondelete="CASCADE"))
    changed_at: Mapped[datetime] = mapped_column(Utc)
    begun: Mapped[int]
    changes: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON: a sentence each")
    replaced: Mapped[str | None] = mapped_column(Text)


class Worker(Base):
    """A process that runs trials of a study; it is present until its lease ends or it leaves.

    ``present_since`` is the start of its uninterrupted contact with the database. A worker that was
    disconnected cannot tell whether another worker has died or was disconnected, too.
    """

    __tablename__ = "sweeper_workers"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id, ondelete="CASCADE"))
    key: Mapped[str] = mapped_column(Text, unique=True)
    host: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    pid: Mapped[int]
    started: Mapped[float] = mapped_column(Float(53))
    engine: Mapped[str] = mapped_column(Text)
    slots: Mapped[int]
    joined_at: Mapped[datetime] = mapped_column(Utc)
    lease_until: Mapped[datetime] = mapped_column(Utc)
    present_since: Mapped[datetime] = mapped_column(Utc)
    left_at: Mapped[datetime | None] = mapped_column(Utc)
    error: Mapped[str | None] = mapped_column(Text)


class Verdict(Base):
    """Verdict of one verification of a finished trial."""

    __tablename__ = "sweeper_verdicts"
    __table_args__ = (Index("sweeper_verdicts_of_trial", "trial_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    checked_at: Mapped[datetime] = mapped_column(Utc)
    mode: Mapped[str] = mapped_column(Text)
    verdict: Mapped[str] = mapped_column(Text)
    epoch: Mapped[int | None]
    step: Mapped[int | None] = mapped_column(BigInteger)
    variable: Mapped[str | None] = mapped_column(Text)
    report: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON")


class Audit(Base):
    """Verdict on one interval between two checkpoints of a trial."""

    __tablename__ = "sweeper_audits"
    __table_args__ = (
        UniqueConstraint("trial_id", "from_step", "to_step", name="sweeper_audits_interval"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    from_step: Mapped[int] = mapped_column(BigInteger)
    to_step: Mapped[int] = mapped_column(BigInteger)
    outcome: Mapped[str] = mapped_column(Text)
    seconds: Mapped[float] = mapped_column(Float(53))
    decided_at: Mapped[datetime] = mapped_column(Utc)
    report: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON")


class Evaluation(Base):
    """Result of one checkpoint of a trial on one set of held-out data.

    The checkpoint is identified by step and digest, because its row is deleted with it.
    """

    __tablename__ = "sweeper_evaluations"
    __table_args__ = (
        UniqueConstraint(
            "trial_id", "step", "digest", "data", "data_digest", name="sweeper_evaluations_of"
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    digest: Mapped[str] = mapped_column(Text)
    data: Mapped[str] = mapped_column(Text, comment="what the data are called")
    data_digest: Mapped[str] = mapped_column(Text)
    metrics: Mapped[Any] = mapped_column(Json, nullable=False, comment="JSON with NaN and Infinity")
    evaluated_at: Mapped[datetime] = mapped_column(Utc)


class Length(Base):
    """Result of a trial at a number of epochs, written in the transaction that extends the trial."""

    __tablename__ = "sweeper_lengths"
    __table_args__ = (UniqueConstraint("trial_id", "epochs", name="sweeper_lengths_of"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id, ondelete="CASCADE"))
    epochs: Mapped[int]
    trained: Mapped[int]
    result: Mapped[str] = mapped_column(Text)
    objectives: Mapped[Any] = mapped_column(
        Json, nullable=False, comment="JSON with Infinity: the values, in order"
    )
    digest: Mapped[str | None] = mapped_column(Text)
    ended_at: Mapped[datetime | None] = mapped_column(Utc)


class Rung(Base):
    """One decided rung of a round; written once and never changed.

    ``first`` is the number of the round's first trial, which identifies the round.
    """

    __tablename__ = "sweeper_rungs"
    __table_args__ = (
        UniqueConstraint("study_id", "first", "epochs", name="sweeper_rungs_of_a_round"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id, ondelete="CASCADE"))
    bracket: Mapped[int]
    first: Mapped[int]
    epochs: Mapped[int]
    decided_at: Mapped[datetime] = mapped_column(Utc)


class RungMember(Base):
    """One trial at one rung that it has reached, or at which it was compared after it had ended.

    ``value`` is null for a trial that failed, ``digest`` for one that ended before the rung;
    ``promoted`` and ``rung_id`` are null until the rung is decided.
    """

    __tablename__ = "sweeper_rung_members"

    trial_id: Mapped[int] = mapped_column(
        ForeignKey(Trial.id, ondelete="CASCADE"), primary_key=True
    )
    epochs: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[float | None] = mapped_column(Float(53))
    digest: Mapped[str | None] = mapped_column(Text)
    rung_id: Mapped[int | None] = mapped_column(ForeignKey(Rung.id, ondelete="CASCADE"))
    promoted: Mapped[bool | None]


class RoundStart(Base):
    """A trial number at which a new round starts: the study's total before it was raised."""

    __tablename__ = "sweeper_round_starts"

    study_id: Mapped[int] = mapped_column(
        ForeignKey(Study.id, ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
