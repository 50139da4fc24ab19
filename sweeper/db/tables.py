"""Our tables, beside Optuna's in the same database.

Optuna's tables hold each trial's parameters, value and intermediate values; these hold everything
that Optuna has no place for. No foreign key leads into Optuna's tables, so that Optuna's own tools
can still delete a study of theirs. The schema is created by the migrations alone; a test compares
the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Float,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    literal,
    text,
)
from sqlalchemy.engine import Row
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

AnyRow = Row[*tuple[Any, ...]]
"""Columns of whatever select."""


class Base(DeclarativeBase):
    """Holds the metadata of our tables only; Optuna's have their own."""


class UtcNow(FunctionElement[datetime]):
    """The database's clock, in UTC, without a time zone; workers' clocks may differ."""

    type = DateTime()
    inherit_cache = True


@compiles(UtcNow, "sqlite")
def _sqlite_now(_element: UtcNow, _compiler: SQLCompiler, **_options: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(UtcNow, "postgresql")
def _postgresql_now(_element: UtcNow, _compiler: SQLCompiler, **_options: Any) -> str:
    return "(clock_timestamp() AT TIME ZONE 'utc')"


def aware(moment: datetime) -> datetime:
    """Return what a column of such times holds, with its time zone."""
    return moment.replace(tzinfo=UTC)


class UtcAfter(FunctionElement[datetime]):
    """The database's clock so many seconds from now; before now where they are negative."""

    type = DateTime()
    inherit_cache = True

    def __init__(self, seconds: float) -> None:
        super().__init__(literal(float(seconds), Float(53)))


@compiles(UtcAfter, "sqlite")
def _sqlite_after(element: UtcAfter, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds')"


@compiles(UtcAfter, "postgresql")
def _postgresql_after(element: UtcAfter, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"((clock_timestamp() AT TIME ZONE 'utc') + make_interval(secs => {seconds}))"


class Study(Base):
    """One study: its definition, and what claiming a trial needs of it."""

    __tablename__ = "sweeper_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    optuna_study_id: Mapped[int] = mapped_column(unique=True)
    definition: Mapped[str] = mapped_column(Text, comment="JSON")
    objective: Mapped[str] = mapped_column(Text)
    direction: Mapped[str] = mapped_column(String(8))
    target: Mapped[int]
    window: Mapped[int | None]
    seed: Mapped[int] = mapped_column(BigInteger)
    source: Mapped[str | None] = mapped_column(Text, comment="JSON: where the definition came from")
    created_at: Mapped[datetime] = mapped_column(DateTime)
    sweeper_version: Mapped[str] = mapped_column(String(64))
    stop_requested: Mapped[str | None] = mapped_column(String(8))
    inexact_accepted_at: Mapped[datetime | None] = mapped_column(DateTime)
    identity: Mapped[str] = mapped_column(String(32), server_default="")
    code: Mapped[str | None] = mapped_column(Text, comment="JSON: what the factories reach")
    fingerprint: Mapped[str | None] = mapped_column(String(32), comment="of definition and code")
    epochs: Mapped[int | None] = mapped_column(comment="of new trials, once raised")


class Trial(Base):
    """One trial. ``result`` is "complete", "pruned" or "failed", and null before the end.

    Of the attempts up to ``anew_after`` nothing is gone on with: they ran under another definition.
    ``paused`` is null but for a trial that stopped at a rung of its budget and was not claimed since.

    The partial index is what keeps a claim's cost from growing with the trials that are finished.
    """

    __tablename__ = "sweeper_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number", name="sweeper_trials_number"),
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
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    number: Mapped[int]
    optuna_trial_id: Mapped[int] = mapped_column(unique=True)
    seed: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str | None] = mapped_column(String(64))
    current_attempt: Mapped[int] = mapped_column(comment="the number of the latest attempt")
    crashes: Mapped[int]
    memory_faults: Mapped[int] = mapped_column(server_default="0")
    errors: Mapped[int] = mapped_column(server_default="0")
    result: Mapped[str | None] = mapped_column(String(16))
    audited: Mapped[str | None] = mapped_column(String(8))
    anew_after: Mapped[int] = mapped_column(server_default="0")
    paused: Mapped[str | None] = mapped_column(
        String(8), comment='"waits" at a rung, or "promoted"'
    )
    epochs: Mapped[int | None] = mapped_column(comment="where it is not the definition's number")


class Attempt(Base):
    """One process's go at a trial. ``id`` is the fencing token: it only ever grows.

    The partial index is the last defence of "once": no trial has two open attempts, whatever
    a programme does.
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
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    number: Mapped[int]
    claim_key: Mapped[str] = mapped_column(String(32), unique=True)
    host: Mapped[str] = mapped_column(String(255))
    boot_id: Mapped[str] = mapped_column(String(255))
    worker_pid: Mapped[int]
    worker_started: Mapped[float] = mapped_column(Float(53))
    pid: Mapped[int | None]
    isolation: Mapped[str | None] = mapped_column(String(16))
    lease_until: Mapped[datetime | None] = mapped_column(DateTime)
    started_at: Mapped[datetime] = mapped_column(DateTime)
    ended_at: Mapped[datetime | None] = mapped_column(DateTime)
    outcome: Mapped[str | None] = mapped_column(String(16))
    start_step: Mapped[int | None] = mapped_column(BigInteger)
    end_step: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(Text)
    fingerprint: Mapped[str | None] = mapped_column(Text, comment="JSON")
    worker_key: Mapped[str | None] = mapped_column(String(32))
    devices: Mapped[str | None] = mapped_column(Text)
    definition: Mapped[str | None] = mapped_column(String(32), comment="the study's fingerprint")


class Parameter(Base):
    """Parameter of a study, with the distribution that the first trial suggested it from.

    Optuna's tables hold this too, but to find it there takes a look at every trial of the study.
    """

    __tablename__ = "sweeper_parameters"

    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id), primary_key=True)
    name: Mapped[str] = mapped_column(String(512), primary_key=True)
    number: Mapped[int] = mapped_column(comment="of the first trial that has it")
    distribution: Mapped[str] = mapped_column(Text, comment="JSON, as Optuna writes it")


class Epoch(Base):
    """One finished epoch. ``metrics`` is text: SQL's JSON knows neither NaN nor infinity."""

    __tablename__ = "sweeper_epochs"

    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    metrics: Mapped[str] = mapped_column(Text, comment="JSON with NaN and Infinity")


class Checkpoint(Base):
    """One committed checkpoint of an attempt."""

    __tablename__ = "sweeper_checkpoints"
    __table_args__ = (UniqueConstraint("trial_id", "path", name="sweeper_checkpoints_path"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    path: Mapped[str] = mapped_column(Text)


class DefinitionChange(Base):
    """A changed definition that somebody accepted, with what it changed."""

    __tablename__ = "sweeper_definition_changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    changed_at: Mapped[datetime]
    begun: Mapped[int]
    changes: Mapped[str] = mapped_column(Text, comment="JSON: a sentence each")
    replaced: Mapped[str | None] = mapped_column(String(32))


class Worker(Base):
    """A process that runs trials of a study; there until its lease ends or it leaves.

    ``present_since`` is when its unbroken contact with the database began: who was cut off cannot
    tell a worker that died meanwhile from one that was cut off just as long.
    """

    __tablename__ = "sweeper_workers"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    key: Mapped[str] = mapped_column(String(32), unique=True)
    host: Mapped[str] = mapped_column(String(255))
    boot_id: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    started: Mapped[float] = mapped_column(Float(53))
    engine: Mapped[str] = mapped_column(String(16))
    slots: Mapped[int]
    joined_at: Mapped[datetime] = mapped_column(DateTime)
    lease_until: Mapped[datetime] = mapped_column(DateTime)
    present_since: Mapped[datetime] = mapped_column(DateTime)
    left_at: Mapped[datetime | None] = mapped_column(DateTime)
    error: Mapped[str | None] = mapped_column(Text)


class Verdict(Base):
    """Verdict of one verification of a finished trial."""

    __tablename__ = "sweeper_verdicts"
    __table_args__ = (Index("sweeper_verdicts_of_trial", "trial_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    checked_at: Mapped[datetime] = mapped_column(DateTime)
    mode: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    epoch: Mapped[int | None]
    step: Mapped[int | None] = mapped_column(BigInteger)
    variable: Mapped[str | None] = mapped_column(Text)
    report: Mapped[str] = mapped_column(Text, comment="JSON")


class Audit(Base):
    """One interval between two checkpoints of a trial, to be replayed and compared, or compared.

    ``claim_key`` fences: a verdict is written under the claim that the row has, and once only.
    ``worker_key`` says who holds it; a worker that has left, or is gone, holds nothing.
    """

    __tablename__ = "sweeper_audits"
    __table_args__ = (
        UniqueConstraint("trial_id", "from_step", "to_step", name="sweeper_audits_interval"),
        Index(
            "sweeper_audits_undecided",
            "trial_id",
            sqlite_where=text("outcome IS NULL"),
            postgresql_where=text("outcome IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    attempt: Mapped[int]
    from_step: Mapped[int] = mapped_column(BigInteger)
    to_step: Mapped[int] = mapped_column(BigInteger)
    to_epoch: Mapped[int]
    host: Mapped[str] = mapped_column(String(255))
    directory: Mapped[str] = mapped_column(Text)
    from_path: Mapped[str | None] = mapped_column(Text)
    to_path: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime)
    worker_key: Mapped[str | None] = mapped_column(String(32))
    claim_key: Mapped[str | None] = mapped_column(String(32))
    tries: Mapped[int] = mapped_column(server_default="0")
    outcome: Mapped[str | None] = mapped_column(String(8))
    seconds: Mapped[float | None] = mapped_column(Float(53))
    decided_at: Mapped[datetime | None] = mapped_column(DateTime)
    report: Mapped[str | None] = mapped_column(Text, comment="JSON")


class Evaluation(Base):
    """Result of one checkpoint of a trial on one set of held-out data.

    The checkpoint is named by its step and digest, since its row goes when it is deleted.
    """

    __tablename__ = "sweeper_evaluations"
    __table_args__ = (
        UniqueConstraint(
            "trial_id", "step", "digest", "data", "data_digest", name="sweeper_evaluations_of"
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    data: Mapped[str] = mapped_column(Text, comment="what the data are called")
    data_digest: Mapped[str] = mapped_column(String(32))
    metrics: Mapped[str] = mapped_column(Text, comment="JSON with NaN and Infinity")
    evaluated_at: Mapped[datetime] = mapped_column(DateTime)


class Length(Base):
    """Result of a trial at a number of epochs, written in the transaction that extends the trial."""

    __tablename__ = "sweeper_lengths"
    __table_args__ = (UniqueConstraint("trial_id", "epochs", name="sweeper_lengths_of"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id))
    epochs: Mapped[int]
    trained: Mapped[int]
    result: Mapped[str] = mapped_column(String(16))
    objectives: Mapped[str] = mapped_column(
        Text, comment="JSON with Infinity: the values, in order"
    )
    digest: Mapped[str | None] = mapped_column(String(64))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime)


class Rung(Base):
    """One rung of a round whose trials were compared; written once, and never changed.

    ``first`` is the number of the round's first trial, by which the round is known.
    """

    __tablename__ = "sweeper_rungs"
    __table_args__ = (
        UniqueConstraint("study_id", "first", "epochs", name="sweeper_rungs_of_a_round"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    bracket: Mapped[int]
    first: Mapped[int]
    epochs: Mapped[int]
    decided_at: Mapped[datetime] = mapped_column(DateTime)


class RungMember(Base):
    """One trial at one rung: there once it has reached the rung, or was compared there otherwise.

    ``value`` is null for a trial that failed, ``digest`` for one that was over before the rung;
    ``promoted`` and ``rung_id`` are null until the rung is decided.
    """

    __tablename__ = "sweeper_rung_members"

    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id), primary_key=True)
    epochs: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[float | None] = mapped_column(Float(53))
    digest: Mapped[str | None] = mapped_column(String(64))
    rung_id: Mapped[int | None] = mapped_column(ForeignKey(Rung.id))
    promoted: Mapped[bool | None]


class RoundStart(Base):
    """A number from which rounds are dealt anew: the study's total when it was raised."""

    __tablename__ = "sweeper_round_starts"

    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
