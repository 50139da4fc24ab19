"""Freeing disk: what of a study's checkpoints its own retention rules no longer keep.

A worker applies the rules as it writes; what remains for here is what crashes left behind: the
checkpoints of earlier attempts, half-written and half-deleted directories, and copies that did not
verify. Running trials are left alone. Afterwards the database lists what is on disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sweeper.checkpoints.names import is_set_aside
from sweeper.checkpoints.policy import Keep, parse_keep
from sweeper.checkpoints.reading import read_kept, read_manifest
from sweeper.checkpoints.store import CheckpointStore, leftovers, sweep_leftovers
from sweeper.errors import CheckpointError, DefinitionError
from sweeper.paths import RunPaths
from sweeper.results import CheckpointRecord, TrialRecord
from sweeper.storage.repository import FoundCheckpoint, Repository

__all__ = ["Garbage", "collect"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that can go.

    Attributes:
        why: ``"retention"``: a whole checkpoint that no rule keeps. ``"unfinished"``: left by a
            process that died. ``"damaged"``: set aside because it did not verify.
        bytes: Its size on disk.
    """

    study: str
    trial: int
    path: Path
    why: Literal["retention", "unfinished", "damaged"]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "trial": self.trial,
            "path": str(self.path),
            "why": self.why,
            "bytes": self.bytes,
        }


def collect(
    repository: Repository,
    study: str,
    runs_dir: Path,
    *,
    keep: Keep | None = None,
    dry_run: bool = False,
) -> tuple[Garbage, ...]:
    """Find, and unless ``dry_run`` delete, what a study no longer needs on this machine's disk.

    Args:
        repository: The database of the study.
        study: Its name.
        runs_dir: Where its files are.
        keep: Rules for finished trials instead of the study's own; unfinished trials always keep
            what the study's rules keep.
        dry_run: Only tell.

    Returns:
        What went, or would go.

    Raises:
        UnknownStudyError: There is no such study.
        DefinitionError: The study's rules have a predicate, which only its code knows.
        CheckpointError: Something cannot be deleted.
    """
    rules = _rules(repository.study(study).definition, study, keep)
    paths = RunPaths(runs_dir.absolute(), study)
    found: list[Garbage] = []
    for trial in repository.trials(study):
        if trial.state == "running" or not paths.trial(trial.number).is_dir():
            continue
        finished = trial.state in ("complete", "pruned", "failed")
        chosen = keep if keep is not None and finished else rules
        directories = _directories(paths, trial.number)
        garbage = list(_garbage(trial, directories, chosen))
        found += garbage
        if not dry_run:
            _delete(garbage, directories)
            repository.match_checkpoints(study, trial.number, _on_disk(directories))
    return tuple(found)


def _rules(definition: Any, study: str, keep: Keep | None) -> Keep:
    described = definition["keep"]
    if "when" in described:
        if keep is None:
            msg = (
                f"study {study!r} keeps checkpoints by the predicate {described['when']}, which "
                "the database has no code of; say what to keep with --keep-last N"
            )
            raise DefinitionError(msg)
        return keep
    return parse_keep(described)


def _directories(paths: RunPaths, number: int) -> dict[int, Path]:
    """Each attempt's directory of checkpoints, by the attempt's number."""
    found = {}
    for attempt in sorted(paths.trial(number).glob("attempt-*")):
        order = attempt.name.removeprefix("attempt-")
        if order.isdigit():
            found[int(order)] = paths.checkpoints(number, int(order))
    return found


def _garbage(trial: TrialRecord, directories: dict[int, Path], keep: Keep) -> Iterator[Garbage]:
    study, number = trial.study, trial.number
    unkept = keep.select(read_kept(directories.values()))
    for checkpoint in sorted(unkept, key=lambda c: (c.step, c.path)):
        yield Garbage(study, number, checkpoint.path, "retention", _size(checkpoint.path))
    for directory in directories.values():
        for path in leftovers(directory):
            yield Garbage(study, number, path, "unfinished", _size(path))
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if is_set_aside(path.name):
                yield Garbage(study, number, path, "damaged", _size(path))


def _delete(garbage: Sequence[Garbage], directories: dict[int, Path]) -> None:
    for item in garbage:
        if item.why == "retention":
            CheckpointStore(item.path.parent).delete(item.path)
        elif item.why == "damaged":
            try:
                shutil.rmtree(item.path)
            except OSError as error:
                msg = f"{item.path} cannot be deleted: {error}; remove it by hand"
                raise CheckpointError(msg) from error
    for directory in directories.values():
        sweep_leftovers(directory)


def _on_disk(directories: dict[int, Path]) -> list[FoundCheckpoint]:
    found = []
    for attempt, directory in directories.items():
        for kept in read_kept([directory]):
            if not kept.good:
                continue
            manifest = read_manifest(kept.path)
            record = CheckpointRecord(
                manifest.step, manifest.epoch, manifest.digest, _size(kept.path), str(kept.path)
            )
            found.append(FoundCheckpoint(attempt, record))
    return found


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
