"""The study on choosing a checkpoint, run as it stands."""

import json
from pathlib import Path

import pytest
from sweeps import command


@pytest.mark.whole
def test_many_checkpoints_are_kept_each_for_a_reason_and_the_best_on_held_out_data_is_named(
    tmp_path,
):
    trials = 4
    study = Path(__file__).parents[2] / "studies" / "checkpoint_choice.py"

    def printed(*words):
        result = command(*words, "--json", cwd=tmp_path)
        assert result.code == 0, result.err
        return json.loads(result.out)

    printed("run", study, "--trials", trials)
    rows = printed("evaluate", "checkpoint-choice")
    assert len(rows) > 5 * trials
    assert {row["trial"] for row in rows} == set(range(trials))
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    best = rows[0]
    assert best["metrics"]["accuracy"] > 0.9
    trial = printed("show", "checkpoint-choice", best["trial"])
    epochs = {epoch["epoch"] + 1: epoch for epoch in trial["epochs"]}
    lowest = min(epochs.values(), key=lambda epoch: epoch["val_loss"])
    for evaluation in trial["evaluations"]:
        epoch = epochs[evaluation["epoch"]]
        candidate = epoch["loss"] < epoch["val_loss"] < 0.15
        assert candidate or epoch is lowest or epoch["epoch"] == max(epochs) - 1
        assert evaluation["step"] == 20 * evaluation["epoch"]
