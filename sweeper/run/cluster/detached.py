"""Run a command in a detached process, and report how it ended to whoever still wants to know.

Usage: ``python -m sweeper.run.cluster.detached DESCRIPTOR COMMAND…``. A cluster that loses sight of a
driver ends the processes that ran its tasks, and everything that descends from them (Ray does). A
worker host has its orders and the database, and needs neither. Standard input, output and error
are the command's; its exit code is written to the descriptor, as text.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main(arguments: list[str]) -> None:
    """Start the command and leave; what stays waits for it in a session of its own."""
    report = int(arguments[0])
    if os.fork():
        os._exit(0)
    os.setsid()
    host = os.fork()
    if host == 0:
        os.close(report)
        os.execv(arguments[1], arguments[1:])  # noqa: S606 - the words that our own task gave
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The command's own input must end when its giver closes it.
    os.close(0)
    _, status = os.waitpid(host, 0)
    with contextlib.suppress(OSError):
        os.write(report, str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
