"""The reading verbs: JSON exactly as the contract has it, CSV, names made safe."""

import csv
import io
import math

import pytest
from drawn_studies import attempt, trial_record

from sweeper.db.database import Database
from sweeper.records.printing import finite_json
from sweeper.records.results import EpochRecord

STATUS_KEYS = [
    "study", "objective", "direction", "target", "complete", "running", "interrupted", "paused",
    "pruned", "failed", "waiting", "best", "audited", "trials",
    "configurations", "confirmed",
]  # fmt: skip
SHOW_KEYS = [
    "study", "number", "state", "params", "value", "seed", "digest", "epochs", "attempts",
    "checkpoints", "verification", "audits", "files", "code", "output_only", "evaluations", "rungs",
    "lengths",
]  # fmt: skip
ATTEMPT_KEYS = [
    "number", "outcome", "start_step", "end_step", "host", "pid", "started_at", "ended_at", "error",
]  # fmt: skip


def test_json_is_the_contracts(call, reader):
    answer = call("status", "digits", "--json")
    assert answer.code == 0
    assert list(answer.json) == STATUS_KEYS
    assert answer.json["best"] == {
        "number": 1,
        "value": 0.91,
        "params": {"learning_rate": 0.02, "optimizer": "rmsprop"},
    }
    assert call("ls", "--json").json == [answer.json]
    trial = call("show", "digits", "0", "--json").json
    assert list(trial) == SHOW_KEYS
    assert trial["epochs"] == [{"epoch": 0, "loss": 0.5, "val_accuracy": 0.9}]
    assert list(trial["attempts"][0]) == ATTEMPT_KEYS
    assert trial["attempts"][0]["started_at"] == "2026-01-02T03:04:05+00:00"
    assert list(trial["checkpoints"][0]) == ["step", "epoch", "digest", "bytes", "path"]
    other = call("show", "digits", "1", "--json").json
    best = call("best", "digits", "--json").json
    assert best == {**other, "configurations": [], "confirmed": []}
    comparison = call("compare", "digits", "1", "0", "--json").json
    assert comparison["differing"] == {"params": ["learning_rate"], "metrics": ["val_accuracy"]}
    assert comparison["trials"] == [other, trial]


def test_numbers_that_json_lacks_are_null_and_the_others_are_left(call, reader):
    metrics = {"loss": math.nan, "val_loss": math.inf, "accuracy": 0.5}
    reader.put(trial_record(0, epochs=(EpochRecord(0, metrics),), value=-math.inf))
    trial = call("show", "digits", "0", "--json").json
    assert trial["epochs"] == [{"epoch": 0, "loss": None, "val_loss": None, "accuracy": 0.5}]
    assert trial["value"] is None
    value = {"a": [1, True, None, "nan", 0.5], "b": {"c": (1.0,)}}
    assert finite_json(value) == {"a": [1, True, None, "nan", 0.5], "b": {"c": [1.0]}}


@pytest.mark.parametrize(("outcome", "said"), [("lost", "at most 18s"), ("crashed", "18s")])
def test_a_trials_time_is_a_bound_where_nobody_saw_an_attempts_end(call, reader, outcome, said):
    reader.put(trial_record(0, attempts=(attempt(1, outcome), attempt(2, "complete"))))
    assert f"1 epoch · {said} of work in 2 attempts" in call("show", "digits", "0").out


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_what_json_has_a_column_a_value(call, reader):
    [study] = rows(call("ls", "--csv").out)
    assert (study["objective"], study["direction"], study["complete"]) == (
        "val_accuracy", "maximize", "2",
    )  # fmt: skip
    [_, second] = rows(call("status", "digits", "--csv").out)
    assert (second["number"], second["value"], second["epoch"], second["epochs"]) == (
        "1", "0.91", "1", "3",
    )  # fmt: skip
    assert (second["params_learning_rate"], second["params_optimizer"]) == ("0.02", "rmsprop")
    assert rows(call("show", "digits", "0", "--csv").out) == [
        {"epoch": "0", "loss": "0.5", "val_accuracy": "0.9"}
    ]
    [best] = rows(call("best", "digits", "--csv").out)
    assert (best["study"], best["number"], best["digest"]) == ("digits", "1", "d" * 32)
    assert best["metrics_val_accuracy"] == "0.91"
    table = rows(call("compare", "digits", "1", "digits:0", "--csv").out)
    assert [row["number"] for row in table] == ["1", "0"]


def test_csv_leaves_empty_what_there_is_not_and_quotes_what_needs_it(call, reader):
    reader.put(
        trial_record(0, params={"a,b": 'x"y\nz'}, value=None),
        trial_record(1, params={"c": None}, value=math.nan),
    )
    [first, second] = rows(call("status", "digits", "--csv").out)
    assert (first["value"], first["params_a,b"], first["params_c"]) == ("", 'x"y\nz', "")
    assert (second["value"], second["params_c"]) == ("nan", "")


@pytest.mark.parametrize("verb", ["status", "best", "resume"])
@pytest.mark.parametrize("name", ["../secrets", "a/b", "..", "", "-x/..", "a\x00b"])
def test_a_name_that_leads_out_of_the_runs_is_refused(call, reader, verb, name):
    answer = call(verb, "--", name)
    assert (answer.code, answer.out) == (2, "")


def test_runs_dir_and_storage_lead_to_databases_and_an_empty_one_lists_no_studies(
    call, bare_directory, monkeypatch
):
    (bare_directory / "moved").mkdir()
    Database.open("sqlite:///moved/sweeper.db", create=True).close()
    assert call("ls").code == 1
    assert call("ls", "--runs-dir", "moved", "--json").json == []
    assert call("ls", "--storage", "sqlite:///moved/sweeper.db", "--json").json == []
    monkeypatch.setenv("SWEEPER_RUNS_DIR", "moved")
    assert call("ls", "--json").json == []
    assert "sweeper run FILE" in call("ls").out
