"""Interface for drawing a study's results, and the methods that results inherit from it.

The results know no pictures: who gives them to a user gives them what draws, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from sweeper.errors import UsageError
from sweeper.records.status import StudyStatus

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class FigureSource(Protocol):
    """Interface for drawing results; see `sweeper.views.figures`."""

    def learning_curves(self, results: Any, metric: str | None, *, compared: Any) -> Figure:
        """Return a metric of every trial over its epochs."""
        ...

    def parallel_coordinates(self, results: Any) -> Figure:
        """Draw every trial over its parameters."""
        ...

    def importances(
        self,
        results: Any,
        objective: str | None,
        *,
        method: Literal["ped-anova", "fanova"],
        seed: int,
    ) -> Figure:
        """Draw the importance of each parameter."""
        ...

    def attempts_timeline(self, results: Any) -> Figure:
        """Draw the attempts of every trial over time."""
        ...


class HasFigures:
    """Results that can be drawn, where they came from a study."""

    status: StudyStatus
    figures: FigureSource | None

    def plot_learning_curves(
        self, metric: str | None = None, *, compared: HasFigures | None = None
    ) -> Figure:
        """Draw a metric of every trial over its epochs, with resumes marked, as a Plotly figure.

        Args:
            metric: A key of the epoch logs; the (first) objective by default.
            compared: Another study's results, drawn behind; none by default.

        Raises:
            UsageError: No trial reported ``metric``, or Plotly is not installed.
        """
        return self._figures().learning_curves(self, metric, compared=compared)

    def plot_parallel_coordinates(self) -> Figure:
        """Draw every trial as a line over its parameters to its objectives, as a Plotly figure.

        Raises:
            UsageError: Plotly is not installed.
        """
        return self._figures().parallel_coordinates(self)

    def plot_importances(
        self,
        objective: str | None = None,
        *,
        method: Literal["ped-anova", "fanova"] = "ped-anova",
        seed: int = 0,
    ) -> Figure:
        """Draw how much each parameter matters, as a Plotly figure; it takes 10 complete trials.

        Args:
            objective: One of the study's; the first one by default.
            method: Optuna's evaluator; ``"fanova"`` needs scikit-learn.
            seed: Of what fANOVA draws; 0 by default.

        Raises:
            UsageError: No such objective or method, or a package is not installed.
        """
        return self._figures().importances(self, objective, method=method, seed=seed)

    def plot_attempts(self) -> Figure:
        """Draw every trial's attempts over time, with how each ended, as a Plotly figure.

        Raises:
            UsageError: Plotly is not installed.
        """
        return self._figures().attempts_timeline(self)

    def _figures(self) -> FigureSource:
        if self.figures is None:
            msg = (
                f"these results of study {self.status.study!r} were not read from a study, so "
                "they cannot be drawn; use those of Study.run, Study.results or "
                "load_study(name).results()"
            )
            raise UsageError(msg)
        return self.figures
