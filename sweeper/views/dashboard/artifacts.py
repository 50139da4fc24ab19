"""Files that optuna-dashboard offers of a study: its best trial's picture, and the exports of it.

They lie in the study's own directory, so that they go where it goes: ``sweeper rm`` takes them along.
Exports are those that were written into ``runs/STUDY/exports``, a file with its card beside it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from optuna_dashboard.artifact.exceptions import ArtifactNotFound

from sweeper.models.card import card_paths
from sweeper.records.results import TrialRecord
from sweeper.support.paths import ARTIFACTS, RunPaths
from sweeper.views.formats import params_text, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ID = re.compile(r"[0-9a-fA-F-]{36}")
_LARGEST = 512 * 2**20
"""Bytes of an export that is copied to be offered."""


class ArtifactFiles:
    """The artifact store of every study below a runs directory, as Optuna's tools ask for one.

    Args:
        runs_dir: Where the studies' directories are.
        study: The one that is written for; None for one that only reads.
    """

    def __init__(self, runs_dir: Path, study: str | None = None) -> None:
        self._runs_dir = runs_dir
        self._study = study

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Open an artifact of any study.

        Raises:
            ArtifactNotFound: There is none.
        """
        for path in self._files(artifact_id):
            return path.open("rb")
        msg = f"there is no artifact {artifact_id} below {self._runs_dir}"
        raise ArtifactNotFound(msg)

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Write an artifact of the study, whole or not at all."""
        if self._study is None or not _ID.fullmatch(artifact_id):
            msg = f"artifact {artifact_id!r} has no study to be written for"
            raise ValueError(msg)
        path = RunPaths(self._runs_dir, self._study).artifacts / artifact_id
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f".{artifact_id}")
        with unfinished.open("wb") as file:
            shutil.copyfileobj(content_body, file)
        unfinished.replace(path)

    def remove(self, artifact_id: str) -> None:
        """Delete an artifact, if it is there."""
        for path in self._files(artifact_id):
            path.unlink(missing_ok=True)

    def _files(self, artifact_id: str) -> Iterator[Path]:
        if not _ID.fullmatch(artifact_id):
            return
        with os.scandir(self._runs_dir) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        for name in names:
            path = self._runs_dir / name / ARTIFACTS / artifact_id
            if path.is_file() and not path.is_symlink():
                yield path


def exports_of(paths: RunPaths, trial: TrialRecord) -> tuple[Path, ...]:
    """Return the files in the study's ``exports`` whose cards say that they are of this trial's result."""
    if not paths.exports.is_dir():
        return ()
    found = []
    for path in sorted(paths.exports.iterdir()):
        card = card_paths(path)[0]
        if path.is_symlink() or not path.is_file() or not card.is_file():
            continue
        try:
            said = json.loads(card.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # A card that is being written, or is none: next time.
        whose = (said.get("study"), said.get("trial")) if isinstance(said, dict) else ()
        if whose == (trial.study, trial.number) and path.stat().st_size <= _LARGEST:
            found.append(path)
    return tuple(found)


def picture_of(trial: TrialRecord, objective: str) -> bytes | None:
    """Return a PNG of the trial's learning curve; None where matplotlib is not installed, or no epoch is."""
    figure = _drawn(trial, objective)
    if figure is None:
        return None
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()


def _drawn(trial: TrialRecord, objective: str) -> Figure | None:
    points = [(e.epoch + 1, e.metrics[objective]) for e in trial.epochs if objective in e.metrics]
    if not points:
        return None
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color="#0072B2")
    axes.set_xlabel("epoch")
    axes.set_ylabel(objective)
    axes.set_title(
        f"{trial.study}: trial {trial.number}, {value_text(trial.value, 6)}\n"
        f"{params_text(trial.params)[:90]}",
        fontsize=9,
        parse_math=False,
    )
    axes.grid(alpha=0.3)
    return figure
