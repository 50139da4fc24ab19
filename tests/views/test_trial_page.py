"""One trial's page: counted from 1, whole numbers at 80 columns, and what is cut is said."""

import io

from rich.console import Console

from sweeper.records.results import CheckpointRecord, EpochRecord, StudyStatus, TrialRecord
from sweeper.views.verb_tables import trial_on_terminal

METRICS = [f"val_{kind}_of_the_{head}_head" for kind in ("accuracy", "loss") for head in "abcd"]


def trial_page(trial, objective=None):
    return trial_on_terminal(trial, StudyStatus("digits", 1, objective=objective or "loss"))


def shown(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def test_epochs_and_checkpoints_are_counted_alike_from_1():
    record = TrialRecord(
        "digits",
        0,
        "complete",
        {},
        0.5,
        7,
        None,
        epochs=(EpochRecord(0, {"loss": 0.75}), EpochRecord(1, {"loss": 0.5})),
        checkpoints=(CheckpointRecord(90, 2, "c" * 32, 2048, "runs/step-000000090"),),
    )
    lines = [line.split() for line in shown(trial_page(record)).splitlines()]
    assert ["1", "0.75"] in lines
    assert ["2", "0.5"] in lines
    assert ["step", "after", "epoch", "size", "digest", "path"] in lines
    assert [line for line in lines if line[:2] == ["90", "2"]]


def test_what_only_writes_is_shown_as_not_captured():
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, output_only=("tqdm.std.tqdm",))
    assert "not captured" in (page := shown(trial_page(record)))
    assert "tqdm.std.tqdm (output only)" in page
    without = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None)
    assert "not captured" not in shown(trial_page(without))


def test_many_epochs_are_cut_and_the_cut_is_said():
    epochs = tuple(EpochRecord(n, {"loss": float(n)}) for n in range(40))
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, epochs=epochs)
    text = shown(trial_page(record))
    assert "10 earlier epochs: use --json or --csv" in text
    few = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, epochs=epochs[:30])
    assert "earlier epochs" not in shown(trial_page(few))


def test_many_metrics_are_folded_and_the_objective_comes_first():
    objective = METRICS[-1]
    epochs = (EpochRecord(0, dict.fromkeys(METRICS, 0.123456)),)
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, epochs=epochs)
    text = shown(trial_page(record, objective=objective))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    [header] = [
        line
        for line in shown(trial_page(record, objective=objective), 400).splitlines()
        if line.startswith("epoch")
    ]
    assert header.split() == ["epoch", objective, *METRICS[:-1]]


def test_several_objectives_stand_by_their_names():
    record = TrialRecord("digits", 0, "complete", {}, 0.5, 7, None, values={"loss": 0.5, "f1": 1.0})
    page = shown(trial_page(record))
    assert "f1" in page
    assert "value" not in page
