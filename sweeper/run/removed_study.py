"""Removal and renaming of a stored study: its rows, its confirmation and its directories.

Removal deletes the rows first, and only while no worker runs the study: rows without files would refer
to missing checkpoints. Renaming starts with the directories, because that can be undone.

A copied database names the directories of the one it was copied from, whose files are another study's: they are left.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.checkpoint.remote_objects import delete_remote, list_remote
from sweeper.db.repository import Repository
from sweeper.declarations.repeating import confirmation_name
from sweeper.errors import CheckpointError, UsageError
from sweeper.records.results import TrialRecord
from sweeper.run.worker.checkpoints import check_directories
from sweeper.support.paths import (
    DATABASE_FILE,
    END_MODEL,
    RemotePath,
    RunPaths,
    check_name,
    parse_location,
)

_ABOVE_A_CHECKPOINT = 3
"""Index in ``parents`` of the study's directory: ``study/trial-00003/attempt-01/checkpoints/step-…``."""


@dataclass(frozen=True)
class StudyDirectories:
    """Existing directories of a study.

    Attributes:
        own: Those below the directories of this run, and others in which the database names checkpoints.
        left: Others in which the database names checkpoints, and which another database may use: one is beside them,
            or the checkpoints are below the directories of this run, too.
        remote: Those in object stores.
    """

    own: tuple[Path, ...] = ()
    left: tuple[Path, ...] = ()
    remote: tuple[RemotePath, ...] = ()

    def __add__(self, other: StudyDirectories) -> StudyDirectories:
        return StudyDirectories(
            (*self.own, *other.own), (*self.left, *other.left), (*self.remote, *other.remote)
        )


def study_directories(
    repository: Repository, trials: tuple[TrialRecord, ...], paths: RunPaths
) -> StudyDirectories:
    """Return the study's existing directories: one, or several after runs with other ``--runs-dir`` or ``--checkpoints``.

    Raises:
        ForeignCheckpointError: One belongs to another study.
    """
    own = set(paths.study_directories)
    left = set()
    remote = set()
    here_by_any_name = {directory.resolve() for directory in own}
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, RemotePath):
                remote.add(location.parent.parent.parent.parent)
                continue
            if len(location.parents) <= _ABOVE_A_CHECKPOINT:
                continue
            directory = location.parents[_ABOVE_A_CHECKPOINT]
            if directory.name != paths.study or directory.resolve() in here_by_any_name:
                continue
            here = paths.directories_of_attempt(location, trial.number)
            if any(map(Path.is_dir, here)) or _has_another_database(directory.parent, repository):
                left.add(directory)
            else:
                own.add(directory)
    existing = _existing(own - left)
    check_directories(
        existing, repository.study(paths.study), begun=repository.has_begun(paths.study)
    )
    return StudyDirectories(existing, _existing(left), tuple(sorted(remote, key=str)))


def _existing(directories: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted(path for path in directories if path.is_symlink() or path.exists()))


def _has_another_database(runs_dir: Path, repository: Repository) -> bool:
    """Return whether a runs directory has a database, and it is not that of ``repository``."""
    database = runs_dir / DATABASE_FILE
    used = repository.database.url.database
    return database.is_file() and not (
        repository.database.url.get_backend_name() == "sqlite"
        and used is not None
        and database.resolve() == Path(used).resolve()
    )


def remove_study(repository: Repository, paths: RunPaths) -> StudyDirectories:
    """Remove a study with its confirmation, rows and files; return the deleted directories, and those that are left.

    Raises:
        UsageError: Workers run its trials; nothing is removed.
        ForeignCheckpointError: A directory belongs to another study; nothing is removed.
        CheckpointError: A file cannot be deleted; the rows are already removed.
    """
    study = paths.study
    trials = repository.trials(study)
    directories = study_directories(repository, trials, paths)
    beside = StudyDirectories()
    if confirmation_name(study) in repository.study_names():
        repository.check_at_rest(study, "removed")
        beside = remove_study(repository, replace(paths, study=confirmation_name(study)))
    # Rows first: rows without files would refer to missing checkpoints, files without rows are only in the
    # way.
    repository.delete_study(study)
    _delete_remote_files(trials)
    for directory in directories.own:
        try:
            if directory.is_symlink():
                directory.unlink()
            else:
                shutil.rmtree(directory)
        except OSError as error:
            raise CheckpointError(
                f"study {study!r} was removed from the database, but {directory} cannot be "
                f"deleted: {error}; remove it by hand"
            ) from error
    return beside + directories


def _delete_remote_files(trials: Sequence[TrialRecord]) -> None:
    """Delete the trials' files in object stores."""
    ends: set[RemotePath] = set()
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, RemotePath):
                delete_remote(location)
                ends.add(location.parent.parent.parent / END_MODEL)
    for end in sorted(ends):
        for path in list_remote(end):
            delete_remote(path)


def rename_existing(repository: Repository, paths: RunPaths) -> str:
    """Rename a study, its confirmation and directories to ``study~1`` or the next free name; return it.

    Raises:
        UsageError: Workers run its trials, its checkpoints are in an object store, or the new name
            would be too long.
        ForeignCheckpointError: A directory belongs to another study; nothing is changed.
        CheckpointError: A directory cannot be renamed; nothing is changed.
    """
    study = paths.study
    repository.check_at_rest(study, "renamed")
    beside = confirmation_name(study)
    confirmed = beside in repository.study_names()
    if confirmed:
        repository.check_at_rest(beside, "renamed")
    trials = repository.trials(study)
    remote = next((c.path for t in trials for c in t.checkpoints if "://" in c.path), None)
    if remote is not None:
        raise UsageError(
            f"study {study!r} cannot be renamed, because its checkpoints are in an object store "
            f"({remote}); give the new study another name"
        )
    directories = study_directories(repository, trials, paths).own
    taken = set(repository.names_of_renamed(study))
    number = 1
    while f"{study}~{number}" in taken or any(
        directory.with_name(f"{study}~{number}").exists() for directory in directories
    ):
        number += 1
    new = check_name(f"{study}~{number}")
    _rename(repository, study, new, directories)
    if confirmed:
        paths_beside = replace(paths, study=beside)
        directories_beside = study_directories(repository, repository.trials(beside), paths_beside)
        _rename(repository, beside, confirmation_name(new), directories_beside.own)
    return new


def _rename(repository: Repository, study: str, new: str, directories: Sequence[Path]) -> None:
    """Rename a study and its directories; nothing is changed if a directory cannot be renamed."""
    moved: dict[Path, Path] = {}
    try:
        # Directories first: they can be renamed back, and a committed row cannot.
        for directory in directories:
            directory.rename(directory.with_name(new))
            moved[directory] = directory.with_name(new)
        repository.rename_study(
            study, new, {str(old_path): str(new_path) for old_path, new_path in moved.items()}
        )
    except BaseException as error:
        for old_path, new_path in moved.items():
            # The first error is the one to report; what cannot be renamed back keeps the new name.
            with contextlib.suppress(OSError):
                new_path.rename(old_path)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"study {study!r} cannot be renamed to {new!r}: {error}; nothing was changed"
            ) from error
        raise
