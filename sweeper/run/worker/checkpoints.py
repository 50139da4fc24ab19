"""A trial's checkpoints and directories: where they are, and to which study they belong.

The database keeps the path at which each checkpoint was written. A study may have been copied since
(``cp -r runs``), or be resumed from another directory: so each is looked for below the runs
directory of today first, under the same names, and then at its own path. What was copied is gone on
with where it is now, and the original stays as it was. What is found nowhere is said before any
time is spent on doing it again.

A study that the database does not have yet can own nothing, so whatever is found under its name is
another's. Directories that an older version filled have no marker; only a study that has begun
trials in this database may take such a one for its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoint.identity import (
    CheckpointName,
    Marker,
    Origin,
    claim_directory,
    foreign_owner,
    unfinished_name,
)
from sweeper.checkpoint.reading import list_checkpoints, read_manifest
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.errors import CheckpointError, ForeignCheckpointError
from sweeper.records.results import CheckpointRecord, TrialRecord
from sweeper.support.paths import Location, RemotePath, RunPaths, parse_location

if TYPE_CHECKING:
    from sweeper.db.repository import Claim, StudyRow


def check_new_study(paths: RunPaths, storage: str) -> None:
    """Refuse to create a study in a directory with another one's files.

    Raises:
        ForeignCheckpointError: There are some; says whose.
        CheckpointError: A directory cannot be read.
    """
    for directory in paths.study_directories:
        foreign = foreign_owner(directory, None)
        if foreign is not None:
            msg = (
                f"{directory} belongs to {foreign}, which is not in {storage}, so its checkpoints "
                "must not be used. Nothing was changed; name that study's database (--storage), "
                f"give another --runs-dir or another name, or move {directory} away"
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
    """Refuse directories of another study; nothing is written.

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
    """Return the marker of the stored study's directories."""
    return Marker(study.name, study.identity, study.seed, study.fingerprint)


def origin_of(claim: Claim, seed: int) -> Origin | None:
    """Return the origin of a claimed trial's checkpoints, without its parameters.

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


_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True)
class Located:
    """Checkpoints of one trial that were found.

    Attributes:
        known: Those that the database lists, where they are; in an object store, where they were
            written.
        moved: By the path that the database has, where one is now.
        gone: Paths that the database has of older ones than the newest that is there: their
            process was killed between deleting them and having that written down.
        apart: Directories outside of the study's own in which some are.
        newest: The newest that is there, where that is on a disk and apart.
        missing: The newest that the database lists, if nothing as new is there.
        reached: The newest step that is there; 0 where there is none.
    """

    number: int
    known: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    newest: Path | None = None
    missing: CheckpointRecord | None = None
    reached: int = 0

    def notice(self, listed: int, files: Path) -> str | None:
        """Return a notice for the user before the trial resumes; None if nothing has changed.

        Args:
            listed: How many checkpoints the database lists.
            files: `Trial.directory`, as it is now.
        """
        number, missing = self.number, self.missing
        if missing is not None:
            again = f"from step {self.reached}" if self.reached else "from the beginning"
            return (
                f"trial {number}: the database lists {listed} checkpoints, and the newest, of "
                f"step {missing.step}, is no longer at {missing.path}; the steps are trained "
                f"again, {again}. If the checkpoints were moved, stop this run, and name their "
                "place with --runs-dir or --checkpoints"
            )
        if self.apart:
            return (
                f"trial {number} resumes from its checkpoints in {', '.join(self.apart)}; new "
                f"files are written to {files.parent}, to which its own files are copied "
                "(--runs-dir names another place)"
            )
        return None


def locate(trial: TrialRecord, paths: RunPaths) -> Located:
    """Find a trial's checkpoints.

    Raises:
        CheckpointError: The disk does not tell.
    """
    known: list[Location] = []
    moved: dict[str, str] = {}
    apart: list[str] = []
    nowhere: list[CheckpointRecord] = []
    for record in trial.checkpoints:
        location = parse_location(record.path)
        found = (
            location if isinstance(location, RemotePath) else _found(location, trial.number, paths)
        )
        if found is None:
            nowhere.append(record)
            continue
        known.append(found)
        if str(found) != record.path:
            moved[record.path] = str(found)
        elif isinstance(found, Path) and not _is_own(found, paths):
            apart.append(str(found.parent))
    newest = max(trial.checkpoints, key=lambda record: record.step, default=None)
    last = max(known, key=_step, default=None)
    steps = [_step(location) for location in known]
    missing = None
    if newest is not None and newest.step > max(steps, default=0):
        steps += [_step(location) for location in _listed(trial, paths)]
        missing = newest if newest.step > max(steps, default=0) else None
    return Located(
        number=trial.number,
        known=tuple(dict.fromkeys(map(str, known))),
        moved=moved,
        gone=tuple(record.path for record in nowhere if record.step < max(steps, default=0)),
        apart=tuple(dict.fromkeys(apart)),
        newest=last if isinstance(last, Path) and str(last.parent) in apart else None,
        missing=missing,
        reached=max(steps, default=0),
    )


def begin_files(parent: int, number: int, paths: RunPaths) -> None:
    """Copy the files of the parent's callbacks to a branch, unless it has files of its own.

    Raises:
        CheckpointError: It cannot be copied.
    """
    before, files = paths.trial_files(parent), paths.trial_files(number)
    try:
        if files.exists() or not before.is_dir():
            return
        files.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.with_name(unfinished_name("writing", files.name))
        shutil.copytree(before, temporary, symlinks=True)
        temporary.rename(files)
    except (OSError, shutil.Error) as error:
        msg = (
            f"the files of trial {parent} cannot be copied to {files}: {error}; check the disk, "
            "then resume"
        )
        raise CheckpointError(msg) from error


def bring_files(newest: Path, files: Path) -> None:
    """Copy files that a trial's code has written to its present directory.

    Args:
        newest: A checkpoint of the trial, which says where that was.
        files: `Trial.directory`, as it is now; left as it is if there is anything in it.

    Raises:
        CheckpointError: It cannot be copied.
    """
    try:
        origin = read_manifest(newest).origin
        before = None if origin is None or not origin.directory else Path(origin.directory)
        if before is None or before == files or not before.is_dir():
            return
        if files.is_dir():
            if any(files.iterdir()):
                return
            files.rmdir()
        files.parent.mkdir(parents=True, exist_ok=True)
        sweep_leftovers(files.parent)
        temporary = files.with_name(unfinished_name("writing", files.name))
        shutil.copytree(before, temporary, symlinks=True)
        temporary.rename(files)
    except (OSError, shutil.Error) as error:
        msg = (
            f"the files of the trial's code cannot be copied to {files}: {error}; copy them "
            "there, or name the old directory (--runs-dir)"
        )
        raise CheckpointError(msg) from error


def _found(recorded: Path, number: int, paths: RunPaths) -> Path | None:
    attempt = _ATTEMPT.fullmatch(recorded.parent.parent.name)
    candidates: list[Location] = [recorded]
    if attempt is not None:
        order = int(attempt[1])
        here = (paths, RunPaths(paths.root, paths.study))
        candidates = [*(p.checkpoints(number, order) / recorded.name for p in here), recorded]
    for location in candidates:
        if isinstance(location, Path) and _is_there(location):
            return location
    return None


def _is_there(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        msg = (
            f"the checkpoint {path} cannot be looked up: {error}; check the disk and its "
            "permissions, then resume"
        )
        raise CheckpointError(msg) from error


def _is_own(path: Path, paths: RunPaths) -> bool:
    return any(path.is_relative_to(directory) for directory in paths.study_directories)


def _listed(trial: TrialRecord, paths: RunPaths) -> list[Location]:
    """Return the checkpoints in the directories of earlier attempts, whether or not the database has them."""
    found: list[Location] = []
    for attempt in trial.attempts[trial.anew_after :]:
        directory = paths.checkpoints(trial.number, attempt.number)
        try:
            found += list_checkpoints(directory)
        except NotADirectoryError:
            continue
        except OSError as error:
            msg = f"the checkpoints in {directory} cannot be listed: {error}"
            raise CheckpointError(msg) from error
    return found


def _step(location: Location) -> int:
    name = CheckpointName.parse(location.name)
    return 0 if name is None else name.step
