"""Asking a run to stop, insisting, and killing what trials depend on."""

import contextlib
import os
import shlex
import signal

import psutil
import pytest
from study_files import StudyText
from sweeps import RunningCommand, differing, results_of, trials_in
from waiting import until

ENDLESS = StudyText(
    name="endless",
    head='''
    import tensorflow as tf


    class Endless(keras.layers.Layer):
        """Takes hours for a step, inside one call of a graph."""

        def build(self, shape):
            self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

        def call(self, x):
            self.calls.assign(self.calls + 1)
            most = tf.where(tf.convert_to_tensor(self.calls) > FREE, 10**12, 0)
            rounds = tf.while_loop(lambda i: i < most, lambda i: (i + 1,), (tf.zeros((), "int64"),))
            return x + tf.cast(rounds[0], x.dtype)


    Dense = keras.layers.Dense


    def endless_at_first(units, **arguments):
        if "activation" in arguments:
            return Dense(units, **arguments)
        return keras.Sequential([Endless(), Dense(units)])


    keras.layers.Dense = endless_at_first
    FREE = 0
    ''',
    arguments='objective="val_loss", epochs=1, trials=1, sampler="random", audit="off"',
)
"""A study whose only trial is in its first step for hours."""

GONE = 20.0
"""Seconds within which a process that should end itself must have."""


def processes_of(runs):
    """The process that forks trials, and the one that the database in ``runs`` knows as the only trial's."""

    def pid():
        return trials_in(runs, "endless")[0].attempts[-1].pid

    assert until(pid, GONE), "the trial has no process"
    trial = psutil.Process(pid())
    server = trial.parent()
    assert server is not None
    return server, trial


def is_stopped(process):
    """Whether it is; a process that has ended since is stopped enough."""
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def group_of(process):
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


@pytest.fixture
def endless(tmp_path):
    return ENDLESS.write(tmp_path / "endless.py")


def test_a_stop_before_the_first_step_ends_the_trial_at_once(endless):
    """It has nothing to save, so it is not waited for, even inside one call of TensorFlow."""
    runs = endless.parent / "runs"
    with RunningCommand("run", endless, "--runs-dir", runs, cwd=endless.parent) as run:
        run.wait_for("attempt 1 started")
        run.signal(signal.SIGINT)
        assert run.end() == 130, run.err
    [attempt] = trials_in(runs, "endless")[0].attempts
    assert (attempt.outcome, attempt.end_step, attempt.error) == ("interrupted", 0, None)
    assert trials_in(runs, "endless")[0].checkpoints == ()
    assert "Traceback" not in run.err


def test_a_stop_and_a_termination_cost_nothing_and_say_how_to_go_on(whole, tmp_path):
    runs = tmp_path / "runs"
    words = ["run", str(whole.file), "--workers", "2", "--runs-dir", str(runs)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with RunningCommand(*words, cwd=tmp_path) as run:
            run.wait_for("trial", "epoch")
            run.signal(number)
            assert run.end() == 130, run.err
        assert "Traceback" not in run.err
        resume = run.err.strip().splitlines()[-1].strip()
        assert resume == f"sweeper resume small --runs-dir {runs} --workers 2"
        words = shlex.split(resume)[1:]
        trials = trials_in(runs)
        assert {t.state for t in trials} <= {"interrupted", "complete"}
        for trial in trials:
            if trial.state == "interrupted":
                last = trial.attempts[-1]
                assert last.outcome == "interrupted"
                steps = {checkpoint.step for checkpoint in trial.checkpoints}
                # An attempt that has trained no step has nothing to keep.
                assert last.end_step in {*steps, 0, None}

    last = max(whole.results)
    with RunningCommand(*words, cwd=tmp_path) as run:
        # It begins when another ends, and so has most of its epochs before it.
        run.wait_for(f"trial {last} epoch")
        attempt = next(t for t in trials_in(runs) if t.number == last).attempts[-1]
        assert attempt.pid is not None
        os.kill(attempt.pid, signal.SIGTERM)
        assert run.end() == 0, run.err
    trials = trials_in(runs)
    stopped = next(a for a in trials[last].attempts if a.pid == attempt.pid)
    next_attempt = trials[last].attempts[stopped.number]
    assert stopped.outcome == "interrupted", "SIGTERM to one trial's process stops that one"
    assert next_attempt.start_step == stopped.end_step
    assert differing(whole.results, results_of(trials)) == []


def test_a_second_interrupt_kills_a_trial_that_cannot_stop(endless):
    runs = endless.parent / "runs"
    # A trial that has trained a step has something to save.
    endless.write_text(endless.read_text().replace("FREE = 0", "FREE = 1"))
    with RunningCommand("run", endless, "--runs-dir", runs, cwd=endless.parent) as run:
        run.wait_for("at step 1")
        trial = psutil.Process(trials_in(runs, "endless")[0].attempts[-1].pid)
        run.signal(signal.SIGINT)
        assert run.wait_for("stopping")
        assert run.process.poll() is None, "the first only asks"
        run.signal(signal.SIGINT)
        assert run.end() == 130, run.err
    assert not trial.is_running()
    [attempt] = trials_in(runs, "endless")[0].attempts
    assert (attempt.outcome, attempt.error) == ("interrupted", "killed on request")
    assert "Traceback" not in run.err


def test_a_trial_whose_worker_is_killed_ends_itself_in_the_middle_of_a_step(endless):
    runs = endless.parent / "runs"
    with RunningCommand("run", endless, "--runs-dir", runs, cwd=endless.parent) as run:
        run.wait_for("attempt 1 started")
        server, trial = processes_of(runs)
        first = server.parent()
        family = {first, *first.children(recursive=True)}
        assert family > {first, server, trial}, "the process that watches the worker"
        server.suspend()  # one that stands still cannot help the trial to its end
        first.suspend()
        run.signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs(family, timeout=GONE)
        assert alive == []
        assert len(gone) == len(family)
        assert run.end() == -signal.SIGKILL
    [attempt] = trials_in(runs, "endless")[0].attempts
    assert attempt.outcome == "lost"
    assert attempt.ended_at is None, "nobody could write down how it ended"


@pytest.mark.whole
def test_a_pause_of_everything_changes_nothing(whole, tmp_path):
    """SIGSTOP and SIGCONT, as a laptop's lid or a batch system sends them, twice in a run."""
    runs = tmp_path / "runs"
    words = ("run", whole.file, "--workers", 2, "--runs-dir", runs)
    with RunningCommand(*words, cwd=whole.file.parent) as run:
        for trial in (0, 2):
            assert run.wait_for(f"trial {trial} attempt 1 started"), run.err
            attempt = next(t for t in trials_in(runs) if t.number == trial).attempts[-1]
            assert attempt.pid is not None
            # The command's, and that of its forked server and the trials. In neither is the
            # server's watcher, which is to be awake when everything else stands still.
            groups = (run.process.pid, os.getpgid(attempt.pid))
            family = [p for p in psutil.process_iter() if group_of(p) in groups]
            assert {run.process.pid, attempt.pid} < {p.pid for p in family}
            for group in groups:
                os.killpg(group, signal.SIGSTOP)
            assert until(lambda family=family: all(map(is_stopped, family)), GONE)
            for group in groups:
                os.killpg(group, signal.SIGCONT)
        assert run.end() == 0
    trials = trials_in(runs, "small")
    assert differing(whole.results, results_of(trials)) == []
    assert [len(trial.attempts) for trial in trials] == [1] * len(trials)
