"""Checkpoints and directories of trials: their present paths, and the study to which they belong.

The database stores the path at which each checkpoint was written. The study may have been copied since
(``cp -r runs``), or be resumed from another directory. So a checkpoint is searched first below the
present runs directory, under the same names, and then at its stored path. A copy is resumed where it
is, and the original is not changed. Missing checkpoints are reported before any step is trained again.

A study that is new to the database owns no files, so all files under its name belong to another study.
Only a study that has begun trials in this database may adopt a directory whose marker is missing.
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
    """Check that the directories of a new study contain no files of another study.

    Raises:
        ForeignCheckpointError: A directory does; the message names the study.
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

    ``begun`` is whether it has begun trials.

    Raises:
        ForeignCheckpointError: A directory belongs to another study; the message names it.
        CheckpointError: A directory cannot be read or written.
    """
    for directory in paths.study_directories:
        claim_directory(directory, marker_of(study), adopt=begun)


def check_directories(directories: Iterable[Path], study: StudyRow, *, begun: bool) -> None:
    """Check that directories do not belong to another study, without writing to them.

    Raises:
        ForeignCheckpointError: A directory does; the message names the study.
        CheckpointError: A directory cannot be read.
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
    """Return the origin of a claimed trial's checkpoints, without its parameters; ``seed`` is the study's."""
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
    """Present paths of the checkpoints of one trial.

    Attributes:
        known: Paths of the checkpoints that the database lists; those in an object store are not
            checked.
        moved: Present paths by stored path, for checkpoints that were moved.
        gone: Stored paths of missing checkpoints that are older than the newest one: a process was
            killed after it deleted them and before that was stored.
        apart: Directories outside of the study's own that contain checkpoints.
        newest: Path of the newest checkpoint if it is in one of ``apart``; None otherwise.
        missing: The newest checkpoint that the database lists, if no checkpoint as new exists.
        reached: The step of the newest existing checkpoint; 0 without checkpoints.
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

        ``listed`` is the number of checkpoints in the database, and ``files`` the present
        `Trial.directory`.
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
    """Return the present paths of a trial's checkpoints.

    Raises:
        CheckpointError: A directory cannot be read.
    """
    known: list[Location] = []
    moved: dict[str, str] = {}
    apart: list[str] = []
    nowhere: list[CheckpointRecord] = []
    for record in trial.checkpoints:
        found = present_path(record, trial.number, paths)
        if found is None:
            nowhere.append(record)
            continue
        known.append(found)
        if str(found) != record.path:
            moved[record.path] = str(found)
        elif isinstance(found, Path) and not any(
            map(found.is_relative_to, paths.study_directories)
        ):
            apart.append(str(found.parent))
    newest = max(trial.checkpoints, key=lambda record: record.step, default=None)
    last = max(known, key=_step, default=None)
    steps = [_step(location) for location in known]
    missing = None
    if newest is not None and newest.step > max(steps, default=0):
        steps += [_step(location) for location in listed_checkpoints(trial, paths)]
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


def bring_files(newest: Path, files: Path) -> None:
    """Copy a trial's former `Trial.directory` to its present one, unless that contains files.

    The origin of the checkpoint ``newest`` names the former directory.

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
        _copy_directory(before, files)
    except (OSError, shutil.Error) as error:
        msg = (
            f"the files of the trial's code cannot be copied to {files}: {error}; copy them "
            "there, or name the old directory (--runs-dir)"
        )
        raise CheckpointError(msg) from error


def _copy_directory(source: Path, target: Path) -> None:
    """Copy a directory under a temporary name, then rename it, so that no partial copy is used."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(unfinished_name("writing", target.name))
    shutil.copytree(source, temporary, symlinks=True)
    temporary.rename(target)


def present_path(record: CheckpointRecord, number: int, paths: RunPaths) -> Location | None:
    """Return where a stored checkpoint of trial ``number`` is now; None if it is missing.

    One in an object store is not looked up.
    """
    recorded = parse_location(record.path)
    if isinstance(recorded, RemotePath):
        return recorded
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


def listed_checkpoints(trial: TrialRecord, paths: RunPaths) -> list[Location]:
    """Return all checkpoints in the directories of earlier attempts, also those not in the database."""
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
