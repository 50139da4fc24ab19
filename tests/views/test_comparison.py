"""Trials side by side: what differs is marked, nothing is cut, and curves share one scale."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console, RenderableType

from sweeper.records.results import EpochRecord, TrialRecord
from sweeper.spec.space import CategoricalChoice
from sweeper.views.verb_tables import Comparison, Curves, sparkline


def trial(number: int, study: str = "digits", **params: CategoricalChoice) -> TrialRecord:
    epochs = tuple(
        EpochRecord(n, {"loss": 0.25, "val_accuracy": 0.5 + n * (number + 1) / 16})
        for n in range(4)
    )
    return TrialRecord(study, number, "complete", params, 0.5, 7, "d" * 32, epochs=epochs)


def shown(table: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width, color_system=None).print(table)
    stream.seek(0)
    return stream.read()


def test_what_differs_is_marked_and_what_does_not_is_not() -> None:
    trials = [trial(0, rate=0.125, layers=3), trial(1, rate=0.25, layers=3)]
    lines = [line.split() for line in shown(Comparison(trials, ["val_accuracy"])).splitlines()]
    assert ["trial", "0", "trial", "1"] in lines
    assert ["*", "rate", "0.125", "0.25"] in lines
    assert ["layers", "3", "3"] in lines
    assert ["loss", "0.25", "0.25"] in lines
    assert ["*", "val_accuracy", "0.6875", "0.875"] in lines
    differing = Comparison(trials, ["val_accuracy"]).to_json()["differing"]
    assert differing == {"params": ["rate"], "metrics": ["val_accuracy"]}


def test_one_and_true_differ_and_an_absent_parameter_differs_from_every_value() -> None:
    trials = [trial(0, a=1, b=None), trial(0, a=True)]
    assert Comparison(trials, []).to_json()["differing"]["params"] == ["a", "b"]
    nan = TrialRecord("d", 0, "failed", {}, None, 7, None, (EpochRecord(0, {"loss": math.nan}),))
    again = TrialRecord("d", 1, "failed", {}, None, 7, None, (EpochRecord(0, {"loss": math.nan}),))
    assert Comparison([nan, again], []).to_json()["differing"]["metrics"] == []


def test_trials_of_two_studies_are_told_apart() -> None:
    text = shown(Comparison([trial(0), trial(0, "letters")], ["val_accuracy"]))
    assert "digits:0" in text
    assert "letters:0" in text


def test_more_trials_than_there_is_room_for_are_folded_and_not_cut() -> None:
    trials = [trial(n, optimizer="a-rather-long-choice-of-an-optimizer") for n in range(7)]
    text = shown(Comparison(trials, ["val_accuracy"]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    wide = shown(Comparison(trials, ["val_accuracy"]), 400)
    assert wide.count("a-rather-long-choice-of-an-optimizer") == 7


def test_a_curve_has_its_highest_bar_at_its_highest_value() -> None:
    assert sparkline([0.0, 1.0, 0.5, math.nan, None], (0.0, 1.0), 5, 5) == "▁█▅  "
    assert sparkline([3.0, 3.0], (3.0, 3.0), 2, 2) == "▁▁"


def test_a_long_course_is_drawn_by_the_last_epoch_of_each_character() -> None:
    course = [float(n) for n in range(100)]
    assert sparkline(course, (0.0, 99.0), 100, 4) == "▂▄▆█"
    # Half as many epochs take half the room.
    assert len(sparkline(course[:50], (0.0, 99.0), 100, 4)) == 2


@pytest.mark.parametrize(("encoding", "bars"), [("utf-8", "▁▃▆█"), ("ascii", "_-+#")])
def test_curves_share_a_scale_and_need_no_unicode(encoding: str, bars: str) -> None:
    curves = Curves("val_accuracy", [("trial 0", [0.0, 0.3, 0.7, 1.0]), ("trial 1", [0.0])])
    lines = shown(curves, encoding=encoding).splitlines()
    assert lines == [
        "val_accuracy by epoch, 1 to 4, from 0 to 1:",
        f"trial 0  {bars}  1",
        f"trial 1  {bars[0]}  0",
    ]


def test_without_a_finite_value_there_is_no_curve() -> None:
    assert shown(Curves("loss", [("trial 0", [math.nan, None])])) == ""
