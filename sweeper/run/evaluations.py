"""Supervisor of one trial's evaluation, without a database.

The trial's process is a real one over the real channel. Its directory is a temporary one, and what
it measures is handed on checkpoint by checkpoint, so that what is known stays known however it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, StudyImportError, UsageError
from sweeper.records.ancestry import ParentRecord
from sweeper.run.launch.trial_process import (
    ExitStatus,
    Launcher,
    Stopping,
    WithoutDatabase,
    converse,
)
from sweeper.run.protocol.messages import (
    CheckpointEvaluated,
    CheckpointPassedOver,
    Evaluated,
    Evaluation,
    Failed,
    Message,
    Preparing,
    Suggest,
    Warned,
)
from sweeper.run.replays import Answers
from sweeper.run.worker.assignment import assignment_of
from sweeper.spec.space import CategoricalChoice
from sweeper.support.paths import RunPaths


@dataclass(frozen=True)
class EvaluationOrder:
    """Order to evaluate a trial's checkpoints.

    Attributes:
        seen: Called with each checkpoint that was measured, as soon as it was.
        passed_over: Called with each that could not be.
        notice: Called with what the user should know.
        when_stopped: What is said where it is stopped on request.
        parent: Of a branch: what it began from, and so whose seed it has.
    """

    settings: StudySettings
    number: int
    answers: Answers
    evaluation: Evaluation
    seen: Callable[[CheckpointEvaluated], None]
    passed_over: Callable[[CheckpointPassedOver], None]
    notice: Callable[[str], None]
    when_stopped: str
    parent: ParentRecord | None = None


def evaluate_trial(
    order: EvaluationOrder, launcher: Launcher, directory: Path, stopping: Stopping
) -> str | None:
    """Measure one trial's checkpoints in a separate process.

    Args:
        order: What to measure.
        launcher: Starts the process.
        directory: An empty one, for this evaluation alone.
        stopping: Ends it when it is set.

    Returns:
        Why it ended before all were measured or passed over, for this trial alone; None where it
        did not.

    Raises:
        Interrupted: ``stopping`` was set.
        UsageError: There are no such data, for any trial.
        StudyImportError: The file of the data raised.
        ExecutionError: The process could not be started, or sent what no evaluation sends.
    """
    paths = RunPaths(directory, order.settings.name)
    paths.attempt(order.number, 1).mkdir(parents=True)
    assignment = replace(
        assignment_of(order.settings, paths, order.number, 1, parent=order.parent),
        pruning=False,
        evaluation=order.evaluation,
    )
    supervisor = _Supervisor(stopping, order.when_stopped, order)
    return supervisor.conclude(converse(launcher, assignment, supervisor))


@dataclass
class _Supervisor(WithoutDatabase):
    order: EvaluationOrder
    end: Evaluated | Failed | None = None

    def value_of(self, question: Suggest) -> CategoricalChoice:
        return self.order.answers.to(question.name, question.distribution)

    def receive(self, message: Message) -> None:
        match message:
            case CheckpointEvaluated():
                self.order.seen(message)
            case CheckpointPassedOver():
                self.order.passed_over(message)
            case Warned():
                self.order.notice(f"evaluation of trial {self.order.number}: {message.message}")
            case Preparing():
                pass
            case Evaluated() | Failed():
                self.end = message
            case _:
                msg = f"the evaluation of trial {self.order.number} sent {message!r}"
                raise ExecutionError(msg)

    def conclude(self, status: ExitStatus) -> str | None:
        """Return the reason for which the evaluation did not finish, or None."""
        end = self.end
        if end is None:
            return f"its process {status.describe()}"
        if isinstance(end, Failed):
            return end.error
        if end.refused is not None and end.traceback:
            raise StudyImportError(end.refused, end.traceback)
        if end.refused is not None:
            raise UsageError(end.refused)
        return None
