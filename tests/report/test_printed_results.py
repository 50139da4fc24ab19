"""Results in a terminal, a notebook, pandas and Plotly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from drawn_studies import NASTY, front, large, results, trial
from recorded_studies import database

from sweeper import StoredStudy, load_study
from sweeper.errors import UsageError


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredStudy:
    found = load_study("recorded", storage=database(tmp_path_factory.mktemp("r") / "s.db"))
    assert isinstance(found, StoredStudy)
    return found


def test_results_print_as_a_table_the_best_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    found = results(trial(0, [0.1], params={"x": 1}), trial(1, [0.2, 0.9], killed_after=1))
    assert repr(found).splitlines() == [
        "drawn: 2 of 2 trials finished; best: trial 1 with score 0.9 (maximize)",
        "trial     state  score  x  epochs  attempts",
        "    1  complete    0.9  -       2         2",
        "    0  complete    0.1  1       1         1",
    ]
    assert str(results()) == "drawn: 0 of 0 trials finished; no best one yet"


def test_a_lower_value_is_first_where_it_is_better() -> None:
    found = results(trial(0, [0.1]), trial(1, [0.2]), trial(2, [0.3]), direction="minimize")
    assert [line.split()[0] for line in str(found).splitlines()[2:]] == ["0", "1", "2"]


def test_many_trials_and_wide_ones_are_cut_and_the_cut_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = str(large(200, 2)).splitlines()
    assert len(lines) == 15
    assert all(len(line) <= 60 for line in lines[1:-1])
    assert lines[1].endswith("…")
    assert lines[-1].startswith("and 188 more")


def test_a_front_is_printed_with_a_column_an_objective() -> None:
    lines = str(front((0.1, 0.9), (0.9, 0.1), (0.05, 0.05))).splitlines()
    assert lines[0].endswith("Pareto front: 0, 1")
    assert lines[1].split() == ["trial", "state", "score", "speed", "x", "epochs", "attempts"]


def test_a_notebook_shows_html_in_which_names_are_text() -> None:
    shown = large(40, 2)._repr_html_()
    assert shown.startswith("<table><caption>drawn: ")
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert shown.count("<tr>") == 31
    assert "and 10 more" in shown


def test_a_data_frame_has_what_the_attempts_were(stored: StoredStudy) -> None:
    frame = stored.results().to_dataframe().set_index("number")
    assert frame.loc[1, "attempts"] == 2
    assert frame.loc[1, "resumed_at_steps"] == [30]
    assert frame.loc[0, "resumed_at_steps"] == []
    assert frame.loc[1, "seconds"] >= 0
    assert NASTY in frame.loc[2, "error"]
    assert frame.loc[0, "seed"] == 1000


def test_epochs_and_attempts_are_frames_too(stored: StoredStudy) -> None:
    found = stored.results()
    epochs = found.to_dataframe("epochs")
    assert list(epochs.columns) == ["trial", "epoch", "loss", "score"]
    assert list(epochs[epochs.trial == 1].epoch) == [0, 1, 2, 3, 4, 5]
    attempts = found.to_dataframe("attempts")
    assert list(attempts[attempts.trial == 1].outcome) == ["crashed", "complete"]
    assert str(attempts.started_at.dtype).startswith("datetime64")
    with pytest.raises(UsageError, match="'trials', 'epochs', 'attempts'"):
        found.to_dataframe("steps")  # type: ignore[arg-type]


def test_a_study_read_by_its_name_draws_every_figure(stored: StoredStudy) -> None:
    found: Any = stored.results()
    assert found.plot_learning_curves("loss").data
    assert found.plot_parallel_coordinates().data
    assert found.plot_importances().data
    assert found.plot_attempts().data


def test_without_plotly_the_command_that_installs_it_is_said(
    stored: StoredStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stored.results()
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UsageError, match=r"need the package 'plotly'.*sweeper-keras\[plots\]"):
        found.plot_attempts()


def test_results_that_no_study_gave_say_where_to_get_them() -> None:
    with pytest.raises(UsageError, match=r"load_study\(name\)\.results\(\)"):
        results(trial(0, [0.1])).plot_attempts()


def test_reading_results_imports_no_plotly(tmp_path: Path) -> None:
    import subprocess

    script = (
        "import sys, sweeper; from sweeper.results import StudyResults, StudyStatus; "
        "str(StudyResults(StudyStatus('s', 1))); print('plotly' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
