"""Assignment of a trial's process: its part of the study's settings, and the paths of its files."""

from __future__ import annotations

from sweeper.db.repository import Claim
from sweeper.definition.definition import StudySettings
from sweeper.records.ancestry import ParentRecord
from sweeper.run.protocol.messages import Assignment, BranchStart
from sweeper.spec.budgets import first_epochs, rung_schedule
from sweeper.support.paths import RunPaths


def assignment_for(claim: Claim, settings: StudySettings, paths: RunPaths) -> Assignment:
    """Return the assignment of a claimed attempt."""
    return assignment_of(
        settings,
        paths,
        claim.number,
        claim.attempt,
        anew_after=claim.anew_after,
        epochs=claim.epochs,
        pruning=not claim.extended,
        parent=claim.parent,
    )


def assignment_of(
    settings: StudySettings,
    paths: RunPaths,
    number: int,
    attempt: int,
    *,
    anew_after: int = 0,
    epochs: int | None = None,
    pruning: bool = True,
    parent: ParentRecord | None = None,
) -> Assignment:
    """Return the assignment of an attempt at trial ``number``; callers add the rest by `dataclasses.replace`.

    Of attempts up to ``anew_after`` no checkpoint is gone on with. ``epochs`` is the trial's own
    number of them, where it was extended; a trial that was is not pruned again (``pruning``). A trial
    with a ``parent`` begins at a checkpoint of that one, and no pruner is asked about it.
    """
    of_parent = None if parent is None else parent.epochs
    schedule = rung_schedule(settings.budget, settings.epochs)
    return Assignment(
        study=settings.name,
        number=number,
        attempt=attempt,
        seed=settings.seed,
        epochs=epochs or of_parent or first_epochs(settings.budget, settings.epochs),
        objective=settings.objective,
        at=settings.at,
        direction=settings.direction,
        further_objectives=tuple(o.name for o in settings.further_objectives),
        pruning=pruning and settings.pruner is not None and parent is None,
        rungs=() if schedule is None or parent is not None else schedule.rungs,
        deterministic=settings.deterministic,
        threads=settings.threads,
        checkpoint_every=settings.checkpoint_every,
        warm_start="" if settings.warm_start is None else str(settings.warm_start["digest"]),
        files=str(paths.trial_files(number)),
        log=str(paths.log(number, attempt)),
        end=str(paths.end_model(number)),
        checkpoints=tuple(
            str(paths.checkpoints(number, n)) for n in range(anew_after + 1, attempt + 1)
        ),
        branch=None if parent is None else _branch_start(parent, paths, number),
    )


def _branch_start(parent: ParentRecord, paths: RunPaths, number: int) -> BranchStart:
    """Return where a branch begins: a copy beside its own files, or the end of a population's member."""
    here = (paths, RunPaths(paths.root, paths.study))
    starts = [each.branch_start(number) for each in here]
    for attempt in range(parent.attempts, 0, -1):
        starts += [each.checkpoints(parent.number, attempt) for each in here]
    return BranchStart(
        parent=parent.number,
        seeded_as=parent.seeded_as,
        step=parent.step,
        digest=parent.digest,
        directories=tuple(dict.fromkeys(map(str, starts))),
        params=dict(parent.params),
        changed=dict(parent.changed),
    )
