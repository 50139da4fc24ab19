"""Where the output of a trial's processes goes: the attempt's log."""

from __future__ import annotations

import os
import sys


def log_to(path: str) -> None:
    """Send this process's output to a log, whose directory the worker has made."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
