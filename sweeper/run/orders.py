"""Orders that a trial process carries out in place of a trial, such as an evaluation, without a database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.run.launch.trial_process import (
    ExitStatus,
    Launcher,
    Stopping,
    WithoutDatabase,
    converse,
)
from sweeper.run.protocol.messages import (
    Assignment,
    Evaluated,
    Failed,
    Message,
    ModelExported,
    Suggest,
)
from sweeper.spec.space import CategoricalChoice
from sweeper.support.paths import RunPaths, scratch_directory


@contextmanager
def scratch_paths(study: str, number: int, purpose: str) -> Iterator[RunPaths]:
    """Context manager that yields temporary directories for the process of a trial."""
    with scratch_directory(purpose) as directory:
        paths = RunPaths(Path(directory), study)
        paths.attempt(number, 1).mkdir(parents=True)
        yield paths


def carry_out(
    launcher: Launcher,
    assignment: Assignment,
    answer: Callable[[Suggest], CategoricalChoice],
    receive: Callable[[Message], None],
    *,
    stopping: Stopping | None = None,
    when_stopped: str = "",
) -> Evaluated | ModelExported | Failed | ExitStatus:
    """Carry out the order in an assignment in a separate process.

    Args:
        launcher: Starts the process.
        assignment: The assignment, whose directories exist.
        answer: Returns the value of a parameter.
        receive: Handles every message but the last.
        stopping: Event that ends the process; None for none.
        when_stopped: Message of the `Interrupted` that is then raised.

    Returns:
        The process's last message; its exit status if it ended without one.

    Raises:
        Interrupted: ``stopping`` was set.
        ExecutionError: The process could not be started, or sent something that is not a message.
    """
    supervisor = _Supervisor(stopping or threading.Event(), when_stopped, answer, receive)
    status = converse(launcher, assignment, supervisor)
    return supervisor.last or status


@dataclass
class _Supervisor(WithoutDatabase):
    answer: Callable[[Suggest], CategoricalChoice]
    pass_on: Callable[[Message], None]
    last: Evaluated | ModelExported | Failed | None = field(default=None, init=False)

    def value_of(self, question: Suggest) -> CategoricalChoice:
        return self.answer(question)

    def receive(self, message: Message) -> None:
        if isinstance(message, Evaluated | ModelExported | Failed):
            self.last = message
        else:
            self.pass_on(message)
