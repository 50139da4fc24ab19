"""`sweeper dashboard` as the process that a user starts."""

from contextlib import contextmanager

from sweeps import RunningCommand


@contextmanager
def running_dashboard(*words, cwd, port=0):
    """Run `sweeper dashboard` until the block ends; it is given, and the URL that it printed."""
    with RunningCommand("dashboard", *words, "--port", port, cwd=cwd) as running:
        url = running.process.stdout.readline().strip()
        assert url, running.err
        yield running, url
