"""What draws a study's results for `StudyResults.plot_…`: the records know no Plotly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sweeper.records.model_source import ModelSource
from sweeper.results import StudyResults

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class StudyFigures:
    """The figures of `sweeper.report.figures`, imported when the first one is drawn."""

    def learning_curves(
        self, results: StudyResults, metric: str | None, *, compared: StudyResults | None
    ) -> Figure:
        """A metric of every trial over its epochs."""
        from sweeper.report import figures

        return figures.learning_curves(results, metric, compared=compared)

    def parallel_coordinates(self, results: StudyResults) -> Figure:
        """Every trial over its parameters."""
        from sweeper.report import figures

        return figures.parallel_coordinates(results)

    def importances(
        self,
        results: StudyResults,
        objective: str | None,
        *,
        method: Literal["ped-anova", "fanova"],
        seed: int,
    ) -> Figure:
        """How much each parameter matters."""
        from sweeper.report import figures

        return figures.importances(results, objective, method=method, seed=seed)

    def attempts_timeline(self, results: StudyResults) -> Figure:
        """Every trial's attempts."""
        from sweeper.report import figures

        return figures.attempts_timeline(results)


def drawable(results: StudyResults, models: ModelSource) -> StudyResults:
    """The results with their models and what draws them, as a study gives them."""
    return results.with_models(models, StudyFigures())
