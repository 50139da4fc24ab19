"""The tables of budgets: which trials reached which rung, and who was promoted there."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, Float, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from sweeper.storage.tables import Base, Study, Trial


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
