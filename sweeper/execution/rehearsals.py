"""A worker with no database: it answers what a rehearsal asks, and keeps what it reports.

It speaks to the real trial process through the real launcher. Parameters are drawn as the study
draws them, from its sampler or grid and its seed, for the first trials: those see no results yet.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.definition import StudySettings
from sweeper.errors import Interrupted, ParameterError
from sweeper.execution.launch.conversation import POLL_INTERVAL, TrialSupervisor, converse
from sweeper.execution.launch.trial_process import ExitStatus, Launcher, TrialProcess
from sweeper.execution.protocol.messages import (
    Assignment,
    CheckpointCommitted,
    Failed,
    Message,
    Started,
    Warned,
)
from sweeper.execution.protocol.questions import Suggest, Suggested
from sweeper.execution.protocol.rehearsals import Rehearsal, Rehearsed, Rehearsing
from sweeper.execution.protocol.replays import Replay
from sweeper.execution.worker.assignment import assignment_of
from sweeper.independence.reports import RehearsalReport
from sweeper.paths import RunPaths
from sweeper.search.grids import grid_size
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spec import SamplerSpec


class Draws:
    """The parameters of a study's first trials, drawn without a database.

    Args:
        spec: How the study draws them.
    """

    def __init__(self, spec: SamplerSpec) -> None:
        # Two trials are drawn, and neither may wait for the other's result.
        window = None if spec.window is None else max(2, spec.window)
        self._spec = dataclasses.replace(spec, window=window, pruner=None)
        self._points = None if spec.grid is None else grid_size(spec.grid)

    def session(self, number: int) -> SearchSession:
        """The search of trial ``number``; of a grid with fewer points, of the last one's."""
        if self._points is not None:
            number = min(number, self._points - 1)
        return open_search(self._spec, number)


@dataclass
class Received:
    """What one process reported, and how it ended.

    Attributes:
        report: Of a rehearsal; None where it never came to that.
        stage: What it was doing last.
        checkpoints: Path and size by step.
        failed: Its last message, if it failed as a trial.
        started_after: Seconds from its launch to its first step; None where it never came to that.
        seconds: From its launch to its end.
    """

    report: RehearsalReport | None = None
    stage: str = "starting"
    checkpoints: dict[int, tuple[Path, int]] = field(default_factory=dict)
    failed: Failed | None = None
    warnings: list[str] = field(default_factory=list)
    started_after: float | None = None
    seconds: float = 0.0
    status: ExitStatus | None = None


def rehearsal_assignment(
    settings: StudySettings,
    directory: Path,
    rehearsal: Rehearsal,
    *,
    attempt: int = 1,
    replay: Replay | None = None,
) -> Assignment:
    """The assignment of a rehearsal whose files are below ``directory``."""
    paths = RunPaths(directory, settings.name)
    paths.attempt(0, attempt).mkdir(parents=True, exist_ok=True)
    return dataclasses.replace(
        assignment_of(settings, paths, 0, attempt),
        pruning=False,
        checkpoint_every="epoch",
        replay=replay,
        rehearsal=rehearsal,
    )


def rehearse(
    launcher: Launcher,
    assignment: Assignment,
    draws: Draws,
    stopping: threading.Event,
    *,
    until: int | None = None,
    tell: Callable[[Rehearsing], None] = lambda _: None,
    patience: float | None = None,
) -> Received:
    """Run one process to its end, or until it has a checkpoint at step ``until``.

    Args:
        launcher: Starts it.
        assignment: What to do.
        draws: Where parameters come from.
        stopping: Once set, the process is killed.
        until: The step whose checkpoint is all that is wanted.
        tell: Called with what the process is about to do.
        patience: Seconds after which it is killed; None for as long as it takes.

    Raises:
        ExecutionError: It could not be started.
        Interrupted: ``stopping`` was set.
    """
    supervisor = _Rehearsal(assignment.number, draws, stopping, until, tell, patience)
    received = supervisor.received
    received.status = converse(launcher, assignment, supervisor)
    received.seconds = supervisor.seconds
    return received


@dataclass
class _Rehearsal(TrialSupervisor):
    number: int
    draws: Draws
    stopping: threading.Event
    until: int | None
    tell: Callable[[Rehearsing], None]
    patience: float | None
    received: Received = field(default_factory=Received)
    _began: float = field(default_factory=time.monotonic)
    _searches: dict[int, SearchSession] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since its launch."""
        return time.monotonic() - self._began

    def poll(self, process: TrialProcess) -> float | None:
        del process
        if self.until in self.received.checkpoints:
            return None
        if self.stopping.is_set():
            msg = "the check was stopped"
            raise Interrupted(msg)
        if self.patience is not None and self.seconds > self.patience:
            return None
        return POLL_INTERVAL

    def handle(self, message: Message) -> Suggested | None:
        received = self.received
        match message:
            case Suggest():
                return self._answer(message)
            case Rehearsing():
                self.number, received.stage = message.number, message.stage
                self.tell(message)
            case Rehearsed():
                received.report = message.report
            case Started():
                received.started_after, received.stage = self.seconds, "training"
            case CheckpointCommitted():
                received.checkpoints[message.step] = (Path(message.path), message.bytes)
            case Warned():
                received.warnings.append(message.message)
            case Failed():
                received.failed = message
            case _:
                pass
        return None

    def _answer(self, question: Suggest) -> Suggested:
        try:
            if self.number not in self._searches:
                self._searches[self.number] = self.draws.session(self.number)
            search = self._searches[self.number]
            return Suggested(search.suggest(question.name, question.distribution))
        except ParameterError as error:
            return Suggested(None, error=str(error))
