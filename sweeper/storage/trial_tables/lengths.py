"""The table of what trials gave at lengths that they were extended from."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from sweeper.storage.tables import Base, Trial


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
