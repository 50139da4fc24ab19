"""Tables: the ranking and what must be found in them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from sweeper.report.tables import ranked, studies_table, study_summary, trial_page
from sweeper.results import (
    BestTrial,
    EpochRecord,
    ParetoTrial,
    StudyStatus,
    TrialRecord,
    TrialState,
)
from sweeper.searching import Objective


def trial(number: int, value: float | None, state: TrialState = "complete") -> TrialRecord:
    return TrialRecord("digits", number, state, {"lr": 0.1}, value, 7, None)


def status(best: float | None) -> StudyStatus:
    leader = None if best is None else BestTrial(0, best, {})
    return StudyStatus("digits", 4, complete=4, best=leader)


def shown(table: RenderableType, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


@pytest.mark.parametrize(("best", "order"), [(0.9, [1, 3, 0, 2]), (0.1, [0, 3, 1, 2])])
def test_the_rank_follows_the_studys_best(best: float, order: list[int]) -> None:
    trials = [trial(2, None, "failed"), trial(0, 0.1), trial(3, 0.5), trial(1, 0.9)]
    assert [t.number for t in ranked(trials, status(best))] == order


def test_values_that_cannot_be_ranked_come_last_and_equal_ones_by_number() -> None:
    trials = [trial(0, float("nan")), trial(2, 0.5), trial(1, 0.5), trial(3, 0.5, "running")]
    assert [t.number for t in ranked(trials, status(0.5))] == [1, 2, 0, 3]
    assert ranked([], status(None)) == []


def test_with_several_objectives_the_front_comes_first_and_each_has_a_column() -> None:
    names = ("accuracy", "loss")
    trials = [
        replace(trial(n, 0.1 * n), values=dict(zip(names, (0.1 * n, 9.0 - n), strict=True)))
        for n in range(3)
    ]
    trials.append(trial(3, None, "running"))
    front = tuple(ParetoTrial(t.number, t.values or {}, {}) for t in trials[1:3])
    objectives = (Objective("accuracy", "maximize"), Objective("loss", "maximize"))
    found = replace(status(None), objectives=objectives, pareto=front)
    assert [t.number for t in ranked(trials, found)] == [1, 2, 0, 3]
    text = shown(study_summary(found, trials, []))
    assert "Pareto front: trials 1, 2" in text
    assert "accuracy" in text
    assert "best:" not in text
    page = shown(trial_page(trials[2]))
    assert "loss" in page
    assert "value" not in page


def test_names_are_not_read_as_markup() -> None:
    text = shown(study_summary(status(0.9), [trial(0, 0.9)], ["sweeper show '[b]' 0"]))
    assert "sweeper show '[b]' 0" in text
    assert "complete" in text


def test_what_only_writes_is_shown_as_not_captured() -> None:
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, output_only=("tqdm.std.tqdm",))
    assert "not captured" in (page := shown(trial_page(record)))
    assert "tqdm.std.tqdm (output only)" in page
    assert "not captured" not in shown(trial_page(trial(0, 0.5)))


def test_many_epochs_are_cut_and_the_cut_is_said() -> None:
    epochs = tuple(EpochRecord(n, {"loss": float(n)}) for n in range(40))
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, epochs=epochs)
    text = shown(trial_page(record))
    assert "10 earlier epochs: use --json" in text
    few = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, epochs=epochs[:30])
    assert "earlier epochs" not in shown(trial_page(few))


def test_no_studies_says_how_to_begin() -> None:
    assert "sweeper run FILE" in shown(studies_table([]))


def test_eighty_columns_lose_no_value() -> None:
    long = "a-study-with-" + "x" * 80
    record = StudyStatus(long, 4, complete=4, best=BestTrial(3, 0.123456, {}))
    text = shown(studies_table([record]))
    assert max(map(len, text.splitlines())) <= 80
    assert "0.123456" in text
    assert "".join(text.split()).count("x") == 80
