"""One study is the same sweep wherever its workers are, whoever of them is lost, and can be stopped."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml
from databases import postgresql_database
from forked_programs import PROGRAM
from study_files import PACED, StudyText
from sweeps import (
    LIMIT,
    RunningCommand,
    command,
    database_url,
    differing,
    python,
    results_of,
    sweep,
    trials_in,
)
from test_pruned_sweeps import pruned_study, prunings
from waiting import until

from sweeper.db.database import Database
from sweeper.db.repository import Repository

ROOT = Path(__file__).parents[2]


def workers_of(url, study):
    with Database.open(url, create=False) as database:
        return Repository(database).workers(study)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A directory with the file of the study, and what a single worker made of it in ``one``."""
    directory = tmp_path_factory.mktemp("pruned")
    file = pruned_study(5, startup=1).write(directory / "pruned.py")
    sweep(file, directory / "one", workers=1, isolation="inline")
    return directory


@pytest.fixture
def alone(pruned):
    """The trials of a single worker."""
    trials = trials_in(pruned / "one", "pruned")
    assert len(trials) == 5
    assert prunings(trials), "a sweep without prunings would show nothing of them"
    return trials


def is_the_same_sweep(trials, alone):
    return (
        differing(results_of(trials), results_of(alone)) == []
        and prunings(trials) == prunings(alone)
        and all(t.digest for t in trials)
    )


def held_trial(url):
    """The process of the study's one running trial, stopped: its worker runs no other meanwhile."""
    with Database.open(url, create=False) as database:
        [trial] = Repository(database).trials("pruned")
    process = psutil.Process(trial.attempts[-1].pid)
    process.suspend()
    return process


def test_two_worker_processes_on_postgresql_give_the_same_sweep(pruned, alone, tmp_path):
    with postgresql_database() as server:
        flags = ("--storage", server.url, "--runs-dir", tmp_path)
        run = ("run", pruned / "pruned.py", "--workers", 1, *flags)
        with RunningCommand(*run, cwd=tmp_path) as first:
            first.wait_for("trial 0", "attempt 1 started")
            process = held_trial(server.url)
            second_command = ("worker", "pruned", "--slots", 1, *flags)
            with RunningCommand(*second_command, cwd=tmp_path) as second:
                second.wait_for("trial 1", "attempt 1 started")
                process.resume()
                assert second.end() == 0, second.err
            assert first.end() == 0, first.err
        with Database.open(server.url, create=False) as database:
            trials = Repository(database).trials("pruned")
        assert [w.slots for w in workers_of(server.url, "pruned")] == [1, 1]
    assert "complete" in second.err, "both ran trials, or nothing is shown"
    assert "complete" in first.err
    assert is_the_same_sweep(trials, alone)


NOTEBOOK = """
{study}

if __name__ == "__main__":
    results = study.run(engine="dask", workers=1, runs_dir={runs!r})
    print([t.state for t in results.trials])
"""


@pytest.mark.parametrize("source", [pytest.param("file", marks=pytest.mark.whole), "no file"])
def test_worker_processes_on_dask_give_the_same_sweep(source, pruned, alone, tmp_path, here):
    """From no file as from a notebook: the definition is in one process only, and has to travel."""
    workers = 2 if source == "file" else 1
    file = pruned / "pruned.py"
    runs = tmp_path / "runs"
    if source == "file":
        run = ("run", file, "--engine", "dask", "--workers", workers)
        ended = command(*run, "--runs-dir", runs, cwd=tmp_path)
    else:
        alone = alone[:2]
        text = file.read_text().replace("from __future__ import annotations", "")
        text = text.replace("trials=5", "trials=2")
        notebook = NOTEBOOK.format(study=text, runs=str(runs))
        ended = python(*PROGRAM, "-c", notebook, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert [(w.engine, w.slots, w.live) for w in workers_of(database_url(runs), "pruned")] == [
        ("dask", 1, False)
    ] * workers
    assert is_the_same_sweep(trials_in(runs, "pruned"), alone)
    lines = [line for line in ended.err.splitlines() if line.startswith("trial")]
    total = len(alone)
    assert sum("attempt 1 started" in line for line in lines) == total, "the driver tells of each"
    assert sum("attempt 1 complete" in line or "pruned value" in line for line in lines) == total
    if source == "no file":
        states = [trial.state for trial in trials_in(runs, "pruned")]
        assert ended.out.strip().splitlines()[-1] == str(states)
        by_hand = here("worker", "pruned", "--runs-dir", runs, cwd=tmp_path)
        assert by_hand.code == 2
        assert "was defined in a notebook" in by_hand.err


@pytest.mark.whole
@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_killed_driver_loses_nothing_and_another_run_follows_again(
    pruned, alone, engine, tmp_path
):
    with postgresql_database() as server:
        run = ("run", pruned / "pruned.py", "--engine", engine, "--workers", 2)
        run = (*run, "--runs-dir", tmp_path, "--storage", server.url)
        with RunningCommand(*run, cwd=tmp_path) as driver:
            assert driver.wait_for("trial 0 epoch"), driver.err
            assert until(lambda: len(workers_of(server.url, "pruned")) == 2, LIMIT), driver.err
            # The cluster that the driver made dies with it: it has the engine's processes below it.
            driver.kill_group()
        hosts = workers_of(server.url, "pruned")
        assert [(w.engine, w.live) for w in hosts] == [(engine, True)] * 2
        # Stopped for a moment, so that there is something left to follow.
        processes = [psutil.Process(host.pid) for host in hosts]
        for process in processes:
            process.suspend()
        with RunningCommand(*run, cwd=tmp_path) as second:
            assert second.wait_for("2 of 2 workers are already running"), second.err
            for process in processes:
                process.resume()
            assert second.end() == 0, second.err
            assert "attempt 1 started" in second.err, "it tells what happens again"
        with Database.open(server.url, create=False) as database:
            trials = Repository(database).trials("pruned")
        assert {len(t.attempts) for t in trials} == {1}, "no trial noticed anything"
        assert len(workers_of(server.url, "pruned")) == 2
    assert is_the_same_sweep(trials, alone)


LONG = StudyText(
    name="long",
    callbacks=PACED,
    arguments='objective="val_loss", epochs=4000, trials=3, sampler="random", audit="off"',
)

HANGING = StudyText(
    name="hanging",
    head="""
        import time

        class Hanging(keras.callbacks.Callback):
            def __init__(self, directory):
                super().__init__()
                self.directory = directory

            def on_epoch_end(self, epoch, logs=None):
                (self.directory / "here").touch()
                time.sleep(600)
        """,
    callbacks="Hanging(trial.directory)",
    arguments='objective="val_loss", epochs=1, trials=1, sampler="random", audit="off"',
)


def test_stop_drains_run_and_worker_from_another_process_and_a_resume_goes_on(tmp_path, here):
    file = LONG.write(tmp_path / "long.py")
    flags = ("--runs-dir", tmp_path / "runs")
    with RunningCommand("run", file, "--workers", 1, *flags, cwd=tmp_path) as run:
        assert run.wait_for("trial 0 epoch"), run.err
        with RunningCommand("worker", "long", "--slots", 1, *flags, cwd=tmp_path) as worker:
            assert worker.wait_for("trial 1 epoch"), worker.err
            stopped = here("stop", "long", *flags, cwd=tmp_path)
            assert stopped.code == 0, stopped.err
            assert "0 of 3 trials finished, 2 to be resumed" in stopped.out
            assert stopped.err.strip() == f"sweeper resume long --runs-dir {tmp_path / 'runs'}"
            assert (worker.end(), run.end()) == (130, 130), worker.err + run.err
    trials = trials_in(tmp_path / "runs", "long")
    for trial in trials:
        [attempt] = trial.attempts
        assert attempt.outcome == "interrupted"
        assert attempt.end_step == trial.checkpoints[-1].step, "drained: nothing is done again"
    heeds = here("worker", "long", "--unless-stopped", *flags, cwd=tmp_path)
    assert heeds.code == 0
    assert "was asked to stop" in heeds.err
    assert [len(t.attempts) for t in trials_in(tmp_path / "runs", "long")] == [1, 1]
    with RunningCommand("resume", "long", "--workers", 1, *flags, cwd=tmp_path) as resumed:
        assert resumed.wait_for("trial 0 attempt 2 resumed"), resumed.err


def test_stop_now_kills_what_cannot_stop(tmp_path, here):
    file = HANGING.write(tmp_path / "hanging.py")
    flags = ("--runs-dir", tmp_path / "runs")
    with RunningCommand("run", file, "--workers", 1, *flags, cwd=tmp_path) as run:
        assert until((tmp_path / "runs/hanging/trial-00000/files/here").exists, LIMIT)
        drained = here("stop", "hanging", "--wait", 1, *flags, cwd=tmp_path)
        assert drained.code == 1
        assert "1 is still running: a worker on " in drained.err
        assert "stop hanging --now" in drained.err
        assert run.process.poll() is None, "the control: asking politely does not end it"
        killed = here("stop", "hanging", "--now", *flags, cwd=tmp_path)
        assert killed.code == 0, killed.err
        assert run.end() == 130, run.err
    [trial] = trials_in(tmp_path / "runs", "hanging")
    [attempt] = trial.attempts
    assert (attempt.outcome, attempt.error) == ("interrupted", "killed on request")
    assert attempt.pid is not None
    assert not psutil.pid_exists(attempt.pid)


@pytest.mark.whole
def test_a_terminated_worker_kills_after_its_grace_and_refuses_a_file_that_is_another(
    tmp_path, here
):
    file = HANGING.write(tmp_path / "hanging.py")
    flags = ("--runs-dir", tmp_path / "runs")
    mark = tmp_path / "runs/hanging/trial-00000/files/here"
    with RunningCommand("run", file, *flags, cwd=tmp_path) as run:
        assert until(mark.exists, LIMIT)
        run.kill_group()
    mark.unlink()
    with RunningCommand("worker", "hanging", "--grace", 1, *flags, cwd=tmp_path) as worker:
        assert until(mark.exists, LIMIT)
        worker.signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.end() == 130, worker.err
        assert 1 <= time.monotonic() - began < 20
    assert "the 1 s of grace are over" in worker.err
    [trial] = trials_in(tmp_path / "runs", "hanging")
    assert [a.outcome for a in trial.attempts] == ["lost", "interrupted"]

    moved = file.rename(tmp_path / "moved.py")
    missing = here("worker", "hanging", *flags, cwd=tmp_path)
    assert missing.code == 2
    assert "not on this machine" in missing.err
    moved.write_text(moved.read_text() + "\nanother = 1\n")
    other = here("worker", "hanging", "--source", moved, *flags, cwd=tmp_path)
    assert other.code == 2
    assert "differs from the file of study 'hanging'" in other.err
    unknown = here("worker", "hangin", *flags, cwd=tmp_path)
    assert (unknown.code, "'hanging'" in unknown.err) == (2, True), unknown.err


def test_an_engine_that_cannot_be_used_is_refused_before_anything_starts(tmp_path, here):
    file = StudyText().write(tmp_path / "small.py")
    for words, says in (
        (("--engine", "slurm"), "local, dask or ray"),
        (("--engine", "dask", "--isolation", "inline"), "engine='local'"),
        (("--engine-address", "tcp://x:1"), "add --engine dask"),
    ):
        ended = here("run", file, *words, cwd=tmp_path)
        assert (ended.code, says in ended.err) == (2, True), ended.err
    assert not (tmp_path / "runs").exists()


def test_the_ready_examples_are_what_slurm_kubernetes_and_the_command_read(
    tmp_path, here, monkeypatch
):
    script = ROOT / "examples" / "slurm" / "worker.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    notice = int(_slurm_options(script)["signal"].removeprefix("TERM@"))
    [srun] = [line for line in script.read_text().splitlines() if line.startswith("srun")]
    assert _grace(srun) < notice

    manifest = ROOT / "examples" / "kubernetes" / "worker-job.yaml"
    job, budget = yaml.safe_load_all(manifest.read_text())
    assert (job["kind"], budget["kind"]) == ("Job", "PodDisruptionBudget")
    pod = job["spec"]["template"]
    [container] = pod["spec"]["containers"]
    words = " ".join(container["command"] + container["args"])
    assert _grace(words) < pod["spec"]["terminationGracePeriodSeconds"]
    assert budget["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [130] in [rule.get("onExitCodes", {}).get("values") for rule in rules]

    monkeypatch.setenv("COLUMNS", "200")
    help_text = here("worker", "--help", cwd=tmp_path).out
    for file in (script, manifest):
        for option in ("--slots", "--grace", "--unless-stopped"):
            assert option in file.read_text()
            assert option in help_text


def _slurm_options(script):
    lines = script.read_text().splitlines()
    pairs = (line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --"))
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _grace(text):
    return int(text.split("--grace ", 1)[1].split(maxsplit=1)[0])
