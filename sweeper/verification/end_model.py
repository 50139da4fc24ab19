"""The model as training left it: what a finished trial keeps of it against its replay's.

It is no checkpoint's state where `EarlyStopping` put weights back or averages took their place, so no
digest of a checkpoint vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sweeper.checkpoints.end import find_end, read_end, same_as
from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.checkpoints.reading import list_checkpoints, load_checkpoint
from sweeper.errors import CheckpointError
from sweeper.execution.protocol.messages import Finished
from sweeper.execution.replays import Replayed
from sweeper.paths import Location, RunPaths, end_model_beside
from sweeper.replay.comparison import compare_model
from sweeper.replay.findings import Difference
from sweeper.results import TrialRecord
from sweeper.verification.findings import Finding, Level
from sweeper.verification.kept import KeptCheckpoint


def compare_end_models(
    record: TrialRecord,
    kept: Sequence[KeptCheckpoint],
    replayed: Replayed,
    *,
    paths: RunPaths,
    replay: RunPaths,
    level: Level,
) -> list[Finding]:
    """What differs, while the replay's files are still on disk.

    Args:
        record: The finished trial.
        kept: Its checkpoints.
        replayed: What its replay came to; nothing is compared where that did not come to its end.
        paths: Where the trial's files are.
        replay: Where its replay's are.
        level: Of what the replay alone contradicts.
    """
    if record.state != "complete":
        return []
    own = [each.path for each in kept if each.path is not None]
    locations = [paths.end_model(record.number), *map(end_model_beside, reversed(own))]
    try:
        end = find_end(dict.fromkeys(locations))
    except CheckpointError as error:
        return [Finding("error", "file", str(error), file=str(locations[0]))]
    if end is None:
        message = "the trial keeps no model as training left it, so that was not compared"
        return [Finding("note", "checkpoint", message)]
    if not isinstance(replayed.end, Finished):
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
        message = "the replay keeps no model as training left it"
        return [Finding(level, "tensor", message, step=end.step, by_replay=True)]
    return list(_differences(ours, theirs, end.path, level))


def _model_of(end: LoadedCheckpoint, kept: Iterable[KeptCheckpoint]) -> LoadedCheckpoint | None:
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
) -> Iterator[Finding]:
    sides = ("in the kept model", "in the replay's")
    found = compare_model(ours.tensors, theirs.tensors, ours.state, sides)
    if found:
        shown = found[0].name
        tensors = sum(name.startswith("model/") for name in {*ours.tensors, *theirs.tensors})
        yield Finding(
            level,
            "tensor",
            f"the model as training left it: {first_that_differs(found, tensors)}",
            epoch=max(0, ours.epoch - 1),
            step=ours.step,
            file=str(where),
            variable=shown,
            by_replay=True,
        )


def first_that_differs(found: Sequence[Difference], tensors: int) -> str:
    """Return a phrase with the first of ``found``, and how many of ``tensors`` differ."""
    how = found[0].how.removeprefix("differs ")
    return (
        f"{found[0].name} is the first that differs ({how}); {len(found)} of {tensors} tensors do"
    )
