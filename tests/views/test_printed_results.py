"""Results in a terminal, a notebook and pandas."""

import html
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from drawn_studies import NASTY, made, trial_record
from recorded_studies import database

from sweeper import StoredStudy, load_study
from sweeper.errors import UsageError
from sweeper.records.configurations import configurations_of
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import AuditRecord, VerificationRecord
from sweeper.records.lengths import LengthRecord, RungRecord
from sweeper.records.results import (
    EpochRecord,
    ParetoTrial,
    WorkerRecord,
    epoch_rows,
    leader_of,
    leader_text,
)

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    study = load_study("recorded", storage=database(tmp_path_factory.mktemp("r") / "s.db"))
    assert isinstance(study, StoredStudy)
    return study


def test_results_are_iterated_and_looked_up_by_a_trials_number():
    results = made("drawn", trial_record(0), trial_record(2))
    assert [trial.number for trial in results] == [0, 2]
    assert len(results) == 2
    assert results[2] is results.trials[1]
    assert results, "results without trials are results"
    assert made("none")
    for number in (1, -1):
        with pytest.raises(LookupError, match=f"'drawn' has no trial {number}; it has 0, 2"):
            results[number]


def test_a_metric_named_trial_or_epoch_takes_no_column_of_a_table():
    record = EpochRecord(epoch=3, metrics={"trial": 0.5, "epoch": 0.25})
    assert record.to_json() == {"epoch": 3, "metrics_trial": 0.5, "metrics_epoch": 0.25}
    [row] = epoch_rows([trial_record(7, epochs=(record,))])
    assert row == {"trial": 7, **record.to_json()}


def test_every_record_prints_in_one_line(stored):
    results = stored.results()
    whole = results[0]
    killed = results[1]
    failed = results[2]
    assert str(whole).startswith("trial 0 of recorded complete, value=")
    assert ", 6 epochs, 1 attempt" in str(whole)
    assert repr(whole) == f"<TrialRecord: {whole}>"
    assert ", 2 attempts" in str(killed)
    assert "trial 2 of recorded failed, value=-, " in str(failed)
    assert failed.error
    assert failed.error[:20] in str(failed)
    assert str(killed.attempts[1]).startswith("attempt 2 complete, steps 30 to ")
    status = stored.status()
    records = [
        *(record for trial in results for record in (trial, *trial.epochs, *trial.attempts)),
        *(
            record
            for trial in results
            for record in (*trial.checkpoints, *trial.audits, *trial.lengths)
        ),
        *(status, status.best, *status.trials),
        *(LengthRecord(3, 2, "pruned", None, None, None), RungRecord(2, 0.5, promoted=None)),
        ParetoTrial(1, {"score": 0.5, "speed": 2.0}, {"x": 1}),
        EvaluationRecord(1, 20, 2, "d", "test", "e", {"loss": 0.25}, NOW),
        VerificationRecord(NOW, "replay", "differs", 0, 10, "kernel", {}),
        AuditRecord(10, 20, "differs", 1.0, "kernel differs"),
        WorkerRecord("k", "host", 7, "local", 2, NOW, NOW, None, None, live=True),
    ]
    for record in records:
        line = str(record)
        assert "\n" not in line
        assert 10 < len(line) < 400, line
        assert "=None" not in line


def test_people_count_epochs_from_1_and_fields_from_0(stored):
    first = stored.results()[0].epochs[0]
    assert first.epoch == first.to_json()["epoch"] == 0
    assert str(first).startswith("epoch 1: loss=")
    record = VerificationRecord(NOW, "replay", "differs", 0, 10, "kernel", {})
    assert str(record) == "replay of 2026-01-02 03:04: differs at epoch=1 step=10 variable=kernel"


def test_a_stored_study_prints_in_one_line(stored, tmp_path):
    text = str(stored)
    assert text.startswith("recorded: 12 of 12 trials finished (10 complete, 1 pruned, 1 failed)")
    assert "best: trial 11" in text
    assert "\n" not in text
    assert len(text) < 400
    gone = replace(stored, models=replace(stored.models, storage=f"sqlite:///{tmp_path}/none.db"))
    assert str(gone).startswith("recorded: not found in sqlite:///")


def test_a_notebook_shows_what_is_printed_and_names_are_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    results = made("drawn", *(trial_record(number, params={NASTY: NASTY}) for number in range(40)))
    markup = results._repr_html_()
    assert "<img" not in markup
    assert "&lt;img" in markup
    lines = html.unescape(markup).removesuffix("</pre>").splitlines()
    assert len(lines) == 33
    assert lines[0].endswith(str(results).splitlines()[0])
    assert lines[2].split() == str(results).splitlines()[2].split()
    assert "and 10 more" in lines[-1]


def test_none_is_a_parameters_value_and_a_trial_without_a_value_has_it_of_no_epoch():
    failed = trial_record(1, state="failed", value=None, params={"dropout": None})
    results = made("drawn", trial_record(0, value_of="restored weights", params={}), failed)
    assert "dropout=None" in str(failed)
    assert str(results).splitlines()[-1].split() == ["1", "failed", "-", "-", "None", "1", "1"]


def test_trials_epochs_and_attempts_are_data_frames(stored):
    results = stored.results()
    frame = results.to_dataframe().set_index("trial")
    assert frame.loc[1, "attempts"] == 2
    assert frame.loc[1, "resumed_at_steps"] == [30]
    assert frame.loc[0, "resumed_at_steps"] == []
    assert frame.loc[1, "seconds"] >= 0
    assert NASTY in frame.loc[2, "error"]
    assert frame.loc[0, "seed"] == 1000
    epochs = results.to_dataframe("epochs")
    assert list(epochs.columns) == ["trial", "epoch", "loss", "score"]
    assert list(epochs[epochs.trial == 1].epoch) == [0, 1, 2, 3, 4, 5]
    attempts = results.to_dataframe("attempts")
    assert list(attempts[attempts.trial == 1].outcome) == ["crashed", "complete"]
    assert str(attempts.started_at.dtype).startswith("datetime64")
    with pytest.raises(UsageError, match="'trials', 'epochs', 'attempts'"):
        results.to_dataframe("steps")


def test_reading_results_imports_no_plotly(tmp_path):
    script = (
        "import sys, sweeper; from sweeper.records.results import StudyResults, StudyStatus; "
        "str(StudyResults(StudyStatus('s', 1))); print('plotly' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_a_mean_is_called_the_mean_of_its_configuration():
    trials = [
        trial_record(n, value=v, params={"x": n // 2}) for n, v in enumerate((0.1, 0.2, 0.4, 0.8))
    ]
    configurations = configurations_of(trials, "maximize", {"repeats": 2})
    results = made("means", *trials, best=leader_of(configurations), configurations=configurations)
    assert str(results.status.best).startswith("configuration 1, mean=0.6 x=1")
    assert "trial 3 of means complete, mean=0.6 of configuration 1," in str(results.best)
    assert "value=0.8," in str(results[3])
    assert "best: configuration 1 with mean" in leader_text(
        replace(results.status, configurations=())
    )


def test_trials_with_the_best_ones_parameters_are_shown_with_their_mean():
    trials = [trial_record(n, value=v, params={"x": 1}) for n, v in enumerate((0.5, 0.7, 0.9))]
    results = made("twins", *trials, trial_record(3, value=0.9, params={"x": 1}, reuses=2))
    sentence = "trial 2 and 3 others have these parameters: mean 0.7 of 3 trainings"
    assert sentence in leader_text(results.status)
