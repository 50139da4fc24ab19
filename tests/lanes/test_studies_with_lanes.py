"""A study with lanes: its trials share processes, and none of them tells from its result.

The trials differ in what happens to them: one stops early, one is pruned, one's loss becomes NaN, one's
factory raises. `SWEEPER_TEST_CALM` leaves that out, for what the others give without them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from databases import postgresql_database
from study_files import StudyText
from sweeps import Result, RunningCommand, command, differing, results_of, sweep, trials_in

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DefinitionChangedError, LanesError
from sweeper.records.results import TrialRecord

LANES = 3

ALONE = """objective="val_loss", epochs=4, trials=7, sampler="random", audit="off", threads=1,
    retries={"crash": 30}, nonfinite="fail", failing_alike=0"""

STUDY = StudyText(
    head="""import time
TROUBLE = not os.environ.get("SWEEPER_TEST_CALM")
PAUSE = float(os.environ.get("SWEEPER_TEST_PAUSE", "0"))
""",
    model="""
    if TROUBLE and trial.number == 3:
        raise ValueError("no model for this one")
    print(f"model of trial {trial.number}")
    """,
    rate="""(
        float("nan") if TROUBLE and trial.number == 2
        else trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    )""",
    callbacks="""*(
        [keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=100.0)]
        if TROUBLE and trial.number == 1 else []
    ), keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(PAUSE))""",
    arguments=f"{ALONE}, lanes={LANES}",
)

TROUBLED = {1, 2, 3}
"""Trials that end otherwise than the others."""


def states(trials: tuple[TrialRecord, ...]) -> dict[int, str]:
    return {trial.number: trial.state for trial in trials}


def others(results: dict[int, Result]) -> dict[int, Result]:
    return {number: each for number, each in results.items() if number not in TROUBLED}


class Together:
    """The study with its troubles, run once by one worker: three lanes in one process."""

    def __init__(self, directory: Path) -> None:
        self.file = STUDY.write(directory / "together.py")
        self.runs = directory / "runs"
        swept = sweep(self.file, self.runs, workers=1)
        self.trials = trials_in(self.runs)
        self.results = results_of(self.trials)
        self.events = swept.events


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(tmp_path_factory.mktemp("together"))


def test_lanes_share_processes_and_each_ends_by_itself(together: Together) -> None:
    assert states(together.trials) == {
        0: "complete", 1: "complete", 2: "failed", 3: "failed", 4: "complete", 5: "complete", 6: "complete",
    }  # fmt: skip
    assert len(together.results[1].epochs) < 4
    processes = Counter(trial.attempts[0].pid for trial in together.trials)
    assert max(processes.values()) >= LANES
    assert [(trial.lane, trial.lanes) for trial in together.trials[:4]] == [
        (0, LANES),
        (1, LANES),
        (2, LANES),
        (0, LANES),
    ]
    logs = together.runs.glob("small/trial-*/attempt-01/log.txt")
    said = {log.parts[-3]: log.read_text() for log in logs}
    assert "model of trial 0\n" in said["trial-00000"]
    assert "model of trial 4\n" not in said["trial-00000"]
    assert "no model for this one" in said["trial-00003"]


def test_no_result_depends_on_company_or_workers(together: Together, tmp_path: Path) -> None:
    env = {"SWEEPER_TEST_CALM": "1"}
    runs = tmp_path / "runs"
    ended = command("run", together.file, "--workers", 2, "--runs-dir", runs, cwd=tmp_path, env=env)
    assert ended.code == 0, ended.err
    calm = results_of(trials_in(runs))
    assert others(calm) == others(together.results)
    assert calm[1].epochs[:2] == together.results[1].epochs
    alone = sweep(together.file, tmp_path / "alone", isolation="inline", trials=1)
    assert results_of(alone.trials)[0] == together.results[0]


def test_a_group_killed_again_and_again_ends_as_one_that_never_was(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_TEST_PAUSE", "0.3")  # else they end before they can be killed
    runs, killed = tmp_path / "runs", []
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.1) and len(killed) < 4:
            running = [t for t in _trials(runs) if t.state == "running" and len(t.epochs) % 4]
            pids = {t.attempts[-1].pid for t in running if t.attempts[-1].pid}
            for pid in pids - set(killed):
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    sweep(together.file, runs, workers=2)
    over.set()
    killer.join()
    trials = trials_in(runs)
    assert differing(together.results, results_of(trials)) == []
    assert killed
    assert any(a.outcome == "crashed" for trial in trials for a in trial.attempts)


def test_two_workers_on_postgresql_whose_groups_are_killed_give_the_same(
    together: Together, tmp_path: Path
) -> None:
    _killed_on_postgresql(together, tmp_path, kills=2)


@pytest.mark.chaos
def test_two_workers_on_postgresql_killed_ten_times_give_the_same(
    together: Together, tmp_path: Path
) -> None:
    _killed_on_postgresql(together, tmp_path, kills=10)


def _killed_on_postgresql(together: Together, directory: Path, kills: int) -> None:
    """Kill processes of trials that train, of two commands; each time the oldest one's."""
    killed: list[int] = []
    with postgresql_database() as server, Database.open(server.url, create=False) as database:
        repository = Repository(database)
        flags = ("--storage", server.url, "--runs-dir", directory / "runs")
        run = ("run", together.file, "--workers", 1, *flags)
        with RunningCommand(*run, cwd=directory) as first:
            first.wait_for("study small")
            with RunningCommand("worker", "small", "--slots", 1, *flags, cwd=directory) as second:
                while len(killed) < kills and first.process.poll() is None:
                    time.sleep(0.2)
                    running = [t for t in repository.trials("small") if t.state == "running"]
                    pids = [t.attempts[-1].pid for t in running if t.epochs]
                    for pid in [p for p in pids if p and p not in killed][:1]:
                        killed.append(pid)
                        os.kill(pid, signal.SIGKILL)
                assert second.end() in (0, 3), second.err
            assert first.end() == 3, first.err
        trials = repository.trials("small")
    assert differing(together.results, results_of(trials)) == []
    assert killed
    assert len({a.pid for trial in trials for a in trial.attempts}) > len(killed)


def test_a_group_that_is_stopped_leaves_a_checkpoint_of_each_lane_and_goes_on(
    together: Together, tmp_path: Path
) -> None:
    words = ("run", together.file, "--workers", 1, "--runs-dir", tmp_path / "runs")
    with RunningCommand(*words, cwd=tmp_path) as running:
        running.wait_for("epoch 2/4")
        running.signal(signal.SIGTERM)
        assert running.end() == 130, running.err
    stopped = [t for t in trials_in(tmp_path / "runs") if t.state == "interrupted"]
    assert stopped
    assert all(trial.checkpoints for trial in stopped if trial.epochs)
    ended = command(*words, cwd=tmp_path)
    assert ended.code == 3, ended.err
    trials = trials_in(tmp_path / "runs")
    assert differing(together.results, results_of(trials)) == []
    assert {a.outcome for trial in trials for a in trial.attempts} <= {
        "complete",
        "failed",
        "interrupted",
    }


def _trials(runs: Path) -> tuple[TrialRecord, ...]:
    try:
        return trials_in(runs)
    except Exception:
        # The run has not made its database, or its study, yet.
        return ()


def test_a_lane_that_kills_its_process_ends_alone(together: Together, tmp_path: Path) -> None:
    dies = "*([keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: os._exit(9))] if trial.number == 4 else [])"
    study = replace(
        STUDY,
        callbacks=f"{STUDY.callbacks}, {dies}",
        arguments=STUDY.arguments.replace('"crash": 30', '"crash": 3'),
    )
    runs = tmp_path / "runs"
    sweep(study.write(tmp_path / "dying.py"), runs, workers=1)
    trials = trials_in(runs)
    assert trials[4].state == "failed"
    assert len(trials[4].attempts) == 4
    assert max(len(t.attempts) for t in trials if t.number != 4) <= 3
    expected = {n: each for n, each in together.results.items() if n != 4}
    assert differing(expected, results_of([t for t in trials if t.number != 4])) == []


FULL_DISK = """
import errno
from sweeper.checkpoint.operations import FileOperations

original = FileOperations.make_directory

def make_directory(self, path):
    if os.environ.get("SWEEPER_TEST_FULL") and "trial-00000" in str(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return original(self, path)

FileOperations.make_directory = make_directory
"""


def test_a_full_disk_for_one_lane_changes_no_other(together: Together, tmp_path: Path) -> None:
    file = replace(STUDY, head=f"{STUDY.head}\n{FULL_DISK}").write(tmp_path / "full.py")
    words = ("run", file, "--workers", 1, "--runs-dir", tmp_path / "runs")
    ended = command(*words, cwd=tmp_path, env={"SWEEPER_TEST_FULL": "1"})
    assert ended.code == 1, ended.err
    assert "No space left" in ended.err
    ended = command(*words, cwd=tmp_path)
    assert ended.code == 3, ended.err
    trials = trials_in(tmp_path / "runs")
    assert differing(together.results, results_of(trials)) == []


def test_verify_replays_a_lane_alone(together: Together) -> None:
    ended = command(
        "verify", "small", "--trial", 4, "--interrupt", "--runs-dir", together.runs,
        cwd=together.runs.parent,
    )  # fmt: skip
    assert ended.code == 0, ended.err


def test_another_number_of_lanes_is_another_study(together: Together) -> None:
    text = str(STUDY).replace(f"lanes={LANES}", "lanes=4")
    file = together.file.with_name("changed.py")
    file.write_text(text)
    with pytest.raises(DefinitionChangedError, match="lanes"):
        sweep(file, together.runs)


EVERY_BATCH = """
class EveryBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass
"""
OWN_STEP = """
class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)

keras.Sequential = Own
"""
FLIPPING = """
keras.layers.Dropout = lambda rate: keras.layers.Lambda(lambda x: __import__("tensorflow").unique(
    __import__("tensorflow").reshape(x, [-1]))[0][:1] + x)
"""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head": EVERY_BATCH, "callbacks": "EveryBatch()"}, "EveryBatch is called for every batch"),
        ({"head": OWN_STEP}, "has a train_step of its own"),
        ({"head": FLIPPING}, "gives another shape for other values"),
        ({"data": "import tensorflow as tf\nreturn Data(train=tf.data.Dataset.from_tensor_slices((x, y)).batch(8), validation=(x, y))"}, "lanes take arrays only"),
    ],
    ids=["a callback for every batch", "an own step", "an operation", "a dataset"],
)  # fmt: skip
def test_what_cannot_be_fused_is_refused_before_the_first_trial(
    changes: dict[str, str], reason: str, tmp_path: Path
) -> None:
    changes = {**changes, "head": f"{STUDY.head}\n{changes.get('head', '')}"}
    with pytest.raises(LanesError, match=reason):
        sweep(replace(STUDY, **changes).write(tmp_path / "refused.py"), tmp_path / "runs")
    assert all(not trial.epochs for trial in _trials(tmp_path / "runs"))


def test_what_trials_would_have_in_common_is_refused_by_name(tmp_path: Path) -> None:
    study = replace(
        STUDY,
        head=f"{STUDY.head}\nSEEN = []",
        callbacks="keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: SEEN.append(epoch))",
        arguments=STUDY.arguments.replace("trials=7", "trials=2"),
    )
    runs = tmp_path / "runs"
    sweep(study.write(tmp_path / "common.py"), runs, workers=1)
    trials = trials_in(runs)
    assert states(trials) == {0: "failed", 1: "failed"}
    assert all("SEEN changed during training" in (t.attempts[-1].error or "") for t in trials)
    assert all("lanes=" in (t.attempts[-1].error or "") for t in trials)


def test_fused_and_unfused_give_the_same_but_for_rounding(
    together: Together, tmp_path: Path
) -> None:
    file = tmp_path / "unfused.py"
    file.write_text(str(STUDY).replace(f"lanes={LANES}", "lanes=1"))
    trials = sweep(file, tmp_path / "runs", trials=2).trials
    for trial in trials:
        fused = together.results[trial.number]
        assert trial.digest != fused.digest
        for (_, mine), (_, theirs) in zip(
            results_of(trials)[trial.number].epochs, fused.epochs, strict=True
        ):
            assert mine == pytest.approx(theirs, rel=1e-4)
