"""Checkpoints and directories of trials: their present paths, and the study to which they belong.

The database stores the path at which each checkpoint was written. The study may have been copied since
(``cp -r runs``), or be resumed from another directory. So a checkpoint is searched first below the
present runs directory, under the same names, and then at its stored path. A copy is resumed where it
is, and the original is not changed. Missing checkpoints are reported before any step is trained again.

A study that is new to the database owns no files, so all files under its name belong to another study.
Only a study that has started trials in this database may adopt a directory whose marker is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoint.identity import (
    CheckpointName,
    Origin,
    check_owner,
    claim_directory,
    unfinished_name,
)
from sweeper.checkpoint.reading import list_checkpoints, list_local, read_manifest
from sweeper.checkpoint.store import sweep_leftovers
from sweeper.errors import CheckpointError
from sweeper.records.results import CheckpointRecord, TrialRecord
from sweeper.support.paths import Location, RemotePath, RunPaths, parse_location

if TYPE_CHECKING:
    from sweeper.db.repository import Claim, StudyRow


def check_new_study(paths: RunPaths, storage: str) -> None:
    """Check that the directories of a new study contain no files of another study; see `check_owner`."""
    for directory in paths.study_directories:
        check_owner(directory, None, new_in=storage)


def claim_directories(paths: RunPaths, study: StudyRow, *, begun: bool) -> None:
    """Mark the study's directories as its own; ``begun`` is whether it has started trials."""
    for directory in paths.study_directories:
        claim_directory(directory, marker_of(study), adopt=begun)


def check_directories(directories: Iterable[Path], study: StudyRow, *, begun: bool) -> None:
    """Check that directories do not belong to another study; see `check_owner`."""
    for directory in directories:
        check_owner(directory, marker_of(study), adopt=begun)


def marker_of(study: StudyRow) -> Origin:
    """Return the marker of the stored study's directories."""
    return Origin(study.name, study.identity, 0, study.seed, study.fingerprint)


def origin_of(claim: Claim, seed: int) -> Origin:
    """Return the origin of a claimed trial's checkpoints, without its parameters; ``seed`` is the study's."""
    return Origin(
        study=claim.study,
        identity=claim.identity,
        trial=claim.number,
        seed=seed,
        definition=claim.definition,
        former=claim.former,
    )


@dataclass(frozen=True)
class CheckpointPaths:
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

    known: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    newest: Path | None = None
    missing: CheckpointRecord | None = None
    reached: int = 0

    def notice(self, trial: TrialRecord, files: Path) -> str | None:
        """Return a notice before the trial resumes, or None; ``files`` is the present `Trial.directory`."""
        number = trial.number
        missing = self.missing
        listed = len(trial.checkpoints)
        if missing is not None:
            start = f"from step {self.reached}" if self.reached else "from the beginning"
            return (
                f"trial {number}: the database lists {listed} checkpoints, and the newest, of "
                f"step {missing.step}, is no longer at {missing.path}; the steps are trained "
                f"again, {start}. If the checkpoints were moved, stop this run, and name their "
                "place with --runs-dir or --checkpoints"
            )
        if self.apart:
            return (
                f"trial {number} resumes from its checkpoints in {', '.join(self.apart)}; new "
                f"files are written to {files.parent}, to which its own files are copied "
                "(--runs-dir names another place)"
            )
        return None


def locate(trial: TrialRecord, paths: RunPaths) -> CheckpointPaths:
    """Return the present paths of a trial's checkpoints."""
    present = {r.path: present_path(r, trial.number, paths) for r in trial.checkpoints}
    existing = [path for path in present.values() if path is not None]
    moved: dict[str, str] = {}
    apart: list[str] = []
    for recorded, path in present.items():
        if path is not None and str(path) != recorded:
            moved[recorded] = str(path)
        elif isinstance(path, Path) and not any(map(path.is_relative_to, paths.study_directories)):
            apart.append(str(path.parent))
    newest = max(existing, key=_step, default=None)
    missing = None
    reached = max(map(_step, existing), default=0)
    listed = max(trial.checkpoints, key=lambda record: record.step, default=None)
    if listed is not None and listed.step > reached:
        # A process that died may have written a later one, which the database does not list.
        reached = max([reached, *map(_step, listed_checkpoints(trial, paths))])
        missing = listed if listed.step > reached else None
    return CheckpointPaths(
        known=tuple(dict.fromkeys(map(str, existing))),
        moved=moved,
        gone=tuple(
            r.path for r in trial.checkpoints if present[r.path] is None and r.step < reached
        ),
        apart=tuple(dict.fromkeys(apart)),
        newest=newest if isinstance(newest, Path) and str(newest.parent) in apart else None,
        missing=missing,
        reached=reached,
    )


def bring_files(newest: Path, files: Path) -> None:
    """Copy a trial's former `Trial.directory` to its present one, unless that contains files.

    The origin of the checkpoint ``newest`` names the former directory.

    Raises:
        CheckpointError: It cannot be copied.
    """
    try:
        origin = read_manifest(newest).origin
        if origin is None or not origin.directory:
            return
        former = Path(origin.directory)
        if former == files or not former.is_dir():
            return
        if files.is_dir():
            if any(files.iterdir()):
                return
            files.rmdir()
        files.parent.mkdir(parents=True, exist_ok=True)
        sweep_leftovers(files.parent)
        # Under a temporary name, so that no partial copy is used.
        temporary = files.with_name(unfinished_name("writing", files.name))
        shutil.copytree(former, temporary, symlinks=True)
        temporary.rename(files)
    except (OSError, shutil.Error) as error:
        raise CheckpointError(
            f"the files of the trial's code cannot be copied to {files}: {error}; copy them "
            "there, or name the old directory (--runs-dir)"
        ) from error


def present_path(record: CheckpointRecord, number: int, paths: RunPaths) -> Location | None:
    """Return where a stored checkpoint of trial ``number`` is now; None if it is missing.

    One in an object store is not looked up.
    """
    recorded = parse_location(record.path)
    if isinstance(recorded, RemotePath):
        return recorded
    try:
        return paths.present(recorded, number)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {recorded} cannot be looked up: {error}; check the disk and its "
            "permissions, then resume"
        ) from error


def listed_checkpoints(trial: TrialRecord, paths: RunPaths) -> list[Location]:
    """Return all checkpoints in the directories of earlier attempts, also those not in the database."""
    locations: list[Location] = []
    for attempt in trial.attempts[trial.ignore_checkpoints_through :]:
        directory = paths.checkpoints(trial.number, attempt.number)
        locations += list_checkpoints(directory)
    return locations


def newest_local_step(directory: Location) -> int:
    """Return the step of the newest checkpoint in a directory of this machine; 0 without one, or if it cannot be read."""
    try:
        listed = list_local(directory) if isinstance(directory, Path) else ()
    except OSError:
        return 0  # the next attempt names the error
    return max(map(_step, listed), default=0)


def _step(location: Location) -> int:
    name = CheckpointName.parse(location.name)
    return 0 if name is None else name.step
