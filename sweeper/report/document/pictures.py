"""The pictures of a report: each with its heading and what it shows in words, and as PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.errors import ExecutionError, UsageError
from sweeper.installation import install_command
from sweeper.report.figures.attempts import attempts_timeline
from sweeper.report.figures.choosing import leading_name, objectives_of
from sweeper.report.figures.curves import learning_curves
from sweeper.report.figures.importance import draw_importances
from sweeper.report.figures.parallel import parallel_coordinates
from sweeper.report.formats import value_text
from sweeper.results import StudyResults
from sweeper.search.importance import Importances, parameter_importances

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SHOWN_WIDTH, _SCALE = 1000, 2


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        key: Names its file and its index in the page.
        heading: Above it.
        alt: What is to be seen in it, for who does not see it.
    """

    key: str
    heading: str
    alt: str
    figure: Figure


def pictures_of(results: StudyResults, compared: StudyResults | None) -> tuple[Picture, ...]:
    """Draw them all, in the order of the page."""
    objectives = objectives_of(results)
    several = len(objectives) > 1
    pictures = [
        Picture(
            "learning-curves" if index == 0 else f"learning-curves-{index + 1}",
            f"Learning curves: {objective.name}" if several else "Learning curves",
            _curves_alt(results, objective.name, compared),
            learning_curves(results, objective.name, compared=compared)
            if _is_reported(results, objective.name)
            else learning_curves(results, compared=compared),
        )
        for index, objective in enumerate(objectives)
    ]
    pictures.append(
        Picture(
            "parallel-coordinates",
            "Parameters and objective",
            _parallel_alt(results),
            parallel_coordinates(results),
        )
    )
    for index, objective in enumerate(objectives):
        found = parameter_importances(results.trials, objective)
        pictures.append(
            Picture(
                "importance" if index == 0 else f"importance-{index + 1}",
                f"Importance for {objective.name}",
                _importance_alt(found),
                draw_importances(found, results.status.study),
            )
        )
    pictures.append(
        Picture(
            "attempts", "Attempts over time", _attempts_alt(results), attempts_timeline(results)
        )
    )
    return tuple(pictures)


def write_png(pictures: Sequence[Picture], directory: Path) -> tuple[Path, ...]:
    """Write each picture as a PNG file below ``directory``, which is made, and return their paths.

    Kaleido draws them in a Chrome or Chromium of this machine, without any network: Plotly's own
    script is its package's, and MathJax, which Kaleido would fetch, is left out.

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
            f"installed; {install_command('plots')}"
        )
        raise UsageError(msg) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--png {directory}: the directory cannot be made: {error.strerror or error}"
        raise UsageError(msg) from error
    paths = tuple(directory / f"{picture.key}.png" for picture in pictures)
    specs = [
        {
            "fig": picture.figure.to_dict(),
            "path": path,
            "opts": {
                "format": "png",
                "width": _SHOWN_WIDTH,
                "height": picture.figure.layout.height,
                "scale": _SCALE,
            },
        }
        for picture, path in zip(pictures, paths, strict=True)
    ]
    try:
        kaleido.write_fig_from_object_sync(specs, kopts={"mathjax": False})
    except ChromeNotFoundError as error:
        msg = (
            "--png draws in Chrome or Chromium, and none was found; install one, or set "
            "BROWSER_PATH to where it is"
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
    said = f"{metric} over the epochs of {_counted(len(drawn), 'trial')}"
    best = results.pareto
    if best:
        ends = ", ".join(f"trial {t.number} at {value_text(t.value)}" for t in best[:5])
        said += f"; {leading_name(results)}: {ends}"
    resumed = sum(len(trial.attempts) > 1 for trial in results.trials)
    said += f"; {_counted(resumed, 'trial')} had more than one attempt"
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


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
