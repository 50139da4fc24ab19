"""Whose a study's directories are, and whose each checkpoint: said before a trial is claimed.

A study that the database does not have yet can own nothing, so whatever is found under its name is
another's. Directories that an older version filled have no marker; only a study that has begun
trials in this database may take such a one for its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoints.marker import Marker, claim_directory, foreign_owner
from sweeper.checkpoints.origin import Origin
from sweeper.errors import ForeignCheckpointError
from sweeper.paths import RunPaths

if TYPE_CHECKING:
    from sweeper.storage.repository import Claim, StudyRow


def check_new_study(paths: RunPaths, storage: str) -> None:
    """Refuse to create a study where another one's files are.

    Raises:
        ForeignCheckpointError: There are some; says whose.
        CheckpointError: A directory cannot be read.
    """
    for directory in paths.study_directories:
        foreign = foreign_owner(directory, None)
        if foreign is not None:
            msg = (
                f"{directory} belongs to {foreign}, which is not in {storage}: its checkpoints "
                f"would become this study's. Nothing was changed; name the database that it is in "
                f"(--storage), give another --runs-dir or another name, or move {directory} away"
            )
            raise ForeignCheckpointError(msg)


def claim_directories(paths: RunPaths, study: StudyRow, *, begun: bool) -> None:
    """Mark the study's directories as its own.

    Args:
        paths: Where its files go.
        study: As it is stored.
        begun: Whether it has begun trials.

    Raises:
        ForeignCheckpointError: One is another's; says whose.
        CheckpointError: One cannot be read or written.
    """
    for directory in paths.study_directories:
        claim_directory(directory, marker_of(study), adopt=begun)


def check_directories(directories: Iterable[Path], study: StudyRow, *, begun: bool) -> None:
    """Refuse directories that are another study's; nothing is written.

    Raises:
        ForeignCheckpointError: One is; says whose.
        CheckpointError: One cannot be read.
    """
    for directory in directories:
        foreign = foreign_owner(directory, marker_of(study), adopt=begun)
        if foreign is not None:
            msg = (
                f"{directory} belongs to {foreign}, and not to {marker_of(study).describe()}; "
                "nothing was changed there. Name this study's own directory (--runs-dir), or the "
                "database of the other (--storage)"
            )
            raise ForeignCheckpointError(msg)


def marker_of(study: StudyRow) -> Marker:
    """What the stored study's directories are marked with."""
    return Marker(study.name, study.identity, study.seed, study.fingerprint)


def origin_of(claim: Claim, seed: int) -> Origin | None:
    """Whose the checkpoints of a claimed trial are, but for its parameters.

    Args:
        claim: The trial.
        seed: The study's.
    """
    if not claim.identity:
        return None
    return Origin(
        study=claim.study,
        identity=claim.identity,
        trial=claim.number,
        seed=seed,
        definition=claim.definition,
        former=claim.former,
    )
