"""What SIGINT and SIGTERM do to a run: nothing is running yet, or trials have to be stopped first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from sweeper.errors import Interrupted
from sweeper.events import Event, Notice

__all__ = ["Stopping", "early_termination", "stop_signals"]


class Stopping(Protocol):
    """What a signal asks to stop."""

    def drain(self) -> None:
        """Have every trial finish its step, checkpoint and stop."""
        ...

    def kill(self) -> None:
        """End the trials' processes at once."""
        ...


@contextmanager
def early_termination() -> Iterator[None]:
    """SIGTERM before the first trial (and after the last) ends the run as Ctrl-C does there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        msg = "the run was asked to stop (SIGTERM) while no trial was running"
        raise Interrupted(msg)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals(
    stopping: Stopping, tell: Callable[[Event], None], grace: float | None = None
) -> Iterator[None]:
    """SIGINT and SIGTERM: the first stops at the next step, the second kills the trials.

    Args:
        stopping: Asked to.
        tell: Told what happens.
        grace: Seconds after the first SIGTERM in which the trials may still finish their step;
            then they are killed without a second one. None waits for as long as it takes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False
    over = threading.Event()

    def kill_after_grace(seconds: float) -> None:
        if not over.wait(seconds):
            tell(Notice(f"the {seconds:g} s of grace are over: killing the trials"))
            stopping.kill()

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        del frame
        again, asked = asked, True
        said = (
            "killing the trials; each goes on from its newest checkpoint when resumed"
            if again
            else "stopping: every trial finishes its step and writes a checkpoint; once more kills"
        )
        # A handler interrupts whatever the main thread holds; locks are for another thread.
        _apart(stopping.kill if again else stopping.drain)
        _apart(lambda: tell(Notice(said)))
        if grace is not None and number == signal.SIGTERM and not again:
            _apart(lambda: kill_after_grace(grace))

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _apart(act: Callable[[], None]) -> None:
    threading.Thread(target=act, daemon=True).start()
