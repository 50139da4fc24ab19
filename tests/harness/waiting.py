"""Waiting for what other threads and processes do."""

import time

import psutil


def until(reached, seconds=30.0):
    """Wait until something is reached, for so long; whether it is."""
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    return reached()


def live(pid):
    """Whether the process runs, or is stopped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
