"""Beginning of a branch: the parent's checkpoint, and the part of it that changed parameters leave in use.

To find what the changed parameters change, the training is also built with the parent's parameters. A
process that is forked before TensorFlow has run does that, so that the branch's own process begins like
any other trial's, whether it starts or resumes. The second build is skipped if no parameter was changed
or the branch already has a checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
from tensorflow.python.eager import context

from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.reading import list_checkpoints, load_newest
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, ParameterError, RestoreError
from sweeper.run.protocol.messages import Assignment, BranchStart
from sweeper.run.signals import signals_to_stop
from sweeper.run.trial.parts import make_plan, seeds_of
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.paths import Location, parse_location
from sweeper.support.processes import die_with_parent
from sweeper.train.branching import BranchReport, Initial, merged
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import TrainingPlan


@dataclass(frozen=True)
class Beginning:
    """Beginning of a branch that has no checkpoint of its own.

    Attributes:
        start: The parent's checkpoint.
        parent: Initial state of a build with the parent's parameters; None if none was changed.
    """

    start: BranchStart
    parent: Initial | None

    @classmethod
    def of(cls, definition: StudyDefinition, assignment: Assignment) -> Beginning | None:
        """Return the beginning of an unbuilt trial; None if it is no branch or has its own checkpoint.

        Raises:
            ParameterError: The training cannot be built with the parent's parameters.
        """
        start = assignment.branch
        if start is None or not start.directories:
            return None
        own = [parse_location(directory) for directory in assignment.checkpoints]
        if assignment.known or any(_has_checkpoints(directory) for directory in own):
            return None
        return cls(start, _built_apart(definition, assignment, start) if start.changed else None)

    def load(self, notice: Callable[[str], None], origin: Origin | None) -> LoadedCheckpoint:
        """Read the parent's checkpoint.

        ``notice`` receives the reason if a checkpoint is damaged. The parent's origin differs from the
        branch's ``origin`` only in number and parameters.

        Raises:
            CheckpointError: The checkpoint is missing or damaged, or has another digest.
        """
        start = self.start
        of_parent = None
        if origin is not None:
            of_parent = replace(origin, trial=start.parent, parameters=dict(start.params))
        for directory in map(parse_location, start.directories):
            loaded = load_newest([directory], notice, origin=of_parent)
            if loaded is not None and (loaded.step, loaded.digest) == (start.step, start.digest):
                return loaded
        msg = (
            f"the checkpoint of step {start.step} of trial {start.parent}, with the digest "
            f"{start.digest}, is in none of {', '.join(start.directories)}; restore it, or remove "
            "this branch's study and branch again"
        )
        raise CheckpointError(msg)

    def merged(
        self, loaded: LoadedCheckpoint, loop: TrainingLoop, own: Initial | None
    ) -> tuple[LoadedCheckpoint, BranchReport]:
        """Return the checkpoint from which the branch continues.

        ``own`` is the branch's own initial state, or None if no parameter was changed.

        Raises:
            ParameterError: The checkpoint does not fit; each variable is named with both shapes.
        """
        pair = None if self.parent is None or own is None else (self.parent, own)
        misfits = [*loop._state.misfits(loaded), *_other_batches(loaded, loop)]
        if misfits:
            raise self.refused(misfits)
        return merged(loaded, loop._state.components, pair)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Context manager that explains a `RestoreError` by the changed parameters."""
        try:
            yield
        except RestoreError as error:
            raise self.refused(str(error).splitlines()[1:-1]) from error

    def refused(self, misfits: Sequence[str]) -> ParameterError:
        """Return the error of a checkpoint that does not fit the model with the changed parameters."""
        start, shown = self.start, "\n  ".join(misfits)
        names = ", ".join(f"{name}={value!r}" for name, value in start.changed.items())
        return ParameterError(
            f"with {names or 'no changed parameter'} the model does not fit the checkpoint of "
            f"step {start.step} of trial {start.parent} (nothing was taken from it):\n  "
            f"{shown}\nChange only parameters that do not affect shapes, or run this as a new "
            "trial"
        )


def _has_checkpoints(directory: Location) -> bool:
    try:
        return bool(list_checkpoints(directory))
    except OSError:
        return False


def _other_batches(loaded: LoadedCheckpoint, loop: TrainingLoop) -> list[str]:
    """Return the misfit of a checkpoint within an epoch if the branch's epochs have another length."""
    position = loaded.state["position"]
    inside, epoch = position["step_in_epoch"], position["epoch"]
    steps = loop._steps
    if not inside or not epoch or steps is None:
        return []
    before = (position["step"] - inside) // epoch
    if before == steps:
        return []
    msg = (
        f"an epoch has {steps} steps, and had {before}: begin at the end of one (--epoch), since step "
        f"{position['step']} is in the middle"
    )
    return [msg]


def _built_apart(
    definition: StudyDefinition, assignment: Assignment, start: BranchStart
) -> Initial:
    """Return the initial state of a build with the parent's parameters, from a forked process."""
    if not hasattr(os, "fork") or context.context()._context_handle is not None:
        # A process that has run TensorFlow, such as one with inline trials, cannot be forked.
        try:
            return Initial.from_json(_initial_of_parent(definition, assignment, start).to_json())
        finally:
            keras.backend.clear_session(free_memory=False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _report_and_exit(writing, lambda: _initial_of_parent(definition, assignment, start))
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text.startswith("{"):
        msg = (
            f"the training could not be built with the parameters of trial {start.parent}, which "
            f"this branch begins from: {text.strip() or 'its process died'}"
        )
        raise ParameterError(msg)
    return Initial.from_json(json.loads(text))


def _report_and_exit(writing: int, build: Callable[[], Initial]) -> None:
    """Build in the forked process, write the state, and exit without clean-up."""
    try:
        die_with_parent()
        for number in signals_to_stop():
            signal.signal(number, signal.SIG_DFL)
        try:
            text = json.dumps(build().to_json())
        except BaseException as error:
            traceback.print_exc()
            text = f"error: {type(error).__name__}: {error}"
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(text)
    finally:
        os._exit(0)


def _initial_of_parent(
    definition: StudyDefinition, assignment: Assignment, start: BranchStart
) -> Initial:
    def ask(name: str, _distribution: Distribution) -> CategoricalChoice:
        if name not in start.params:
            msg = f"it asks for parameter {name!r}, which trial {start.parent} does not have"
            raise ParameterError(msg)
        value: CategoricalChoice = start.params[name]
        return value

    seeds = seeds_of(assignment)
    trial = Trial(
        number=assignment.number, seed=seeds.root, directory=Path(assignment.files), ask=ask
    )
    with contextlib.suppress(RuntimeError, ValueError):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
    bare = copy.copy(definition)
    object.__setattr__(bare, "strategy", None)
    plan: TrainingPlan = make_plan(bare, assignment, trial, seeds)
    return Initial.of(plan)


def own_initial(beginning: Beginning | None, plan: TrainingPlan) -> Initial | None:
    """Return the initial state of the branch itself, if it has to be compared."""
    return None if beginning is None or beginning.parent is None else Initial.of(plan)


def branch_surroundings(report: BranchReport, start: BranchStart) -> dict[str, object]:
    """Return the branch's report for the attempt's surroundings, and print it to the trial's log."""
    print(report.text(start.parent, start.step), flush=True)  # noqa: T201 - the trial's log
    return {"branch_report": report.to_json()}
