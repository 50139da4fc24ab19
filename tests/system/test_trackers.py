"""One run for each trial in a tracker, by the callbacks of the guide, of a trial that is killed three times."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from doc_blocks import blocks
from study_files import SHORT, TWO_STEPS
from sweeps import command, trials_in

ROOT = Path(__file__).parents[2]

DIES = """
class Dies(keras.callbacks.Callback):
    "Kills the trial right after the epochs 1, 3 and 5 were logged: once each, and in no replay."

    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        mark = Path(__file__).with_name(f"died-{self.trial.number}-{epoch}")
        if epoch in (1, 3, 5) and self.trial.run_id is not None and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""

WANDB = '''
"""What W&B keeps: a file for each run id, with its parameters and rows; a step that it has is dropped."""

import json
import os
import random
from pathlib import Path


class Run:
    def __init__(self, id, config):
        self.file = Path(__file__).with_name(f"wandb-{id}.jsonl")
        self.write({"begun": id, "config": config})
        self.unwritten = []
        self.step = sum("step" in row for row in self.rows())

    def rows(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def write(self, row):
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\\n")

    def log(self, logs, step):
        written = [*self.rows(), *self.unwritten]
        if all(row.get("step", -1) < step for row in written):
            self.unwritten.append({"step": step, **logs})
            self.write_but(1)

    def write_but(self, most):
        """It writes in the background, so a killed process loses the last row."""
        while len(self.unwritten) > most:
            self.write(self.unwritten.pop(0))

    def finish(self):
        self.write_but(0)
        self.write({"finished": True})


class Disabled:
    step = 0

    def log(self, logs, step):
        pass

    def finish(self):
        pass


def init(id, resume, config, mode, project):
    assert resume == "allow"
    random.random(), os.urandom(8)  # as for an id or a delay
    return Disabled() if mode == "disabled" else Run(id, config)
'''

MLFLOW = '''
"""What MLflow keeps: runs whose ids it chooses, with tags, parameters and every value that is logged."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

_FILE = Path(__file__).with_name("mlflow.json")
_active = None


def _runs():
    return json.loads(_FILE.read_text()) if _FILE.exists() else []


def _run(change):
    runs = _runs()
    change(runs[_active])
    _FILE.write_text(json.dumps(runs))


def search_runs(filter_string, output_format):
    return [
        SimpleNamespace(info=SimpleNamespace(run_id=number))
        for number, run in enumerate(_runs())
        if filter_string == f"tags.trial = '{run['tags']['trial']}'"
    ]


@contextlib.contextmanager
def start_run(run_id=None, tags=None):
    global _active
    runs = _runs()
    _active = len(runs) if run_id is None else run_id
    if run_id is None:
        _FILE.write_text(json.dumps([*runs, {"tags": tags, "params": {}, "rows": []}]))
    yield SimpleNamespace(info=SimpleNamespace(run_id=_active))


def log_params(params):
    _run(lambda run: run["params"].update(params))


class MlflowClient:
    def get_metric_history(self, run_id, name):
        return [SimpleNamespace(step=step) for step, logs in _runs()[run_id]["rows"] if name in logs]


def log_metrics(logs, step):
    _run(lambda run: run["rows"].append((step, logs)))
'''


def study_of_page(name):
    """A study of one trial with the callbacks of the guide."""
    page = "\n".join(
        b.text for b in blocks(ROOT / "docs/how-to/trackers.md") if b.language == "python"
    )
    return replace(
        SHORT,
        name=name,
        head=f"{page}\n{DIES}",
        data=TWO_STEPS,
        eager=True,
        callbacks="""
            trial.output_only(Wandb(trial, project="tests")),
            trial.output_only(Mlflow(trial)),
            Dies(trial),
        """,
        arguments='objective="loss", epochs=8, trials=1, audit="off", retries={"crash": 3}',
    )


def ran(directory, env=None):
    """Run the study, and verify it, which logs nothing; return the trial."""
    study_of_page("tracked").write(directory / "tracked_study.py")
    run = command("run", "tracked_study.py", "--workers", "1", cwd=directory, env=env)
    assert run.code == 0, run.err
    verified = command("verify", "tracked", "--interrupt", cwd=directory, env=env)
    assert verified.code == 0, verified.out + verified.err
    [trial] = trials_in(directory / "runs", "tracked")
    assert [attempt.outcome for attempt in trial.attempts] == ["crashed"] * 3 + ["complete"]
    return trial


def test_a_trial_that_was_killed_three_times_is_one_run_with_each_epoch_once(tmp_path):
    for module, text in (("wandb.py", WANDB), ("mlflow.py", MLFLOW)):
        (tmp_path / module).write_text(text)
    trial = ran(tmp_path)
    losses = [(epoch.epoch, epoch.metrics["loss"]) for epoch in trial.epochs]

    [file] = tmp_path.glob("wandb-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    starts = [row for row in rows if "begun" in row]
    assert len(starts) == 4, "without the id there would be a run for each"
    assert all(row["config"] == trial.params for row in starts)
    assert [(row["step"], row["loss"]) for row in rows if "step" in row] == losses
    assert rows[-1] == {"finished": True}

    [run] = json.loads((tmp_path / "mlflow.json").read_text())
    assert run["params"] == trial.params
    assert [(step, logs["loss"]) for step, logs in run["rows"]] == losses


@pytest.mark.whole
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("wandb", "mlflow"))),
    reason="wandb and mlflow are not installed: `bash tests/run --all` does",
)
def test_the_real_trackers_have_one_run_for_a_trial_that_was_killed_three_times(tmp_path):
    env = {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    trial = ran(tmp_path, env)
    directories = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(directories) == 4
    assert len({path.name.split("-", 3)[-1] for path in directories}) == 1, "one run's attempts"
    [history] = (tmp_path / "mlruns").glob("*/*/metrics/loss")
    rows = [line.split() for line in history.read_text().splitlines()]
    assert [(int(step), float(loss)) for _, loss, step in rows] == [
        (epoch.epoch, epoch.metrics["loss"]) for epoch in trial.epochs
    ]
    [rate] = (tmp_path / "mlruns").glob("*/*/params/learning_rate")
    assert float(rate.read_text()) == trial.params["learning_rate"]
