"""Where a study's code and its database are, and how it is to be opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sweeper.definition import StudyDefinition
from sweeper.events import Listener
from sweeper.execution.channel import StudySource
from sweeper.paths import Place

__all__ = ["StudyPlace"]


@dataclass(frozen=True)
class StudyPlace:
    """Where a study's code and its database are.

    Attributes:
        storage: The database's URL.
        runs_dir: Where files go.
        listener: Told of everything that happens.
        isolation: ``"auto"``, ``"fork"``, ``"spawn"`` or ``"inline"``.
        source: ``FILE[:NAME]`` or ``package.module[:NAME]``; None to go by ``study``, or with
            ``definition`` or ``sent``.
        study: The name of a study in the database.
        definition: A study object of this process, instead of ``source``.
        sent: The source that another process of this sweep found, instead of ``source``.
        trials: A new total; None to keep the study's.
        accept_changes: Whether a changed definition takes the stored one's place.
        checkpoints: Where checkpoints go, when not below ``runs_dir``.
        fresh: Whether a stored study of this name is set aside, and a new one begins.
        lends: Whether this process only lends its slots to a study that others run: the study is
            ``study``, must be in the database, and nothing of it is changed there.
    """

    storage: str = field(repr=False)
    runs_dir: Path
    listener: Listener
    isolation: str = "auto"
    source: str | None = None
    study: str | None = None
    definition: StudyDefinition | None = None
    sent: StudySource | None = None
    trials: int | None = None
    accept_changes: bool = False
    checkpoints: Place | None = None
    fresh: bool = False
    lends: bool = False
