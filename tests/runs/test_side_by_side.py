"""Work side by side: a signal is taken while it runs, whichever thread the system hands it to."""

import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from scripted_trials import scripted_sweep, train_until_stopped

from sweeper.records.events import AttemptStarted, EpochFinished
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.messages import EpochsEnded, Started, StoppedHere
from sweeper.run.serving import run_slots
from sweeper.run.worker.slot import serve_slot
from sweeper.support.calling import run_side_by_side

LIMIT = 20.0


@pytest.fixture
def handled():
    """Set once this process has handled SIGUSR1, which Python does in the main thread."""
    event = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)


def main_thread_waits():
    """Whether the main thread has come to wait for a lock, where no signal of others reaches it."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    waits = frame is not None and frame.f_code.co_filename == threading.__file__
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return waits and "start" not in names


def of_slots(work):
    run_slots(work, 2, threading.Event())


def of_trials(work):
    run_side_by_side([work, work], 2, threading.Event())


@pytest.mark.parametrize("run", [of_slots, of_trials])
def test_a_signal_that_another_thread_gets_is_handled_while_the_work_goes_on(run, handled):
    in_time = []
    both = threading.Barrier(2)

    def work():
        both.wait(LIMIT)
        while not main_thread_waits():
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        in_time.append(handled.wait(LIMIT))

    run(work)
    assert in_time == [True, True]


def test_the_first_error_stops_the_others_and_is_raised():
    stopping = threading.Event()

    def fail():
        message = "broken"
        raise LookupError(message)

    with pytest.raises(LookupError, match="broken"):
        run_side_by_side([fail, lambda: stopping.wait(LIMIT)], 2, stopping)
    assert stopping.is_set()


def test_the_engine_returns_when_all_slots_have_though_one_raised_at_once():
    ended = []
    first = threading.Event()

    def slot():
        if not first.is_set():
            first.set()
            msg = "of one slot"
            raise ValueError(msg)
        time.sleep(0.2)
        ended.append(threading.current_thread().name)

    with pytest.raises(ValueError, match="of one slot"):
        run_slots(slot, 3, threading.Event())
    assert len(ended) == 2, "the engine returned while slots were running"


def test_a_single_slot_runs_in_the_callers_thread_where_a_debugger_is():
    ran = []
    run_slots(lambda: ran.append(threading.current_thread()), 1, threading.Event())
    assert ran == [threading.current_thread()]


@pytest.mark.parametrize("kind", [AttemptStarted, EpochFinished])
def test_a_listener_that_fails_ends_the_run_with_every_trial_at_a_checkpoint(tmp_path, kind):
    """As under ``sweeper run … | head``: the pipe is closed once head has seen enough."""
    both = threading.Barrier(2, timeout=30)
    killed = []

    def train(trial):
        trial.say(Started(0, 0, 1))
        both.wait()
        trial.say(EpochsEnded((EpochRecord(0, {"loss": 1.0}),), step=3, seconds=1.0))
        trial.wait_for_stop()
        killed.append(trial.killed.is_set())
        trial.say(StoppedHere(step=5))
        return 0

    def hear(event):
        if isinstance(event, kind) and event.trial == 0:
            events.append(event)
            raise BrokenPipeError(32, "Broken pipe")

    events = []
    script = train if kind is EpochFinished else train_until_stopped
    with scripted_sweep(tmp_path, {None: script}, trials=2) as sweep:
        sweep.context.listener = hear
        run_slots(lambda: serve_slot(sweep.context), 2, sweep.context.stopping)
        attempts = [a for trial in sweep.trials for a in trial.attempts]
    assert isinstance(sweep.context.error, BrokenPipeError)
    assert len(events) == 1, "who has raised is told nothing more"
    assert {(a.outcome, a.end_step) for a in attempts} == {("interrupted", 5)}, attempts
    if kind is EpochFinished:
        assert len(attempts) == 2
        assert killed == [False, False]


def test_a_slots_own_error_stops_the_others_at_a_checkpoint(tmp_path):
    with scripted_sweep(tmp_path, {None: train_until_stopped}, trials=2) as sweep:
        launch = sweep.launcher.launch
        started = threading.Event()

        def refuse(assignment):
            if assignment.number == 1:
                assert started.wait(30)
                msg = "a bug in a launcher"
                raise RuntimeError(msg)
            trial = launch(assignment)
            started.set()
            return trial

        sweep.context.runner = SimpleNamespace(isolation="spawn", launch=refuse)
        with pytest.raises(RuntimeError, match="a bug in a launcher"):
            run_slots(lambda: serve_slot(sweep.context), 2, sweep.context.stopping)
        assert sweep.outcomes(0) == ["interrupted"]
        assert sweep.trials[0].attempts[0].end_step == 5
