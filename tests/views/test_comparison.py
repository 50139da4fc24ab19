"""Trials side by side: what differs is marked, and nothing is cut."""

import io
import math

from rich.console import Console

from sweeper.records.results import EpochRecord, TrialRecord
from sweeper.views.verb_tables import Comparison


def trial(number, study="digits", **params):
    epochs = tuple(
        EpochRecord(n, {"loss": 0.25, "val_accuracy": 0.5 + n * (number + 1) / 16})
        for n in range(4)
    )
    return TrialRecord(study, number, "complete", params, 0.5, 7, "d" * 32, epochs=epochs)


def shown(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def test_what_differs_is_marked_and_what_does_not_is_not():
    trials = [trial(0, rate=0.125, layers=3), trial(1, rate=0.25, layers=3)]
    lines = [line.split() for line in shown(Comparison(trials)).splitlines()]
    assert ["trial", "0", "trial", "1"] in lines
    assert ["*", "rate", "0.125", "0.25"] in lines
    assert ["layers", "3", "3"] in lines
    assert ["loss", "0.25", "0.25"] in lines
    assert ["*", "val_accuracy", "0.6875", "0.875"] in lines
    differing = Comparison(trials).to_json()["differing"]
    assert differing == {"params": ["rate"], "metrics": ["val_accuracy"]}


def test_one_and_true_differ_and_an_absent_parameter_differs_from_every_value():
    trials = [trial(0, a=1, b=None), trial(0, a=True)]
    assert Comparison(trials).to_json()["differing"]["params"] == ["a", "b"]
    nan = TrialRecord("d", 0, "failed", {}, None, 7, None, (EpochRecord(0, {"loss": math.nan}),))
    again = TrialRecord("d", 1, "failed", {}, None, 7, None, (EpochRecord(0, {"loss": math.nan}),))
    assert Comparison([nan, again]).to_json()["differing"]["metrics"] == []


def test_trials_of_two_studies_are_told_apart():
    text = shown(Comparison([trial(0), trial(0, "letters")]))
    assert "digits:0" in text
    assert "letters:0" in text


def test_more_trials_than_there_is_room_for_are_folded_and_not_cut():
    trials = [trial(n, optimizer="a-rather-long-choice-of-an-optimizer") for n in range(7)]
    text = shown(Comparison(trials))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    wide = shown(Comparison(trials), 400)
    assert wide.count("a-rather-long-choice-of-an-optimizer") == 7
