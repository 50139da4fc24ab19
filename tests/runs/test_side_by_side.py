"""Slots side by side: what ends one ends all at a checkpoint, and a signal is taken meanwhile."""

import signal
import sys
import threading
import time

import pytest
from scripted_trials import finish, scripted_sweep, train_until_stopped

from sweeper.records.events import AttemptStarted, EpochFinished


def main_thread_waits():
    """Whether the main thread has come to wait for a lock, where no signal of others reaches it."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    waits = frame is not None and frame.f_code.co_filename == threading.__file__
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return waits and "start" not in names


def test_a_signal_that_another_thread_gets_is_handled_while_the_trials_go_on(tmp_path):
    """Python handles it in the main thread, whichever thread the system hands it to."""
    in_time = []
    both = threading.Barrier(2)
    handled = threading.Event()

    def train(trial):
        both.wait(20)
        while not main_thread_waits():
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        in_time.append(handled.wait(20))
        return finish(trial)

    handler = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    try:
        with scripted_sweep(tmp_path, {None: train}, trials=2) as sweep:
            sweep.serve(2)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert in_time == [True, True]


def test_a_single_slot_runs_in_the_callers_thread_where_a_debugger_is(tmp_path):
    threads = set()
    with scripted_sweep(tmp_path, {}) as sweep:
        sweep.context.listener = lambda _event: threads.add(threading.current_thread())
        sweep.serve()
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("kind", [AttemptStarted, EpochFinished])
def test_a_listener_that_fails_ends_the_run_with_every_trial_at_a_checkpoint(tmp_path, kind):
    """As under ``sweeper run … | head``: the pipe is closed once head has seen enough."""
    both = threading.Barrier(2, timeout=30)
    killed = []

    def train(trial):
        trial.begin()
        both.wait()
        trial.end_epoch(0, step=3, loss=1.0)
        trial.wait_for_stop()
        killed.append(trial.killed.is_set())
        return trial.stop_here(5)

    def hear(event):
        if isinstance(event, kind) and event.trial == 0:
            events.append(event)
            raise BrokenPipeError(32, "Broken pipe")

    events = []
    script = train if kind is EpochFinished else train_until_stopped
    with scripted_sweep(tmp_path, {None: script}, trials=2) as sweep:
        sweep.context.listener = hear
        sweep.serve(2)
        attempts = [a for trial in sweep.trials for a in trial.attempts]
    assert isinstance(sweep.error, BrokenPipeError)
    assert len(events) == 1, "who has raised is told nothing more"
    # The other trial may have been claimed and not begun.
    begun = [a for a in attempts if a.error != "stopped before it began"]
    assert {(a.outcome, a.end_step) for a in begun} == {("interrupted", 5)}, attempts
    if kind is EpochFinished:
        assert len(attempts) == 2
        assert killed == [False, False]


def test_a_slots_own_error_stops_the_others_at_a_checkpoint_before_it_is_raised(tmp_path):
    started = threading.Event()

    def train(trial):
        trial.begin()
        started.set()
        trial.wait_for_stop()
        time.sleep(0.2)
        return trial.stop_here(5)

    with scripted_sweep(tmp_path, {None: train}, trials=2) as sweep:
        launch = sweep.launcher.launch

        def refuse(assignment):
            if assignment.number == 1:
                assert started.wait(30)
                raise RuntimeError("a bug in a launcher")
            return launch(assignment)

        sweep.launcher.launch = refuse
        with pytest.raises(RuntimeError, match="a bug in a launcher"):
            sweep.serve(2)
        assert sweep.outcomes(0) == ["interrupted"]
        assert sweep.trials[0].attempts[0].end_step == 5
