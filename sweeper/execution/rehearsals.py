"""Rehearsals of a study: processes that build or watch a trial and report, with no database.

They are real trial processes, started by the real launcher. Parameters are drawn as the study draws
them, from its sampler or grid and its seed, for the first trials: those see no results yet.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.definition import StudySettings
from sweeper.errors import ExecutionError, Interrupted
from sweeper.execution.launch.conversation import Stopping, WithoutDatabase, converse
from sweeper.execution.launch.trial_process import ExitStatus, Launcher
from sweeper.execution.protocol.messages import Failed, Message
from sweeper.execution.protocol.questions import Suggest
from sweeper.execution.protocol.rehearsals import Rehearsal, Rehearsed, Rehearsing
from sweeper.execution.worker.assignment import assignment_of
from sweeper.paths import RunPaths
from sweeper.replay.reports import RehearsalReport, StudyAuthors
from sweeper.results import Params
from sweeper.search.grids import grid_size
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spec import SamplerSpec
from sweeper.support.scratch import scratch_directory

_STOPPED = "the check was stopped"
_PATIENCE = 30.0
"""Seconds in which a process has to say what the user wrote."""


@dataclass
class Drawn:
    """Parameters of one trial, each drawn when it is asked for.

    Attributes:
        session: The search of the trial.
        values: Those that were asked for.
    """

    session: SearchSession
    values: Params = field(default_factory=dict)

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the value of ``name``.

        Raises:
            ParameterError: There is none.
        """
        value = self.session.suggest(name, distribution)
        self.values = {**self.values, name: value}
        return value


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

    def of(self, number: int) -> Drawn:
        """Return the parameters of trial ``number``; of a grid with fewer points, of the last one's."""
        if self._points is not None:
            number = min(number, self._points - 1)
        return Drawn(open_search(self._spec, number))


@dataclass
class Received:
    """What one process reported, and how it ended.

    Attributes:
        report: None where it never came to that.
        stage: What it was doing last.
        failed: Its last message, if it failed as a trial.
    """

    report: RehearsalReport | None = None
    stage: str = "starting"
    failed: Failed | None = None
    status: ExitStatus | None = None


def rehearse(
    launcher: Launcher,
    settings: StudySettings,
    directory: Path,
    rehearsal: Rehearsal,
    draws: Draws,
    *,
    stopping: Stopping,
    tell: Callable[[Rehearsing], None] = lambda _: None,
    patience: float | None = None,
) -> Received:
    """Run one process to its end.

    Args:
        launcher: Starts it.
        settings: The study's.
        directory: Where its files go.
        rehearsal: What to do.
        draws: Where parameters come from.
        stopping: Once set, the process is killed.
        tell: Called with what the process is about to do.
        patience: Seconds after which it is killed; None for as long as it takes.

    Raises:
        ExecutionError: It could not be started.
        Interrupted: ``stopping`` was set.
    """
    paths = RunPaths(directory, settings.name)
    paths.attempt(0, 1).mkdir(parents=True, exist_ok=True)
    assignment = dataclasses.replace(
        assignment_of(settings, paths, 0, 1), pruning=False, rehearsal=rehearsal
    )
    supervisor = _Rehearsal(stopping, _STOPPED, draws, tell, patience)
    supervisor.received.status = converse(launcher, assignment, supervisor)
    return supervisor.received


def read_authors(
    launcher: Launcher, settings: StudySettings, search: SamplerSpec
) -> StudyAuthors | None:
    """Return what the user wrote, read by a process that has it; None where that cannot be."""
    with scratch_directory("authors") as directory:
        try:
            received = rehearse(
                launcher,
                settings,
                Path(directory),
                Rehearsal("build"),
                Draws(search),
                stopping=threading.Event(),
                patience=_PATIENCE,
            )
        except (ExecutionError, Interrupted):
            # A difference is reported all the same, without a name for what may be why.
            return None
        return None if received.report is None else received.report.code


@dataclass
class _Rehearsal(WithoutDatabase):
    draws: Draws
    tell: Callable[[Rehearsing], None]
    patience: float | None
    number: int = 0
    received: Received = field(default_factory=Received)
    _began: float = field(default_factory=time.monotonic)
    _drawn: dict[int, Drawn] = field(default_factory=dict)

    def is_enough(self) -> bool:
        return self.patience is not None and time.monotonic() - self._began > self.patience

    def value_of(self, question: Suggest) -> CategoricalChoice:
        if self.number not in self._drawn:
            self._drawn[self.number] = self.draws.of(self.number)
        return self._drawn[self.number].to(question.name, question.distribution)

    def receive(self, message: Message) -> None:
        match message:
            case Rehearsing():
                self.number, self.received.stage = message.number, message.stage
                self.tell(message)
            case Rehearsed():
                self.received.report = message.report
            case Failed():
                self.received.failed = message
            case _:
                pass
