"""What the whole study will take, from the few steps that a check has measured.

Upper bounds where the study itself decides: a trial that stops early takes less time, and rules of
retention that ask for a metric may keep less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sweeper.definition import StudySettings
from sweeper.replay.check_report import Estimate
from sweeper.replay.reports import Lengths, RehearsalReport, Timed


def estimate(
    settings: StudySettings,
    report: RehearsalReport,
    *,
    workers: int,
    startup_seconds: float,
    checkpoint_bytes: int,
) -> Estimate | None:
    """The study's time, memory and disk; None where no step was timed.

    Args:
        settings: The study's.
        report: Of a rehearsal.
        workers: Trials side by side.
        startup_seconds: From a trial's launch to its first step.
        checkpoint_bytes: Of one checkpoint.
    """
    timed, lengths = report.timed, report.lengths
    if timed is None or lengths is None:
        return None
    step = timed.seconds / max(1, timed.steps)
    if report.listening:
        # Callbacks that listen to every batch end the blocks of steps, and take time themselves.
        step = max(step, report.follow_seconds / max(1, report.end))
    validation = _validation_seconds(timed, lengths)
    steps = lengths.steps
    trial = study = None
    if steps is not None:
        trial = startup_seconds + settings.epochs * steps * step
        trial += report.validations * validation
        study = trial * math.ceil(settings.trials / workers)
    kept = checkpoints_kept(settings, steps, trial)
    return Estimate(
        steps_per_epoch=steps,
        seconds_per_step=step,
        validation_seconds=validation,
        startup_seconds=startup_seconds,
        trial_seconds=trial,
        study_seconds=study,
        workers=workers,
        trial_bytes=timed.memory,
        memory_bytes=timed.memory * min(workers, settings.trials),
        checkpoint_bytes=checkpoint_bytes,
        checkpoints_kept=kept,
        disk_bytes=checkpoint_bytes * kept * settings.trials,
    )


def checkpoints_kept(
    settings: StudySettings, steps_per_epoch: int | None, trial_seconds: float | None
) -> int:
    """How many checkpoints of one finished trial stay on disk, at most."""
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


def _validation_seconds(timed: Timed, lengths: Lengths) -> float:
    ran, seconds = timed.validation_batches, timed.validation_seconds
    if not ran or not lengths.validation_batches:
        return seconds
    return seconds * max(1.0, lengths.validation_batches / ran)
