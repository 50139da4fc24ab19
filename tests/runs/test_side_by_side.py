"""Work side by side: a signal is taken while it runs, whichever thread the system hands it to."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from sweeper.run.serving import run_side_by_side as run_slots
from sweeper.support.calling import run_side_by_side

LIMIT = 20.0


@pytest.fixture
def handled() -> Iterator[threading.Event]:
    """Set once this process has handled SIGUSR1, which Python does in the main thread."""
    event = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)


def main_thread_waits() -> bool:
    """Whether the main thread has come to wait for a lock, where no signal of others reaches it."""
    frame: FrameType | None = sys._current_frames()[threading.main_thread().ident or 0]
    waits = frame is not None and frame.f_code.co_filename == threading.__file__
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return waits and "start" not in names


def of_slots(work: Callable[[], None]) -> None:
    run_slots(work, 2)


def of_trials(work: Callable[[], None]) -> None:
    run_side_by_side([work, work], 2, threading.Event())


@pytest.mark.parametrize("run", [of_slots, of_trials])
def test_a_signal_that_another_thread_gets_is_handled_while_the_work_goes_on(
    run: Callable[[Callable[[], None]], None], handled: threading.Event
) -> None:
    in_time = []
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(LIMIT)
        while not main_thread_waits():
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        in_time.append(handled.wait(LIMIT))

    run(work)
    assert in_time == [True, True]


def test_the_first_error_stops_the_others_and_is_raised() -> None:
    stopping = threading.Event()

    def fail() -> bool:
        message = "broken"
        raise LookupError(message)

    with pytest.raises(LookupError, match="broken"):
        run_side_by_side([fail, lambda: stopping.wait(LIMIT)], 2, stopping)
    assert stopping.is_set()


def test_results_come_in_the_order_of_the_work() -> None:
    first = threading.Event()

    def late() -> int:
        assert first.wait(LIMIT)
        return 1

    def early() -> int:
        first.set()
        return 2

    assert run_side_by_side([late, early], 2, threading.Event()) == (1, 2)
