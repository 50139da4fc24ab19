"""Estimates of a study's time and disk, from a shortened trial.

They are upper bounds: a trial that stops early takes less time, and retention rules with a metric may
keep fewer checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sweeper.definition.definition import StudySettings
from sweeper.replay.reports import Estimate
from sweeper.run.replays import Replayed


def estimate(settings: StudySettings, trained: Replayed, *, workers: int) -> Estimate | None:
    """Return estimates of the study's time and disk; None if no epoch ended.

    Args:
        settings: The study's settings.
        trained: Report of a shortened trial.
        workers: Trials side by side.
    """
    process, lengths = trained.processes[0], trained.lengths
    if not process.epoch_seconds or process.started_after is None or lengths is None:
        return None
    # TensorFlow traces the steps of the first epoch.
    seconds = process.epoch_seconds[1:] or process.epoch_seconds
    epoch = trial = study = None
    if lengths.steps is not None:
        times = max(1.0, lengths.steps / max(1, trained.steps_per_epoch))
        if lengths.validation_steps:
            times = max(times, lengths.validation_batches / lengths.validation_steps)
        epoch = times * sum(seconds) / len(seconds)
        trial = process.started_after + settings.epochs * epoch
        study = trial * math.ceil(settings.trials / workers)
    kept = checkpoints_kept(settings, lengths.steps, trial)
    return Estimate(
        steps_per_epoch=lengths.steps,
        epoch_seconds=epoch,
        startup_seconds=process.started_after,
        trial_seconds=trial,
        study_seconds=study,
        workers=workers,
        checkpoint_bytes=process.bytes,
        checkpoints_kept=kept,
        disk_bytes=process.bytes * kept * settings.trials,
    )


def checkpoints_kept(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> int:
    """Return the maximum number of checkpoints that a finished trial keeps."""
    taken = _taken(settings, steps_per_epoch, trial_seconds)
    keep: Mapping[str, Any] = settings.keep
    if keep.get("when") is not None:
        wanted: float = math.inf
    else:
        wanted = keep.get("last", 1) + keep.get("best", 0)
        if keep.get("every_epochs") is not None:
            wanted += settings.epochs // keep["every_epochs"]
        if keep.get("every_hours") is not None:
            wanted += (trial_seconds or 0.0) // (3600 * keep["every_hours"])
    most = min(wanted, taken, keep.get("at_most") or math.inf)
    return 1 if math.isinf(most) else max(1, int(most))


def _taken(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> float:
    every = settings.checkpoint_every
    if every == "epoch":
        return settings.epochs
    if not isinstance(every, Mapping):
        return math.inf
    counts = [1.0]
    if every.get("epochs") is not None:
        counts.append(math.ceil(settings.epochs / every["epochs"]))
    if every.get("steps") is not None and steps_per_epoch is not None:
        counts.append(math.ceil(settings.epochs * steps_per_epoch / every["steps"]))
    if every.get("seconds") is not None and trial_seconds is not None:
        counts.append(math.ceil(trial_seconds / every["seconds"]))
    return sum(counts)
