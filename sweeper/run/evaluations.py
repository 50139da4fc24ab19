"""Supervisor of the process that evaluates one trial's checkpoints, without a database.

The process is an ordinary trial process in a temporary directory. Each checkpoint's result is passed on
at once, so that it is kept even if the process fails later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, StudyImportError, UsageError
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
        seen: Receives each evaluated checkpoint at once.
        passed_over: Receives each checkpoint that could not be evaluated.
        notice: Receives warnings to the user.
        when_stopped: Message of the error if the evaluation is stopped on request.
    """

    settings: StudySettings
    number: int
    answers: Answers
    evaluation: Evaluation
    seen: Callable[[CheckpointEvaluated], None]
    passed_over: Callable[[CheckpointPassedOver], None]
    notice: Callable[[str], None]
    when_stopped: str


def evaluate_trial(
    order: EvaluationOrder, launcher: Launcher, directory: Path, stopping: Stopping
) -> str | None:
    """Evaluate one trial's checkpoints in a separate process.

    ``directory`` must be empty. The evaluation ends when ``stopping`` is set.

    Returns:
        The reason for which this trial's evaluation is incomplete; None if it is complete.

    Raises:
        Interrupted: ``stopping`` was set.
        UsageError: The data cannot be used, for any trial.
        StudyImportError: Importing the file of the data raised an error.
        ExecutionError: The process could not be started, or sent an unexpected message.
    """
    paths = RunPaths(directory, order.settings.name)
    paths.attempt(order.number, 1).mkdir(parents=True)
    assignment = replace(
        assignment_of(order.settings, paths, order.number, 1),
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
