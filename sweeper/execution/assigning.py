"""What a trial's process is told first: its part of the study's settings, and where its files go."""

from __future__ import annotations

from sweeper.definition import StudySettings
from sweeper.execution.channel import Assignment
from sweeper.paths import RunPaths

__all__ = ["assignment_of"]


def assignment_of(
    settings: StudySettings, paths: RunPaths, number: int, attempt: int, *, anew_after: int = 0
) -> Assignment:
    """Return what any attempt at trial ``number`` is told; `dataclasses.replace` adds the rest.

    Of attempts up to ``anew_after`` no checkpoint is gone on with.
    """
    return Assignment(
        study=settings.name,
        number=number,
        attempt=attempt,
        seed=settings.seed,
        epochs=settings.epochs,
        objective=settings.objective,
        further_objectives=tuple(o.name for o in settings.further_objectives),
        pruning=settings.pruner is not None,
        deterministic=settings.deterministic,
        threads=settings.threads,
        checkpoint_every=settings.checkpoint_every,
        files=str(paths.trial_files(number)),
        log=str(paths.log(number, attempt)),
        checkpoints=tuple(
            str(paths.checkpoints(number, n)) for n in range(anew_after + 1, attempt + 1)
        ),
    )
