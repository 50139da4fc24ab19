"""A trial's page and trials side by side: counted from 1, whole numbers at 80 columns, cuts are said."""

import math

from drawn_studies import shown

from sweeper.records.results import CheckpointRecord, EpochRecord, StudyStatus, TrialRecord
from sweeper.views.verb_tables import Comparison, trial_on_terminal

METRICS = [f"val_{kind}_of_the_{head}_head" for kind in ("accuracy", "loss") for head in "abcd"]


def page(width=80, objective="loss", **parts):
    trial = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, **parts)
    return shown(trial_on_terminal(trial, StudyStatus("digits", 1, objective=objective)), width)


def test_epochs_and_checkpoints_are_counted_alike_from_1():
    text = page(
        epochs=(EpochRecord(0, {"loss": 0.75}), EpochRecord(1, {"loss": 0.5})),
        checkpoints=(CheckpointRecord(90, 2, "c" * 32, 2048, "runs/step-000000090"),),
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "0.75"] in lines
    assert ["2", "0.5"] in lines
    assert ["step", "after", "epoch", "size", "digest", "path"] in lines
    assert [line for line in lines if line[:2] == ["90", "2"]]


def test_what_only_writes_is_shown_as_not_captured():
    text = page(output_only=("tqdm.std.tqdm",))
    assert "not captured" in text
    assert "tqdm.std.tqdm (output only)" in text
    assert "not captured" not in page()


def test_many_epochs_are_cut_and_the_cut_is_said():
    epochs = tuple(EpochRecord(n, {"loss": float(n)}) for n in range(40))
    assert "10 earlier epochs: use --json or --csv" in page(epochs=epochs)
    assert "earlier epochs" not in page(epochs=epochs[:30])


def test_many_metrics_are_folded_and_the_objective_comes_first():
    epochs = (EpochRecord(0, dict.fromkeys(METRICS, 0.123456)),)
    text = page(objective=METRICS[-1], epochs=epochs)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    wide = page(400, METRICS[-1], epochs=epochs)
    [header] = [line for line in wide.splitlines() if line.startswith("epoch")]
    assert header.split() == ["epoch", METRICS[-1], *METRICS[:-1]]


def test_several_objectives_stand_by_their_names():
    text = page(values={"loss": 0.5, "f1": 1.0})
    assert "f1" in text
    assert "value" not in text


def trial(number, study="digits", **params):
    epochs = tuple(
        EpochRecord(n, {"loss": 0.25, "val_accuracy": 0.5 + n * (number + 1) / 16})
        for n in range(4)
    )
    return TrialRecord(study, number, "complete", params, 0.5, 7, "d" * 32, epochs=epochs)


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
