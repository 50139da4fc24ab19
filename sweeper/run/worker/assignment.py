"""Assignment of a trial's process: its part of the study's settings, and the paths of its files."""

from __future__ import annotations

from sweeper.definition.definition import StudySettings
from sweeper.run.protocol.messages import Assignment
from sweeper.spec.budgets import rung_schedule
from sweeper.support.paths import RunPaths


def assignment_of(
    settings: StudySettings,
    paths: RunPaths,
    number: int,
    attempt: int,
    *,
    anew_after: int = 0,
    epochs: int | None = None,
    pruning: bool = True,
) -> Assignment:
    """Return the assignment of an attempt; callers set its other fields by `dataclasses.replace`.

    Args:
        settings: The study's settings.
        paths: Paths of the study's files.
        number: The trial's number.
        attempt: The attempt's number.
        anew_after: Number of the last attempt whose checkpoints are not resumed; 0 for none.
        epochs: The trial's number of epochs if it was extended; None for the study's.
        pruning: Whether a pruner may end the trial; an extended trial is not pruned again.
    """
    schedule = rung_schedule(settings.budget, settings.epochs)
    return Assignment(
        study=settings.name,
        number=number,
        attempt=attempt,
        seed=settings.seed,
        epochs=epochs or settings.epochs,
        objective=settings.objective,
        at=settings.at,
        direction=settings.direction,
        further_objectives=tuple(o.name for o in settings.further_objectives),
        pruning=pruning and settings.pruner is not None,
        rungs=() if schedule is None else schedule.rungs,
        deterministic=settings.deterministic,
        threads=settings.threads,
        repeats=settings.repeats,
        confirmed=settings.numbering.confirmed,
        checkpoint_every=settings.checkpoint_every,
        warm_start="" if settings.warm_start is None else str(settings.warm_start["digest"]),
        files=str(paths.trial_files(number)),
        log=str(paths.log(number, attempt)),
        end=str(paths.end_model(number)),
        checkpoints=tuple(
            str(paths.checkpoints(number, n)) for n in range(anew_after + 1, attempt + 1)
        ),
    )
