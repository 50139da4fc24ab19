"""Rehearsals of a study: processes that build or observe a trial and report, without a database.

A rehearsal is a replay that ends with a report. Parameters are drawn by the study's sampler or grid and
its seed, for its first trials, which depend on no results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
"""Time limit in seconds for reading the user's code in a process."""


@dataclass
class Drawn:
    """Parameters of a study's first trials, drawn on request without a database.

    Attributes:
        spec: Sampler or grid of the study.
        number: Number of the trial that requests them now; for a grid with fewer points, the last
            point is used.
    """

    spec: SamplerSpec
    number: int = 0
    _known: dict[int, tuple[SearchSession, Params]] = field(default_factory=dict)

    @property
    def values(self) -> Params:
        """Return the parameters that the trial has requested."""
        return self._trial()[1]

    def to(self, name: str, distribution: Distribution) -> CategoricalChoice:
        """Return the value of ``name``.

        Raises:
            ParameterError: There is none.
        """
        session, values = self._trial()
        value = session.suggest(name, distribution)
        self._known[self.number] = session, {**values, name: value}
        return value

    def _trial(self) -> tuple[SearchSession, Params]:
        if self.number not in self._known:
            number, spec = self.number, self.spec
            if spec.grid is not None:
                number = min(number, grid_size(spec.grid) - 1)
            # Two trials are rehearsed, and neither may wait for the other's result.
            window = None if spec.window is None else max(2, spec.window)
            spec = replace(spec, window=window, pruner=None)
            self._known[self.number] = open_search(spec, number), {}
        return self._known[self.number]


def rehearse(
    launcher: Launcher,
    settings: StudySettings,
    directory: Path,
    rehearsal: Rehearsal,
    search: SamplerSpec,
    *,
    stopping: Stopping,
    tell: Callable[[Rehearsing], None] = lambda _: None,
    patience: float | None = None,
) -> Replayed:
    """Run one rehearsal in a separate process, and return its report and exit status.

    ``tell`` receives the process's next activity. The process is killed after ``patience`` seconds, or
    when ``stopping`` is set.

    Raises:
        ExecutionError: The process could not be started.
        Interrupted: ``stopping`` was set.
    """
    answers = Drawn(search)

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
    """Return the finding that two trials are validated on different samples, or None.

    If the samples differ, the second trial is built again with the parameters of the first, because the
    data may depend on a parameter. ``first`` and ``second`` are the reports of the processes that built
    trials 0 and 1.
    """
    if first is None or not validation_differs(first, second):
        return None
    alike = rehearse_again(Rehearsal("build", 1, like=0))
    return None if alike is None else validation_finding(first, alike)


def read_authors(
    launcher: Launcher, settings: StudySettings, search: SamplerSpec
) -> StudyAuthors | None:
    """Return the user's code, read by a process that has imported it; None if that fails."""
    with scratch_directory("authors") as directory:
        try:
            rehearsed = rehearse(
                launcher,
                settings,
                Path(directory),
                Rehearsal("build"),
                search,
                stopping=threading.Event(),
                patience=_PATIENCE,
            )
        except (ExecutionError, Interrupted):
            # The difference is reported nevertheless, without the user's callbacks.
            return None
        return None if rehearsed.report is None else rehearsed.report.code
