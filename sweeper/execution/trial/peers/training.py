"""The training of another process of a trial: the factories and the loop, and nothing that is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.checkpoints.values import relocated
from sweeper.definition import StudyDefinition
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.protocol.peers import PeerDone
from sweeper.execution.trial.end_model import end_snapshot
from sweeper.execution.trial.parts import make_plan, make_trial, seeds_of
from sweeper.execution.trial.peers.following import Following
from sweeper.execution.trial.peers.observing import FollowingObserver
from sweeper.execution.trial.peers.states import state_of
from sweeper.execution.trial.redirecting import redirect_files
from sweeper.results import EpochRecord
from sweeper.training.loop.loop import TrainingLoop
from sweeper.training.loop.plan import Stopped
from sweeper.training.randomness.seeds import seed_everything
from sweeper.training.replicas.lockstep import Lockstep

Judge = Callable[[Sequence[EpochRecord]], bool]


def agreed_judge(judge: Judge | None, lockstep: Lockstep) -> Judge | None:
    """``judge``, in a training of several processes: what the first process got for an answer."""
    if judge is None:
        return None

    def agreed(epochs: Sequence[EpochRecord]) -> bool:
        return bool(lockstep.agree("whether it is pruned", len(epochs), judge(epochs)))

    return agreed


def keeps_end(lockstep: Lockstep, step: int, *, keeps: bool) -> bool:
    """Whether the model is kept as training left it, which all processes must take part in."""
    return bool(lockstep.agree("the model at the end", step, keeps))


def follow_trial(definition: StudyDefinition, assignment: Assignment, following: Following) -> None:
    """Build, resume and train as the first process does; the last message is `PeerDone`.

    Raises:
        SweeperError: The trial cannot be built or trained here.
        Exception: Whatever the user's code raises.
    """
    link = following.link
    seeds = seeds_of(assignment)
    trial = make_trial(assignment, seeds, link)
    plan = make_plan(definition, assignment, trial, seeds, task=following.task)
    judge = (lambda _epochs: False) if assignment.pruning else None
    plan = replace(plan, lockstep=link, judge=agreed_judge(judge, link))
    redirect_files(plan.callbacks, Path(assignment.files))
    seed_everything(seeds.child("training"))
    loaded = following.loaded()
    if loaded is not None:
        loaded = state_of(loaded, following.task.index, following.task.processes)
        if loaded.origin is not None:
            # The first process's directory is where this one's lies.
            state = relocated(loaded.state, loaded.origin.directory, str(trial.directory.parent))
            loaded = replace(loaded, state=state)
    loop = TrainingLoop(plan, FollowingObserver(link, following.give), _unsaid)
    try:
        end = loop.run(loaded)
    except Stopped:
        link.agree("the end", loop.position.step, 0)
        link.send(PeerDone())
        return
    if not loop.pruned and keeps_end(link, end.step, keeps=False):
        following.give(end_snapshot(plan.model, end.step, end.epoch)[0])
    link.agree("the end", end.step, 0)
    link.send(PeerDone())


def _unsaid(_message: str) -> None:
    """The first process says the same."""
