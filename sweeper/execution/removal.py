"""Taking a study away with its files: for good (`sweeper rm`), or under another name (``--fresh``).

The rows go first, and only while nobody is at work in the study: files without rows are in nobody's
way but the disk's, rows without files would promise what is gone. Setting aside is the other way
round, since a directory can be given its old name back. Links are removed, never what they lead to.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from sweeper.checkpoints.remote.reading import delete_remote, list_remote
from sweeper.errors import CheckpointError, UsageError
from sweeper.execution.worker.ownership import check_directories
from sweeper.paths import BRANCH_START, END_MODEL, RemotePath, RunPaths, check_name, parse_location
from sweeper.results import TrialRecord
from sweeper.storage.repository import Repository

_ABOVE_A_CHECKPOINT = 3
"""``study/trial-00003/attempt-01/checkpoints`` stand above a checkpoint."""


def study_directories(
    repository: Repository, trials: tuple[TrialRecord, ...], paths: RunPaths
) -> tuple[Path, ...]:
    """The directories of this machine that a study's files are in: one, or with ``--checkpoints`` two.

    Raises:
        UnknownStudyError: There is no such study.
        ForeignCheckpointError: One of them is another study's, of the same name.
        CheckpointError: One cannot be read.
    """
    study = paths.study
    found = set(paths.study_directories)
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, Path) and len(location.parents) > _ABOVE_A_CHECKPOINT:
                directory = location.parents[_ABOVE_A_CHECKPOINT]
                if directory.name == study:
                    found.add(directory)
    there = tuple(sorted(path for path in found if path.is_symlink() or path.exists()))
    check_directories(there, repository.study(study), begun=repository.has_begun(study))
    return there


def remove_study(repository: Repository, paths: RunPaths) -> tuple[Path, ...]:
    """Remove a study, its rows and its files; return the directories that went.

    Raises:
        UnknownStudyError: There is no such study.
        UsageError: Somebody is at work in it; nothing is removed.
        ForeignCheckpointError: A directory is another study's; nothing is removed.
        CheckpointError: Files of it cannot be deleted; its rows are gone.
    """
    study = paths.study
    trials = repository.trials(study)
    directories = study_directories(repository, trials, paths)
    repository.removal.delete(study)
    ends: set[RemotePath] = set()
    for trial in trials:
        for checkpoint in trial.checkpoints:
            location = parse_location(checkpoint.path)
            if isinstance(location, RemotePath):
                delete_remote(location)
                ends.add(location.parent.parent.parent / END_MODEL)
                if trial.parent is not None:
                    ends.add(location.parent.parent.parent / BRANCH_START)
    for end in sorted(ends):
        for kept in list_remote(end):
            delete_remote(kept)
    for directory in directories:
        try:
            if directory.is_symlink():
                directory.unlink()
            else:
                shutil.rmtree(directory)
        except OSError as error:
            msg = (
                f"study {study!r} is gone from the database, and {directory} cannot be deleted: "
                f"{error}; remove it by hand"
            )
            raise CheckpointError(msg) from error
    return directories


def set_aside(repository: Repository, paths: RunPaths) -> str:
    """Give a study and its directories another name, ``study~1`` or the next free one; return it.

    Raises:
        UnknownStudyError: There is no such study.
        UsageError: Somebody is at work in it, its checkpoints are in an object store, or its name
            is too long to be made longer.
        ForeignCheckpointError: A directory is another study's; nothing is changed.
        CheckpointError: A directory cannot be renamed; nothing is changed.
    """
    study = paths.study
    removal = repository.removal
    removal.check_at_rest(study, "set aside")
    trials = repository.trials(study)
    remote = next((c.path for t in trials for c in t.checkpoints if "://" in c.path), None)
    if remote is not None:
        msg = (
            f"study {study!r} cannot be set aside, because its checkpoints are in an object store "
            f"({remote}), where nothing can be renamed; give the new study another name"
        )
        raise UsageError(msg)
    directories = study_directories(repository, trials, paths)
    taken = set(removal.names_set_aside(study))
    number = 1
    while f"{study}~{number}" in taken or any(
        directory.with_name(f"{study}~{number}").exists() for directory in directories
    ):
        number += 1
    new = check_name(f"{study}~{number}")
    moved: dict[Path, Path] = {}
    try:
        for directory in directories:
            directory.rename(directory.with_name(new))
            moved[directory] = directory.with_name(new)
        removal.rename(study, new, {str(was): str(now) for was, now in moved.items()})
    except BaseException as error:
        for was, now in moved.items():
            with contextlib.suppress(OSError):
                now.rename(was)
        if isinstance(error, OSError):
            msg = f"study {study!r} cannot be set aside as {new!r}: {error}; nothing was changed"
            raise CheckpointError(msg) from error
        raise
    return new
