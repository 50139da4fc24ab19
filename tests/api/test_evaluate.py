"""`sweeper evaluate` on real trials: kept checkpoints are measured, ranked and stored, or named."""

import json
import shutil
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sweeps import RunningCommand, database_url, notices_of, sweep, trials_in

from sweeper import Data, Study, SweeperError, UsageError, load_study
from sweeper.cli.main import main

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


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the study was run, once; never touched again."""
    directory = tmp_path_factory.mktemp("evaluated")
    (directory / "small.py").write_text(STUDY)
    (directory / "other.py").write_text(OTHER)
    (directory / "width.txt").write_text("8")
    sweep(directory / "small.py", directory / "runs", workers=1, isolation="inline")
    return directory


@dataclass
class Copy:
    """The study's database and files, to be changed."""

    study: Study
    file: Path
    runs: Path
    events: list = field(default_factory=list)

    @property
    def notices(self):
        return notices_of(self.events)

    @property
    def places(self):
        return {"storage": database_url(self.runs), "runs_dir": self.runs}

    def execute(self, statement, *values):
        with closing(sqlite3.connect(self.runs / "sweeper.db")) as database, database:
            assert database.execute(statement, values).rowcount > 0

    def data(self, name):
        return f"{self.file.with_name('other.py')}:{name}"

    def evaluate(self, trial=None, **options):
        arguments = {"workers": 2, "listener": self.events.append, **self.places, **options}
        return self.study.evaluate(trial=trial, **arguments)

    def stored(self):
        return [record for trial in trials_in(self.runs) for record in trial.evaluations]

    def checkpoints(self, number):
        return sorted(
            (self.runs / f"small/trial-{number:05d}").glob("attempt-*/checkpoints/step-*")
        )


@pytest.fixture(scope="module")
def study(directory):
    return load_study(directory / "small.py")


@pytest.fixture
def copy(study, directory, tmp_path, monkeypatch):
    shutil.copytree(directory / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    copy = Copy(study, directory / "small.py", tmp_path / "runs")
    where = (str(directory), str(tmp_path))
    copy.execute("UPDATE sweeper_checkpoints SET path = replace(path, ?, ?)", *where)
    return copy


def test_every_kept_checkpoint_is_measured_ranked_stored_and_shown(copy, capsys):
    """The whole command, its JSON, and what ``show`` has of it afterwards."""
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
    records = copy.stored()
    assert sorted(losses) == sorted(record.metrics["loss"] for record in records)
    best = next(r for r in records if r.metrics["loss"] == losses[0])
    export = f"the best is trial {best.trial} at step {best.step}; its model: sweeper export small --trial "
    assert export in printed.err.splitlines()[-1]

    assert main(["show", "small", "0", "--json"]) == 0
    evaluations = json.loads(capsys.readouterr().out)["evaluations"]
    assert [evaluation["step"] for evaluation in evaluations] == [2, 4, 6, 8]
    assert evaluations == [record.to_json() for record in records if record.trial == 0]
    assert main(["show", "small", "0"]) == 0
    assert "step  after epoch  kept" in capsys.readouterr().out


@pytest.mark.whole
def test_on_the_validation_data_each_gives_what_its_epoch_recorded(copy):
    """Bit for bit; and of two data sets each keeps its own, as does each measurement its newest."""
    records = copy.evaluate(0, data=copy.data("validated"))
    epochs = {
        (trial.number, record.epoch + 1): record.metrics
        for trial in trials_in(copy.runs)
        for record in trial.epochs
    }
    for record in records:
        recorded = epochs[record.trial, record.epoch]
        assert record.metrics == {name: recorded[f"val_{name}"] for name in ("loss", "accuracy")}
    first = {r.evaluated_at for r in copy.stored()}
    assert len(copy.stored()) == 4
    copy.evaluate(0)
    assert len(copy.stored()) == 8
    repeated = copy.evaluate(0, data=copy.data("validated"))
    assert [r.metrics for r in repeated] == [r.metrics for r in records]
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
    assert [record.step for record in copy.evaluate(0)] == [8]
    first, second, third = sorted(text for text in copy.notices if "not evaluated" in text)
    assert f"trial 0, checkpoint of step 2 was not evaluated: {tensors} is damaged" in first
    assert f"trial 0, checkpoint of step 4 was not evaluated: it is no longer at {gone}" in second
    assert third.startswith("trial 0, checkpoint of step 6 ")
    assert f"{other} has the digest " in third
    assert "the database lists ab" in third
    assert damaged.is_dir()


def test_trials_that_cannot_be_evaluated_are_named_and_the_others_go_on(copy, capsys):
    """One without a checkpoint, and one whose model is another by now, or cannot be built."""
    copy.execute(
        "DELETE FROM sweeper_checkpoints WHERE trial_id = "
        "(SELECT id FROM sweeper_trials WHERE number = 1)"
    )
    width = copy.file.with_name("width.txt")
    try:
        width.write_text("5")
        assert {record.trial for record in copy.evaluate()} == {0}
        without, misfit = (text for text in copy.notices if "not evaluated" in text)
        assert without == "trial 1 was not evaluated: it has no kept checkpoint"
        assert misfit.startswith(
            f"trial 2 was not evaluated: RestoreError: checkpoint {copy.checkpoints(2)[0]} does not fit the model of the "
            "factory (nothing was assigned):\n  model variable 1 ("
        )
        width.unlink()
        assert main(["evaluate", "small", "--top", "1"]) == 3
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == 3
        assert "trial 2 was not evaluated: FileNotFoundError: " in printed.err
    finally:
        width.write_text("8")


def test_the_python_twin_gives_the_ranked_records_of_a_trial_that_is_not_finished(copy):
    copy.execute("UPDATE sweeper_trials SET result = NULL WHERE number = 1")
    x = np.ones((50, 8), "float32")
    y = np.arange(50) % 3

    def data(trial):
        return Data(test=(x, y), batch_size=trial.params["batch_size"])

    records = copy.evaluate(1, data=data, metric="accuracy")
    values = [record.metrics["accuracy"] for record in records]
    assert values == sorted(values, reverse=True)
    assert [record.trial for record in records] == [1, 1, 1, 1]
    assert {record.data for record in records} == {data.__qualname__}
    results = copy.study.results(**copy.places)
    assert sorted(results.evaluations, key=repr) == sorted(records, key=repr)


@pytest.mark.whole
def test_trials_that_are_measured_on_other_data_are_ranked_and_that_is_said(copy):
    records = copy.evaluate(data=copy.data("varying"))
    assert len(records) == 12
    assert len({record.data_digest for record in records}) == 2
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
    ("data", "message"),
    [
        (lambda _: "other.py", "'other.py' names no function"),
        (lambda _: "nowhere.py:data", "nowhere.py does not exist"),
        (lambda _: "data/held-out.csv:data", "held-out.csv is not a Python file"),
        (lambda _: 3, "data=3"),
        (
            lambda copy: copy.data("missing"),
            "other.py has no name 'missing'; it has .* slow, nothing",
        ),
        (lambda copy: copy.data("nothing"), "other.py:nothing returned a builtins.tuple"),
        (
            lambda copy: copy.data("empty"),
            "other.py:empty returned a Data with neither test nor validation",
        ),
    ],
)
def test_data_of_a_wrong_form_end_the_evaluation(copy, data, message):
    with pytest.raises(UsageError, match=message):
        copy.evaluate(0, data=data(copy))
    assert copy.stored() == []


def test_data_that_do_not_fit_the_model_are_told_by_trial(copy):
    with pytest.raises(SweeperError) as refused:
        copy.evaluate(1, data=copy.data("misfitting"))
    text = str(refused.value)
    assert "trial 1 was not evaluated: DataError: Data(test=…) does not fit" in text
    assert "expected axis -1 of input shape to have value 8" in text


def test_a_study_without_test_data_says_how_to_give_some(copy):
    without = copy.file.with_name("without.txt")
    without.touch()
    try:
        with pytest.raises(UsageError, match=r"no test data; .*--data FILE:NAME, or evaluate"):
            copy.evaluate(0)
    finally:
        without.unlink()


def test_a_study_whose_file_was_changed_is_not_evaluated(copy, capsys):
    changed = copy.runs.parent / "small.py"
    changed.write_text(STUDY.replace("Dropout(0.2)", "Dropout(0.3)"))
    where = (str(copy.file), str(changed))
    copy.execute("UPDATE sweeper_studies SET source = replace(source, ?, ?)", *where)
    assert main(["evaluate", "small"]) == 2
    message = capsys.readouterr().err
    assert "differs from the file of study 'small'" in message
