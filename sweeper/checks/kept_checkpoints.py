"""Comparison of a finished trial's kept checkpoints and model with its replay.

The model at the end is in no checkpoint if `EarlyStopping` restored weights or averages replaced
them, so it is compared separately.

Everything here only reads: a damaged checkpoint is not renamed, which a resuming trial would do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.checkpoint.end import find_end, read_end, same_as
from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    LoadedCheckpoint,
    Manifest,
    decode_values,
)
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.reading import list_checkpoints, load_checkpoint, read_manifest, read_state
from sweeper.checks.verify_findings import Level, VerifyFinding
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.records.results import CheckpointRecord, EpochRecord, TrialRecord
from sweeper.replay.comparison import compare_model, variable_names
from sweeper.replay.findings import Difference
from sweeper.run.compared_replays import Reference
from sweeper.run.protocol.messages import Finished
from sweeper.run.replays import Replayed
from sweeper.run.worker.checkpoints import listed_checkpoints, present_path
from sweeper.support.paths import Location, RemotePath, RunPaths, end_model_beside

_TENSOR = re.compile(r"tensor '([^']+)'")


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint of a finished trial.

    Attributes:
        recorded: The database's row; None for one that is only on disk.
        path: Its directory; None if it is not on this machine.
        manifest: Its manifest; None if that cannot be read.
        damage: Description of the damage, or None.
        damaged_file: The file that does not verify.
        damaged_variable: The variable or tensor in it that does not.
        epochs: The epochs in its history; empty if it is damaged.
        between_epochs: Whether it was taken between two epochs.
    """

    step: int
    epoch: int
    recorded: CheckpointRecord | None
    path: Location | None = None
    manifest: Manifest | None = None
    damage: str | None = None
    damaged_file: str | None = None
    damaged_variable: str | None = None
    epochs: tuple[EpochRecord, ...] = ()
    between_epochs: bool = True

    @property
    def last_epoch(self) -> int:
        """Return the last epoch with steps before it, from 0."""
        return max(0, self.epoch - 1) if self.between_epochs else self.epoch


def kept_checkpoints_of(trial: TrialRecord, paths: RunPaths) -> tuple[StoredCheckpoint, ...]:
    """Return every checkpoint of ``trial`` in the database or on this disk, read and verified.

    They are in order of their steps; of several at one step, each attempt's is included.
    Checkpoints in an object store are those in the database.
    """
    found: dict[Location, CheckpointRecord | None] = dict.fromkeys(listed_checkpoints(trial, paths))
    missing: list[StoredCheckpoint] = []
    for record in trial.checkpoints:
        path = present_path(record, trial.number, paths)
        if path is None:
            missing.append(StoredCheckpoint(record.step, record.epoch, record))
        else:
            found[path] = record
    kept = [_read(record, path) for path, record in found.items()]
    return tuple(sorted([*kept, *missing], key=lambda k: (k.step, k.epoch, str(k.path))))


def references(
    kept: Sequence[StoredCheckpoint], files: str
) -> dict[tuple[int, int], Reference | None]:
    """Return by position the checkpoints with which a replay's are compared.

    Args:
        kept: The trial's checkpoints.
        files: The trial's directory, for a checkpoint that does not name it.
    """
    return {
        (each.step, each.epoch): None
        if each.path is None or each.manifest is None
        else Reference(each.path, files, damaged=each.damage is not None)
        for each in kept
    }


def _read(record: CheckpointRecord | None, path: Location) -> StoredCheckpoint:
    step, epoch = (0, 0) if record is None else (record.step, record.epoch)
    if record is None:
        name = CheckpointName.parse(path.name)
        step = 0 if name is None else name.step
    try:
        loaded = load_checkpoint(path)
    except CorruptCheckpointError as error:
        return _damaged(record, path, step, epoch, str(error))
    except CheckpointError as error:
        if isinstance(path, RemotePath) and isinstance(error.__cause__, FileNotFoundError):
            return StoredCheckpoint(step, epoch, record)
        return StoredCheckpoint(step, epoch, record, path, damage=str(error))
    return StoredCheckpoint(
        step=loaded.step,
        epoch=loaded.epoch,
        recorded=record,
        path=path,
        manifest=read_manifest(path),
        epochs=_epochs(loaded),
        between_epochs=loaded.state["position"]["step_in_epoch"] == 0,
    )


def _epochs(loaded: LoadedCheckpoint) -> tuple[EpochRecord, ...]:
    saved: Sequence[Any] = loaded.state["history"]["epochs"]
    return tuple(EpochRecord(epoch, metrics) for epoch, metrics in saved)


def _damaged(
    record: CheckpointRecord | None, path: Location, step: int, epoch: int, damage: str
) -> StoredCheckpoint:
    manifest, names = None, {}
    try:
        manifest = read_manifest(path)
        names = variable_names(decode_values(read_state(path)))
    except (OSError, ValueError, AttributeError, TypeError, CheckpointError):
        # What is damaged may be just that; what could be read of it is enough.
        names = names or {}
    tensor = _TENSOR.search(damage)
    files = (str(path / name) for name in (TENSORS_FILE, STATE_FILE, MANIFEST_FILE))
    return StoredCheckpoint(
        step=step if manifest is None else manifest.step,
        epoch=epoch if manifest is None else manifest.epoch,
        recorded=record,
        path=path,
        manifest=manifest,
        damage=damage,
        damaged_file=next((file for file in files if file in damage), str(path)),
        damaged_variable=None if tensor is None else names.get(tensor[1], tensor[1]),
    )


def compare_end_models(
    record: TrialRecord,
    kept: Sequence[StoredCheckpoint],
    replayed: Replayed,
    *,
    paths: RunPaths,
    replay: RunPaths,
    level: Level,
) -> list[VerifyFinding]:
    """Return the differences between the models at the end of a trial and its replay.

    Args:
        record: The finished trial.
        kept: Its checkpoints.
        replayed: Result of the replay; nothing is compared if that did not reach its end.
        paths: Where the trial's files are.
        replay: The directories of the replay's files, which still exist.
        level: Level of findings that only the replay contradicts.
    """
    if record.state != "complete":
        return []
    own = [each.path for each in kept if each.path is not None]
    locations = [paths.end_model(record.number), *map(end_model_beside, reversed(own))]
    try:
        end = find_end(dict.fromkeys(locations))
    except CheckpointError as error:
        return [VerifyFinding("error", "file", str(error), file=str(locations[0]))]
    if end is None:
        message = "the trial has no stored model at the end, so that was not compared"
        return [VerifyFinding("note", "checkpoint", message)]
    if not isinstance(replayed.end, Finished) or replayed.end.outcome != "complete":
        return []
    ours = _model_of(end, kept)
    if ours is None:
        # What became of that checkpoint is a finding of its own.
        return []
    taken = [
        path
        for attempt in range(1, len(replayed.starts) + 1)
        for path in list_checkpoints(replay.checkpoints(record.number, attempt))
    ]
    theirs = read_end([replay.end_model(record.number)], taken)
    if theirs is None:
        message = "the replay has no model at the end"
        return [VerifyFinding(level, "tensor", message, step=end.step, by_replay=True)]
    return list(_differences(ours, theirs, end.path, level))


def _model_of(end: LoadedCheckpoint, kept: Iterable[StoredCheckpoint]) -> LoadedCheckpoint | None:
    same = same_as(end)
    if same is None:
        return end
    for each in kept:
        path, manifest = each.path, each.manifest
        if path is None or manifest is None or each.damage is not None:
            continue
        if (path.name, manifest.digest) == (same["name"], same["digest"]):
            return load_checkpoint(path)
    return None


def _differences(
    ours: LoadedCheckpoint, theirs: LoadedCheckpoint, where: Location, level: Level
) -> Iterator[VerifyFinding]:
    sides = ("in the kept model", "in the replay's")
    found = compare_model(ours.tensors, theirs.tensors, ours.state, sides)
    if found:
        shown = found[0].name
        tensors = sum(name.startswith("model/") for name in {*ours.tensors, *theirs.tensors})
        yield VerifyFinding(
            level,
            "tensor",
            f"the model at the end: {first_difference(found, tensors)}",
            epoch=max(0, ours.epoch - 1),
            step=ours.step,
            file=str(where),
            variable=shown,
            by_replay=True,
        )


def first_difference(found: Sequence[Difference], tensors: int) -> str:
    """Return a phrase with the first of ``found``, and how many of ``tensors`` differ."""
    how = found[0].how.removeprefix("differs ")
    return (
        f"{found[0].name} is the first that differs ({how}); {len(found)} of {tensors} tensors do"
    )
