"""What a trial is made of: the `Trial` that its factories receive, and the plan that they make.

The factories run in a fixed order, each from a seed of its own, so that one which draws another
random number changes nothing for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sweeper.definition import StudyDefinition
from sweeper.errors import CheckpointError
from sweeper.execution.protocol.channel import Link
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.trial.strategies import check_made_in, strategy_scope
from sweeper.independence.factories import (
    build_callbacks,
    build_data,
    build_model,
    build_step,
)
from sweeper.independence.guard import Earlier, Guard
from sweeper.independence.naming import name_of
from sweeper.training.loop.plan import TrainingPlan
from sweeper.training.loop.reported import check_rungs
from sweeper.training.randomness.fresh_entropy import FreshEntropy
from sweeper.training.randomness.seeds import TrialSeeds, seed_everything
from sweeper.training.warmstart.options import pinned, warm_start_of
from sweeper.trial import Trial


def seeds_of(assignment: Assignment) -> TrialSeeds:
    """The trial's seeds: of a branch its first ancestor's."""
    branch = assignment.branch
    return TrialSeeds(assignment.seed, assignment.number if branch is None else branch.seeded_as)


def make_trial(assignment: Assignment, seeds: TrialSeeds, link: Link) -> Trial:
    """The trial as its factories see it; its directory is there.

    Raises:
        CheckpointError: The directory cannot be made.
    """
    directory = Path(assignment.files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the trial's directory {directory} cannot be made: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error

    return Trial(number=assignment.number, seed=seeds.root, directory=directory, ask=link.suggest)


def make_plan(
    definition: StudyDefinition,
    assignment: Assignment,
    trial: Trial,
    seeds: TrialSeeds,
    *,
    warn: Callable[[str], None] = lambda _message: None,
    tell: Callable[[str], None] = lambda _stage: None,
    earlier: Earlier | None = None,
) -> TrainingPlan:
    """Run the factories, each result under guard.

    Args:
        definition: The study's.
        assignment: The trial.
        trial: What the factories are given.
        seeds: The trial's.
        warn: Called with what the user should know.
        tell: Called with what is done next, before each part that may take long.
        earlier: What earlier trials of this process own.

    Raises:
        SweeperError: A factory returned what it may not.
        Exception: Whatever a factory raises.
    """
    factories = definition.makers()
    with (
        Guard(trial=assignment.number, warn=warn, earlier=earlier, factories=factories) as guard,
        strategy_scope(definition.strategy, trial, seeds) as strategy,
    ):
        tell("building the model")
        model = build_model(definition.model, trial, seeds, guard)
        check_made_in(strategy, model, name_of(definition.model))
        step = build_step(definition.step, model, trial, seeds, guard)
        tell("making the data")
        data = build_data(definition.data, trial, seeds, guard)
        check_rungs(assignment.rungs, assignment.objective, data)
        callbacks = build_callbacks(definition.callbacks, trial, seeds, guard)
        guard.check("tracked", trial.tracked)
        seed_everything(seeds.child("warm_start"))
        with FreshEntropy(seeds.sequence("warm_start"), "warm_start"):
            warm_start = warm_start_of(definition.warm_start, trial)
    return TrainingPlan(
        directory=assignment.files,
        model=model,
        data=data,
        callbacks=tuple(callbacks),
        epochs=assignment.epochs,
        objective=assignment.objective,
        further_objectives=assignment.further_objectives,
        order_seed=seeds.sequence("order"),
        tracked=trial.tracked,
        output_only=trial.output,
        step=step,
        warm_start=pinned(warm_start, assignment.warm_start),
        pause_after=assignment.pause_after,
        nonfinite=definition.nonfinite,
    )
