"""Garbage collection of checkpoints that the study's retention rules do not keep.

A worker applies the rules as it writes. Crashes leave further files, which are deleted here:
checkpoints of earlier attempts, unfinished directories, damaged checkpoints
that have ended. Running trials are skipped. Afterwards the database lists no deleted checkpoint.

Checkpoints in an object store are found by the prefixes in the database, and below
``--checkpoints``. A checkpoint in the database is looked up by name, because a listing may be
incomplete.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sweeper.checkpoint.format import MANIFEST_FILE
from sweeper.checkpoint.identity import Origin, is_marked_corrupt
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import read_kept, read_manifest
from sweeper.checkpoint.remote_objects import is_marked_corrupt_remote, listed_objects
from sweeper.checkpoint.remote_store import open_store
from sweeper.checkpoint.store import leftovers, sweep_leftovers
from sweeper.db.repository import Repository
from sweeper.declarations.checkpointing import Keep, Retention, retention
from sweeper.errors import CheckpointError, DefinitionError
from sweeper.records.printing import json_fields
from sweeper.records.results import TrialRecord
from sweeper.run.worker.checkpoints import check_directories, present_path
from sweeper.support.paths import (
    Location,
    RemotePath,
    RunPaths,
    absolute_location,
    parse_location,
)

Reason = Literal["retention", "unfinished", "damaged"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """A checkpoint or directory that can be deleted.

    Attributes:
        why: ``"retention"``: a complete checkpoint that no rule keeps. ``"unfinished"``: left by a
            process that died. ``"damaged"``: renamed because it did not verify.
        bytes: Its size on disk.
    """

    study: str
    trial: int
    path: Location
    why: Reason
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "study", "trial", "why", "bytes") | {"path": str(self.path)}


def collect(
    repository: Repository,
    study: str,
    runs_dir: Path,
    *,
    keep: Keep | None = None,
    dry_run: bool = False,
    checkpoints: Location | None = None,
    notify: Callable[[Garbage], None] = lambda _: None,
) -> tuple[Garbage, ...]:
    """Find the checkpoints that a study no longer needs; delete them unless ``dry_run``.

    ``keep`` are rules for finished trials instead of the study's own; unfinished trials always keep what
    the study's rules keep, and with ``at="best"`` the best epoch's checkpoint is always kept. ``notify`` is
    called with each item just after it was deleted, or would have been. All of them are returned.
    """
    row = repository.study(study)
    rules = _rules(row.definition, study, keep)
    paths = RunPaths(runs_dir.absolute(), study)
    all_paths = RunPaths(runs_dir.absolute(), study, absolute_location(checkpoints))
    check_directories(all_paths.study_directories, row, begun=repository.has_begun(study))
    if not dry_run:
        # The attempt of a process that was killed stays open in the database until it is released.
        repository.release_lost(study)
    model_at = row.definition.get("at", "end")

    def valued(keep: Keep) -> Retention:
        return retention(keep, model_at, row.objective, row.direction)

    collected: list[Garbage] = []
    for trial in repository.trials(study):
        directories = _directories(trial, paths, all_paths)
        if trial.state == "running" or not directories:
            continue
        finished = trial.state in ("complete", "pruned", "failed")
        retained = valued(keep if keep is not None and finished else rules)
        origin = Origin(study, row.identity, trial.number, row.seed)
        garbage = list(_garbage(trial, directories, retained, origin))
        present = {c.path: present_path(c, trial.number, all_paths) for c in trial.checkpoints}
        for item in garbage:
            if not dry_run:
                _delete(item)
            collected.append(item)
            notify(item)
        if not dry_run:
            for directory in directories:
                sweep_leftovers(directory)
            deleted = {item.path for item in garbage}
            # A machine without any of the trial's files cannot know that one was deleted.
            here = paths.trial(trial.number).is_dir()
            gone = [
                stored_path
                for stored_path, path in present.items()
                if path in deleted or (path is None and here)
            ]
            # After the files: a crash in between leaves rows without files, which the next call drops.
            repository.drop_checkpoints(study, trial.number, gone)
    return tuple(collected)


def _rules(definition: Any, study: str, keep: Keep | None) -> Keep:
    described = definition["keep"]
    if "when" in described:
        if keep is None:
            raise DefinitionError(
                f"study {study!r} selects its kept checkpoints with the function "
                f"{described['when']}, and the database does not contain the function's code; set "
                "the number of checkpoints to keep with --keep-last N"
            )
        return keep
    return Keep(**described)


def _directories(trial: TrialRecord, *below: RunPaths) -> dict[Location, int]:
    """Return the checkpoint directory of each attempt, with the attempt's number."""
    directories: dict[Location, int] = {}
    last = max((record.number for record in trial.attempts), default=0)
    for paths in below:
        for attempt in sorted(paths.trial(trial.number).glob("attempt-*")):
            order = attempt.name.removeprefix("attempt-")
            # A worker has just started a later one.
            if order.isdigit() and int(order) <= last:
                directories[paths.checkpoints(trial.number, int(order))] = int(order)
        if paths.checkpoints_root is not None:
            for record in trial.attempts:
                directories[paths.checkpoints(trial.number, record.number)] = record.number
    for checkpoint in trial.checkpoints:
        location = parse_location(checkpoint.path)
        attempt_name = location.parent.parent.name.removeprefix("attempt-")
        if isinstance(location, RemotePath) and attempt_name.isdigit():
            directories[location.parent] = int(attempt_name)
    return directories


def _remote_checkpoints(trial: TrialRecord, directories: Container[Location]) -> list[Location]:
    """Return the checkpoints in an object store that are in the database."""
    locations = (parse_location(checkpoint.path) for checkpoint in trial.checkpoints)
    return [p for p in locations if isinstance(p, RemotePath) and p.parent in directories]


def _garbage(
    trial: TrialRecord, directories: dict[Location, int], keep: Retention, origin: Origin
) -> Iterator[Garbage]:
    study = trial.study
    number = trial.number
    remote_checkpoints = _remote_checkpoints(trial, directories)
    listed = read_kept(directories, remote_checkpoints, origin=origin)
    current = [c for c in listed if directories[c.path.parent] > trial.ignore_checkpoints_through]
    # Checkpoints of an earlier definition are never resumed: the trial started again from scratch.
    history = [epoch.metrics for epoch in trial.epochs]
    unkept = [*keep.select(current, history), *(c for c in listed if c.good and c not in current)]
    for checkpoint in sorted(unkept, key=lambda c: (c.step, str(c.path))):
        yield Garbage(study, number, checkpoint.path, "retention", _size(checkpoint.path))
    for directory in directories:
        if isinstance(directory, RemotePath):
            for remote, sizes in listed_objects(directory).items():
                if MANIFEST_FILE not in sizes:
                    why: Reason = "damaged" if is_marked_corrupt_remote(sizes) else "unfinished"
                    yield Garbage(study, number, remote, why, sum(sizes.values()))
            continue
        for path in leftovers(directory):
            yield Garbage(study, number, path, "unfinished", _size(path))
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if is_marked_corrupt(path.name):
                yield Garbage(study, number, path, "damaged", _size(path))


def _delete(item: Garbage) -> None:
    if item.why == "retention" or (item.why == "damaged" and isinstance(item.path, RemotePath)):
        open_store(item.path.parent).delete(item.path)
    elif item.why == "damaged" and isinstance(item.path, Path):
        try:
            FileOperations().remove_tree(item.path)
        except OSError as error:
            raise CheckpointError(
                f"{item.path} cannot be deleted: {error}; remove it by hand"
            ) from error


def _size(path: Location) -> int:
    if isinstance(path, RemotePath):
        return read_manifest(path).content_bytes
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
