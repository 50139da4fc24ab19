"""Rehearsals of a study: processes that build or watch a trial and report, with no database.

They are replays that end with a report. Parameters are drawn as the study draws
them, from its sampler or grid and its seed, for the first trials: those see no results yet.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.definition.definition import StudySettings
from sweeper.errors import ExecutionError, Interrupted
from sweeper.records.results import Params
from sweeper.replay.reports import (
    Finding,
    RehearsalReport,
    StudyAuthors,
    validation_differs,
    validation_finding,
)
from sweeper.run.launch.trial_process import Launcher, Stopping
from sweeper.run.protocol.messages import Rehearsal, Rehearsing
from sweeper.run.replays import Replayed, ReplayOrder, run_again
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import grid_size
from sweeper.search.spec import SamplerSpec
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.paths import scratch_directory

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
class _Drawing:
    """Answers of the trial that a rehearsal builds now: each asks for its own."""

    draws: Draws
    number: int = 0
    _drawn: dict[int, Drawn] = field(default_factory=dict)

    @property
    def values(self) -> Params:
        return self._trial().values

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        return self._trial().to(name, distribution)

    def _trial(self) -> Drawn:
        if self.number not in self._drawn:
            self._drawn[self.number] = self.draws.of(self.number)
        return self._drawn[self.number]


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
) -> Replayed:
    """Run one process to its end, and return what it reported and how it ended.

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
    answers = _Drawing(draws)

    def announced(rehearsing: Rehearsing) -> None:
        answers.number = rehearsing.number
        tell(rehearsing)

    order = ReplayOrder(
        settings=settings,
        number=0,
        answers=answers,
        when_stopped=_STOPPED,
        rehearsal=rehearsal,
        announced=announced,
        patience=patience,
    )
    return run_again(order, [launcher], directory, lambda _: None, stopping)


def validation_compares(
    first: RehearsalReport | None,
    second: RehearsalReport | None,
    rehearse_again: Callable[[Rehearsal], RehearsalReport | None],
) -> Finding | None:
    """Return the finding that two trials are validated on different samples; None where they are not.

    Args:
        first: Of the process that built trial 0.
        second: Of the process that built trial 1.
        rehearse_again: Runs one more rehearsal, of the second trial with the parameters of the first:
            one of them may ask for other data.
    """
    if first is None or not validation_differs(first, second):
        return None
    alike = rehearse_again(Rehearsal("build", 1, like=0))
    return None if alike is None else validation_finding(first, alike)


def read_authors(
    launcher: Launcher, settings: StudySettings, search: SamplerSpec
) -> StudyAuthors | None:
    """Return what the user wrote, read by a process that has it; None where that cannot be."""
    with scratch_directory("authors") as directory:
        try:
            rehearsed = rehearse(
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
        return None if rehearsed.report is None else rehearsed.report.code
