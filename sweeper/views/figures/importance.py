"""Bar chart of the importances of parameters for an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeper.records.results import StudyResults
from sweeper.search.importance import Importances, Method, parameter_importances
from sweeper.views.figures.drawing import (
    BLUE,
    add_note,
    as_text,
    chosen_objective,
    figure,
    message,
    plotly,
    shortened,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def importances(
    results: StudyResults,
    objective: str | None = None,
    *,
    method: Method = "ped-anova",
    seed: int = 0,
) -> Figure:
    """Draw each parameter's importance for an objective.

    With fewer than 10 complete trials, or only one parameter, the figure says so instead.

    Args:
        results: The study's.
        objective: One of the study's objectives; the first one by default.
        method: Optuna's evaluator: ``"ped-anova"`` (Watanabe et al., 2023) gives the importance for
            being among the best trials, and is deterministic; ``"fanova"`` (Hutter et al., 2014)
            needs scikit-learn.
        seed: Seed of fANOVA.

    Raises:
        UsageError: No such objective or method, or a package is not installed.
    """
    plotly()
    chosen = chosen_objective(results, objective)
    found = parameter_importances(results.trials, chosen, method=method, seed=seed)
    return draw_importances(found, results.status.study)


def draw_importances(found: Importances, study: str) -> Figure:
    """Draw the importances; see `importances`."""
    go = plotly()
    title = f"What {shortened(found.objective.name)} depends on, in {study}"
    if found.why_not is not None:
        return message(title, found.why_not)
    names = [as_text(shortened(name, 40)) for name, _ in found.shares]
    shares = [share for _, share in found.shares]
    bars = go.Bar(
        orientation="h",
        x=shares,
        y=list(range(len(names))),
        text=[f"{share:.0%}" for share in shares],
        textposition="auto",
        marker={"color": BLUE},
        hoverinfo="none",
        showlegend=False,
    )
    drawn = figure(
        [bars],
        title,
        height=min(160 + 32 * len(names), 900),
        xaxis={"title": {"text": "share"}, "tickformat": ".0%", "rangemode": "tozero"},
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [len(names) - 0.5, -0.5],
        },
    )
    add_note(drawn, _subtitle(found))
    return drawn


def _subtitle(found: Importances) -> str:
    if found.best_share is None:
        return f"fANOVA over {found.trials} complete trials"
    return (
        f"to be among the best {found.best_share:.0%} of {found.trials} complete trials (PED-ANOVA)"
    )
