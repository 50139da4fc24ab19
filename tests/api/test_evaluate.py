"""`sweeper evaluate` on real trials: kept checkpoints are measured, ranked and stored, or named."""

import json
import shutil
import signal
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sweeps import RunningCommand, database_url, sweep, trials_in

from sweeper import Data, load_study
from sweeper.api.evaluating import EvaluationRequest, Evaluator, evaluate_study, held_out_data
from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.errors import SweeperError, UsageError
from sweeper.records.events import Notice
from sweeper.run.launch.launchers import open_launcher
from sweeper.run.launch.trial_process import Launcher
from sweeper.run.options import WorkerOptions
from sweeper.run.protocol.messages import StudySource

STUDY = """
from pathlib import Path

import keras
import numpy as np

from sweeper import Data, Keep, Study

numbers = np.random.default_rng(7)
x = numbers.normal(size=(120, 8)).astype("float32")
y = numbers.integers(0, 3, 120)


def build_model(trial):
    width = 8
    if trial.number == 2:
        width = int((Path(__file__).parent / "width.txt").read_text())
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(width, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(trial.suggest_float("rate", 1e-3, 1e-1, log=True)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        run_eagerly=trial.number != 1,
    )
    return model


def load_data(trial):
    size = trial.suggest_categorical("batch_size", [8])
    test = None if (Path(__file__).parent / "without.txt").exists() else (x[100:], y[100:])
    return Data(train=(x[:16], y[:16]), validation=(x[60:76], y[60:76]), test=test, batch_size=size)


study = Study(
    name="small", model=build_model, data=load_data, objective="val_loss", epochs=4, trials=3,
    sampler="random", keep=Keep(last=9), audit="off", threads=1,
)
"""

OTHER = """
import time

from sweeper import Data
from small import x, y


def validated(trial):
    return Data(validation=(x[60:76], y[60:76]), batch_size=trial.params["batch_size"])


def misfitting(trial):
    return Data(test=(x[:, :5], y))


def varying(trial):
    return Data(test=(x[trial.number % 2 :], y[trial.number % 2 :]))


def slow(trial):
    if trial.number:
        time.sleep(600)
    return Data(test=(x, y))


def nothing(trial):
    return (x, y)


split = Data(test=(x, y), batch_size=7)
empty = Data(train=(x, y))
"""

EXPORT = "the best is trial {0.trial} at step {0.step}; its model: sweeper export small --trial "


@dataclass(frozen=True)
class Ran:
    """The study, run once and never touched again, and what starts its processes."""

    directory: Path
    launcher: Launcher

    @property
    def file(self):
        return self.directory / "small.py"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    directory = tmp_path_factory.mktemp("evaluated")
    (directory / "small.py").write_text(STUDY)
    (directory / "other.py").write_text(OTHER)
    (directory / "width.txt").write_text("8")
    source = StudySource("target", str(directory / "small.py"), "small")
    sweep(directory / "small.py", directory / "runs", workers=1, isolation="inline")
    with open_launcher(source, "auto", pytest.fail) as (launcher, _):
        yield Ran(directory, launcher)


@dataclass
class Copy:
    """The study's database and files, to be changed."""

    ran: Ran
    runs: Path
    notices: list[str] = field(default_factory=list)

    def execute(self, statement, *values):
        with sqlite3.connect(self.runs / "sweeper.db") as database:
            assert database.execute(statement, values).rowcount > 0

    def data(self, name):
        return f"{self.ran.directory / 'other.py'}:{name}"

    def evaluate(self, trial=None, *, data=None, metric=None, direction=None):
        url = database_url(self.runs)
        with Database.open(url, create=False) as database:
            repository = Repository(database)
            settings = StudySettings.from_json(repository.study("small").definition)
            request = EvaluationRequest(
                study="small",
                options=WorkerOptions(2, url, self.runs),
                listener=self._listen,
                trial=trial,
                data=held_out_data(data),
                metric=metric,
                direction=direction,
            )
            return Evaluator(request, repository).run(settings, self.ran.launcher)

    def stored(self):
        return [record for trial in trials_in(self.runs) for record in trial.evaluations]

    def checkpoints(self, number):
        return sorted(
            (self.runs / f"small/trial-{number:05d}").glob("attempt-*/checkpoints/step-*")
        )

    def _listen(self, event):
        if isinstance(event, Notice):
            self.notices.append(event.message)


@pytest.fixture
def copy(ran, tmp_path):
    shutil.copytree(ran.directory / "runs", tmp_path / "runs")
    copy = Copy(ran, tmp_path / "runs")
    where = (str(ran.directory), str(tmp_path))
    copy.execute("UPDATE sweeper_checkpoints SET path = replace(path, ?, ?)", *where)
    return copy


def test_every_kept_checkpoint_is_measured_ranked_stored_and_shown(copy, ran, capsys, monkeypatch):
    """The whole command, its JSON, and what ``show`` has of it afterwards."""
    monkeypatch.chdir(copy.runs.parent)
    assert main(["evaluate", "small", "--json", "--workers", "2"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert [row["rank"] for row in rows] == list(range(1, 13))
    assert sorted((row["trial"], row["step"], row["epoch"]) for row in rows) == [
        (trial, epoch * 2, epoch) for trial in range(3) for epoch in (1, 2, 3, 4)
    ]
    losses = [row["metrics"]["loss"] for row in rows]
    assert losses == sorted(losses)
    assert all(row["metrics"].keys() == {"loss", "accuracy"} for row in rows)
    assert {row["data"] for row in rows} == {"test"}
    assert all((copy.runs / row["path"]).is_dir() for row in rows)
    stored = copy.stored()
    assert sorted(losses) == sorted(record.metrics["loss"] for record in stored)
    best = next(r for r in stored if r.metrics["loss"] == losses[0])
    assert EXPORT.format(best) in printed.err.splitlines()[-1]

    assert main(["show", "small", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["evaluations"]
    assert [each["step"] for each in shown] == [2, 4, 6, 8]
    assert shown == [record.to_json() for record in stored if record.trial == 0]
    assert main(["show", "small", "0"]) == 0
    assert "step  after epoch  kept" in capsys.readouterr().out


@pytest.mark.whole
def test_on_the_validation_data_each_gives_what_its_epoch_recorded(copy):
    """Bit for bit; and of two data sets each keeps its own, as does each measurement its newest."""
    found = copy.evaluate(0, data=copy.data("validated"))
    epochs = {
        (trial.number, record.epoch + 1): record.metrics
        for trial in trials_in(copy.runs)
        for record in trial.epochs
    }
    for record in found.records:
        recorded = epochs[record.trial, record.epoch]
        assert record.metrics == {name: recorded[f"val_{name}"] for name in ("loss", "accuracy")}
    assert len(copy.stored()) == 4
    first = {r.evaluated_at for r in copy.stored()}
    copy.evaluate(0)
    assert len(copy.stored()) == 8
    again = copy.evaluate(0, data=copy.data("validated"))
    assert [r.metrics for r in again.records] == [r.metrics for r in found.records]
    newest = {r.evaluated_at for r in copy.stored() if r.data != "test"}
    assert len(copy.stored()) == 8
    assert min(newest) > max(first)


def test_a_checkpoint_that_is_damaged_gone_or_another_is_named_left_and_passed_over(copy):
    damaged, gone, other, _ = copy.checkpoints(0)
    tensors = damaged / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    shutil.rmtree(gone)
    copy.execute("UPDATE sweeper_checkpoints SET digest = 'ab' WHERE step = 6")
    found = copy.evaluate(0)
    assert [record.step for record in found.records] == [8]
    first, second, third = sorted(found.not_evaluated)
    assert f"trial 0, checkpoint of step 2 was not evaluated: {tensors} is damaged" in first
    assert f"trial 0, checkpoint of step 4 was not evaluated: it is no longer at {gone}" in second
    assert third.startswith("trial 0, checkpoint of step 6 ")
    assert f"{other} has the digest " in third
    assert "the database lists ab" in third
    assert damaged.is_dir()
    assert {first, second, third} <= set(copy.notices)


def test_trials_that_cannot_be_evaluated_are_named_and_the_others_go_on(
    copy, ran, capsys, monkeypatch
):
    """One without a checkpoint, and one whose model is another by now, or cannot be built."""
    copy.execute(
        "DELETE FROM sweeper_checkpoints WHERE trial_id = "
        "(SELECT id FROM sweeper_trials WHERE number = 1)"
    )
    width = ran.directory / "width.txt"
    try:
        width.write_text("5")
        found = copy.evaluate()
        assert {record.trial for record in found.records} == {0}
        without, misfit = found.not_evaluated
        assert without == "trial 1 was not evaluated: it has no kept checkpoint"
        assert misfit.startswith(
            f"trial 2 was not evaluated: RestoreError: checkpoint {copy.checkpoints(2)[0]} does not fit the model of the "
            "factory (nothing was assigned):\n  model variable 1 ("
        )
        width.unlink()
        monkeypatch.chdir(copy.runs.parent)
        assert main(["evaluate", "small", "--top", "1"]) == 3
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == 3
        assert "trial 2 was not evaluated: FileNotFoundError: " in printed.err
    finally:
        width.write_text("8")


def test_the_python_twin_gives_the_ranked_records_of_a_trial_that_is_not_finished(copy, ran):
    copy.execute("UPDATE sweeper_trials SET result = NULL WHERE number = 1")
    x, y = np.ones((50, 8), "float32"), np.arange(50) % 3

    def data(trial):
        return Data(test=(x, y), batch_size=trial.params["batch_size"])

    study = load_study(ran.file)
    places = {"storage": database_url(copy.runs), "runs_dir": copy.runs}
    said = []
    found = study.evaluate(
        trial=1, data=data, metric="accuracy", workers=2, listener=said.append, **places
    )
    values = [record.metrics["accuracy"] for record in found]
    assert values == sorted(values, reverse=True)
    assert [record.trial for record in found] == [1, 1, 1, 1]
    assert {record.data for record in found} == {data.__qualname__}
    results = study.results(**places)
    assert sorted(results.evaluations, key=repr) == sorted(found, key=repr)


@pytest.mark.whole
def test_trials_that_are_measured_on_other_data_are_ranked_and_that_is_said(copy):
    found = copy.evaluate(data=copy.data("varying"))
    assert len(found.records) == 12
    assert len({record.data_digest for record in found.records}) == 2
    warning = next(notice for notice in copy.notices if "differ between trials" in notice)
    head, _, groups = warning.partition(": ")
    assert head == "the held-out data differ between trials"
    assert sorted(groups.split("; ")) == ["trials 0, 2", "trials 1"]


def test_ctrl_c_ends_it_with_what_was_measured_kept(copy):
    words = ("evaluate", "small", "--workers", "1", "--data", copy.data("slow"))
    with RunningCommand(*words, cwd=copy.runs.parent) as running:
        assert running.wait_for("trial 0: 4 of 4 checkpoints evaluated")
        running.signal(signal.SIGINT)
        assert running.end() == 130
        last = running.lines[-1]
    assert last == (
        "interrupted: the evaluation was stopped; the finished evaluations are stored\n"
    )
    assert {record.trial for record in copy.stored()} == {0}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("other.py", "'other.py' names no function"),
        ("nowhere.py:data", "nowhere.py does not exist"),
        ("data/held-out.csv:data", "held-out.csv is not a Python file"),
        (3, "data=3"),
    ],
)
def test_data_of_a_wrong_form_are_refused_before_anything_starts(data, said):
    with pytest.raises(UsageError, match=said):
        held_out_data(data)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "other.py has no name 'missing'; it has .* slow, nothing"),
        ("nothing", "other.py:nothing returned a builtins.tuple"),
        ("empty", "other.py:empty returned a Data with neither test nor validation"),
    ],
)
def test_a_file_that_gives_no_data_ends_the_evaluation(copy, name, said):
    with pytest.raises(UsageError, match=said):
        copy.evaluate(0, data=copy.data(name))
    assert copy.stored() == []


def test_data_that_do_not_fit_the_model_are_told_by_trial(copy):
    with pytest.raises(SweeperError) as refused:
        copy.evaluate(1, data=copy.data("misfitting"))
    text = str(refused.value)
    assert "trial 1 was not evaluated: DataError: Data(test=…) does not fit" in text
    assert "expected axis -1 of input shape to have value 8" in text


def test_a_study_without_test_data_says_how_to_give_some(copy, ran):
    without = ran.directory / "without.txt"
    without.touch()
    places = {"storage": database_url(copy.runs), "runs_dir": copy.runs}
    try:
        with pytest.raises(UsageError, match=r"no test data; .*--data FILE:NAME, or evaluate"):
            load_study(ran.file).evaluate(trial=0, listener=lambda _: None, **places)
    finally:
        without.unlink()


def test_a_study_whose_file_was_changed_is_not_evaluated(copy, ran):
    changed = copy.runs.parent / "small.py"
    changed.write_text(STUDY.replace("Dropout(0.2)", "Dropout(0.3)"))
    where = (str(ran.file), str(changed))
    copy.execute("UPDATE sweeper_studies SET source = replace(source, ?, ?)", *where)
    with pytest.raises(SweeperError) as changed_since:
        evaluate_study(
            EvaluationRequest(
                "small", WorkerOptions(1, database_url(copy.runs), copy.runs), lambda _: None
            )
        )
    assert "differs from the file of study 'small'" in str(changed_since.value)
