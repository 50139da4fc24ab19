"""Figures of a study's page with headings and descriptions, and their PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from sweeper.errors import ExecutionError, UsageError
from sweeper.records.printing import counted
from sweeper.records.results import StudyResults
from sweeper.search.importance import Importances, parameter_importances
from sweeper.support.installation import install_command
from sweeper.views.figures.attempts import attempts_timeline
from sweeper.views.figures.configurations import configurations, drawn_configurations
from sweeper.views.figures.curves import learning_curves
from sweeper.views.figures.drawing import leading_name, objectives_of
from sweeper.views.figures.parameters import draw_importances, parallel_coordinates
from sweeper.views.formats import value_text
from sweeper.views.pages.content import Picture

_SHOWN_WIDTH, _SCALE = 1000, 2


def pictures_of(
    results: StudyResults,
    compared: StudyResults | None = None,
    *,
    now: datetime | None = None,
    importances: bool = True,
) -> tuple[Picture, ...]:
    """Return a study's figures, in the order of its page.

    Args:
        results: The study's results.
        compared: Another study's results, drawn in the same figures.
        now: End of the bars of running attempts.
        importances: Whether to include the importances of parameters, which take seconds for a
            large study.
    """
    objectives = objectives_of(results)
    several = len(objectives) > 1
    pictures = [
        Picture(
            _numbered("learning-curves", index),
            f"Learning curves: {objective.name}" if several else "Learning curves",
            _curves_alt(results, objective.name, compared),
            partial(
                learning_curves,
                results,
                objective.name if _is_reported(results, objective.name) else None,
                compared=compared,
            ),
        )
        for index, objective in enumerate(objectives)
    ]
    rows = drawn_configurations(results)
    if rows:
        pictures.insert(
            0,
            Picture(
                "configurations",
                "Configurations",
                "; ".join(f"configuration {each.number}: {each.text}" for each in rows) + ".",
                partial(configurations, results),
            ),
        )
    pictures.append(
        Picture(
            "parallel-coordinates",
            "Parameters and objective",
            _parallel_alt(results),
            partial(parallel_coordinates, results),
        )
    )
    for index, objective in enumerate(objectives if importances else ()):
        found = parameter_importances(results.trials, objective)
        pictures.append(
            Picture(
                _numbered("importance", index),
                f"Importance for {objective.name}",
                _importance_alt(found),
                partial(draw_importances, found, results.status.study),
            )
        )
    pictures.append(
        Picture(
            "attempts",
            "Attempts over time",
            _attempts_alt(results),
            partial(attempts_timeline, results, now=now),
        )
    )
    return tuple(pictures)


def _numbered(key: str, index: int) -> str:
    return key if index == 0 else f"{key}-{index + 1}"


def write_png(pictures: Sequence[Picture], directory: Path) -> tuple[Path, ...]:
    """Write each picture as a PNG file below ``directory``, and return the paths.

    Kaleido draws them in this machine's Chrome or Chromium without a network: Plotly's script is
    taken from its package, and MathJax, which Kaleido would download, is left out.

    Raises:
        UsageError: Kaleido is not installed, or there is no browser.
        ExecutionError: The browser failed.
    """
    try:
        import kaleido
        from choreographer.browsers import BrowserFailedError
        from choreographer.errors import ChromeNotFoundError
        from kaleido.errors import KaleidoError
    except ModuleNotFoundError as error:
        msg = (
            f"--png needs the package {(error.name or '').partition('.')[0]!r}, which is not "
            f"installed: {install_command('plots')}"
        )
        raise UsageError(msg) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--png {directory}: the directory cannot be made: {error.strerror or error}"
        raise UsageError(msg) from error
    paths = tuple(directory / f"{picture.key}.png" for picture in pictures)
    figures = [picture.draw() for picture in pictures]
    specs = [
        {
            "fig": figure.to_dict(),
            "path": path,
            "opts": {
                "format": "png",
                "width": _SHOWN_WIDTH,
                "height": figure.layout.height,
                "scale": _SCALE,
            },
        }
        for figure, path in zip(figures, paths, strict=True)
    ]
    try:
        kaleido.write_fig_from_object_sync(specs, kopts={"mathjax": False})
    except ChromeNotFoundError as error:
        msg = (
            "--png needs Chrome or Chromium, and none was found; install one, or set "
            "BROWSER_PATH to its path"
        )
        raise UsageError(msg) from error
    except (BrowserFailedError, KaleidoError, RuntimeError, OSError) as error:
        msg = f"--png: the browser that draws the pictures failed: {type(error).__name__}: {error}"
        raise ExecutionError(msg) from error
    return paths


def _is_reported(results: StudyResults, metric: str) -> bool:
    return any(metric in epoch.metrics for trial in results.trials for epoch in trial.epochs)


def _curves_alt(results: StudyResults, metric: str, compared: StudyResults | None) -> str:
    drawn = [t for t in results.trials if any(metric in e.metrics for e in t.epochs)]
    said = f"{metric} over the epochs of {counted(len(drawn), 'trial')}"
    best = results.pareto
    if best:
        ends = ", ".join(f"trial {t.number} at {value_text(t.value)}" for t in best[:5])
        said += f"; {leading_name(results)}: {ends}"
    resumed = sum(len(trial.attempts) > 1 for trial in results.trials)
    said += f"; {counted(resumed, 'trial')} had more than one attempt"
    return said + ("" if compared is None else f"; beside those of {compared.status.study}") + "."


def _parallel_alt(results: StudyResults) -> str:
    names = list(dict.fromkeys(name for trial in results.trials for name in trial.params))
    return (
        f"A line for each trial over {', '.join(names) or 'no parameters'} to "
        f"{', '.join(objective.name for objective in objectives_of(results))}; the table of "
        "trials below has the same numbers."
    )


def _importance_alt(found: Importances) -> str:
    if found.why_not is not None:
        return f"{found.why_not}."
    return "; ".join(f"{name} {share:.0%}" for name, share in found.shares) + "."


def _attempts_alt(results: StudyResults) -> str:
    outcomes = Counter(a.outcome or "running" for t in results.trials for a in t.attempts)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return f"A bar for each attempt over time, a row a trial: {counts or 'none'}."
