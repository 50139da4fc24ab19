"""What a finished trial gives away: its checkpoints measured again, and its model exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sweeps import command, database_url

from sweeper.records.results import TrialRecord


def check_leaving(
    file: Path, runs: Path, trials: Sequence[TrialRecord], scratch: Path, *, rel: float = 1e-6
) -> None:
    """Check that trials measure, on what they were validated with, as they did, and leave whole.

    Args:
        file: The study's, whose ``load_data`` has a validation split.
        runs: Its runs directory, with the database.
        trials: Of the study, finished, whose last checkpoints are kept.
        scratch: An empty directory.
        rel: How much the measured values may differ. Workers share the cores otherwise than the
            sweep's did, and the sums' last bits hang on that.
    """
    study = trials[0].study
    flags = ("--storage", database_url(runs), "--runs-dir", runs)
    (scratch / "held_out.py").write_text(
        f"import sys\nsys.path.insert(0, {str(file.parent)!r})\n"
        f"import {file.stem}\nfrom sweeper import Data\n\n\n"
        f"def load_data(trial):\n    return Data(test={file.stem}.load_data(trial).validation)\n"
    )
    words: tuple[object, ...] = (
        "evaluate",
        study,
        "--data",
        scratch / "held_out.py:load_data",
        "--json",
    )
    measured = command(*words, *flags, cwd=scratch)
    assert measured.code == 0, measured.out + measured.err
    rows = json.loads(measured.out)
    for trial in trials:
        last = max((row for row in rows if row["trial"] == trial.number), key=lambda r: r["step"])
        validated = trial.epochs[-1].metrics
        assert last["epoch"] == trial.epochs[-1].epoch + 1
        wanted = {
            name.removeprefix("val_"): value
            for name, value in validated.items()
            if name.startswith("val_")
        }
        assert last["metrics"] == pytest.approx(wanted, rel=rel), trial.number
        path = scratch / f"trial-{trial.number}.keras"
        words = ("export", study, "--format", "keras", "--trial", trial.number, "--output", path)
        if trial.state == "pruned":
            # Its training has no end; it is what it was at the rung.
            words = (*words, "--at", last["step"])
        left = command(*words, *flags, cwd=scratch)
        assert left.code == 0, left.out + left.err
        card = json.loads(Path(f"{path}.json").read_text())
        assert card["digest"] == trial.digest
        assert card["parameters"] == dict(trial.params)
