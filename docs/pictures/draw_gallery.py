"""Pictures of the gallery: runs every study of ``studies/`` and draws what it found.

    .venv/bin/python docs/pictures/draw_gallery.py --runs-dir /tmp/gallery

A study that has finished in that directory is drawn again without training. All take some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from sweeper import StudyResults, load_study

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "gallery", "svg.fonttype": "none", "font.size": 9})
from matplotlib import pyplot as plt  # noqa: E402  # after the choice of its backend
from matplotlib import ticker  # noqa: E402

ROOT = Path(__file__).parents[2]
PICTURES = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """What to draw of a study.

    Attributes:
        study: Name of the study; its file has underscores.
        metric: Metric of each epoch, drawn on the left.
        parameter: Parameter whose values are drawn against the objective on the right, if any.
        confirm: Arguments of `sweeper confirm`, if the study is confirmed before it is drawn.
    """

    study: str
    metric: str
    parameter: str = ""
    confirm: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """The study's file."""
        return ROOT / "studies" / f"{self.study.replace('-', '_')}.py"


ALL = (
    Picture("digits-learning-rate", "val_accuracy", "learning_rate"),
    Picture("rmsprop-two-rates", "val_accuracy"),
    Picture("digits-repeats", "val_accuracy", "learning_rate", ("--best", "4", "--repeats", "6")),
    Picture("digits-hyperband", "val_accuracy", "learning_rate"),
    Picture("digits-convolutional", "val_accuracy"),
    Picture("checkpoint-choice", "val_loss", "dropout"),
    Picture("sequence-vae", "val_bound"),
    Picture("two-replicas", "val_accuracy", "learning_rate"),
)


def run(picture: Picture, runs_dir: Path) -> StudyResults:
    """Train a study to its end, and return its results."""
    places = ["--runs-dir", str(runs_dir)]
    _sweeper("run", str(picture.file), "--workers", "2", *places)
    if picture.confirm:
        _sweeper("confirm", picture.study, *picture.confirm, *places)
    return load_study(picture.study, runs_dir=runs_dir).results()


def _sweeper(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sweeper", *words], check=True, stdout=sys.stderr)


def draw(picture: Picture, results: StudyResults) -> Path:
    """Draw curves of the trials, the best one in colour, and the objective by a parameter beside them."""
    sides = 2 if picture.parameter else 1
    figure, axes = plt.subplots(
        1, sides, figsize=(3.6 * sides, 2.6), squeeze=False, layout="constrained"
    )
    best = results.best.number
    for trial in results:
        values = [epoch.metrics[picture.metric] for epoch in trial.epochs]
        _draw_curve(axes[0, 0], values, leads=trial.number == best)
    axes[0, 0].set(xlabel="epoch", ylabel=picture.metric)
    if picture.parameter:
        _draw_values(axes[0, 1], picture.parameter, results)
    for side in axes[0]:
        side.grid(visible=True, alpha=0.3)
    path = PICTURES / f"{picture.study}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _draw_curve(side: Any, values: list[float], *, leads: bool) -> None:
    style = {"color": "tab:blue", "zorder": 3} if leads else {"color": "0.6", "linewidth": 0.8}
    marker = "." if len(values) == 1 else ""  # a line of one point is not seen
    side.plot(range(1, len(values) + 1), values, marker=marker, **style)


def _draw_values(side: Any, parameter: str, results: StudyResults) -> None:
    trials = [trial for trial in results if trial.value is not None]
    colours = ["tab:blue" if trial.number == results.best.number else "0.6" for trial in trials]
    values = [trial.value for trial in trials]
    side.scatter([trial.params[parameter] for trial in trials], values, c=colours, s=16)
    if "rate" in parameter:
        side.set_xscale("log")
        low, high = side.get_xlim()
        if high < 100 * low:  # Matplotlib's labels of fewer than two decades lie over each other
            side.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            side.xaxis.set_major_formatter("{x:g}")
            side.xaxis.set_minor_formatter(ticker.NullFormatter())
    side.set(xlabel=parameter, ylabel="objective")


def main() -> None:
    """Run and draw the named studies, or all."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the gallery.")
    parser.add_argument("studies", nargs="*", help="names of studies; all by default")
    parser.add_argument("--runs-dir", type=Path, required=True, help="where they run")
    options = parser.parse_args()
    for picture in ALL:
        if not options.studies or picture.study in options.studies:
            print(draw(picture, run(picture, options.runs_dir)))


if __name__ == "__main__":
    main()
