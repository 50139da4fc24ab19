"""Program that runs a command in a detached process and reports its exit code.

Usage: ``python -m sweeper.run.cluster.detached DESCRIPTOR COMMAND…``. A cluster that loses its
connection to a driver ends the processes that ran the driver's tasks, with all their descendants (Ray
does). A worker host needs only its `HostSpec` and the database, and must survive that. The command
inherits standard input, output and error; its exit code is written to the descriptor, as text.
"""

import contextlib
import os
import signal
import sys


def main(arguments: list[str]) -> None:
    """Start the command and exit; a forked process in a separate session waits for the command."""
    report = int(arguments[0])
    if os.fork():
        os._exit(0)
    os.setsid()
    host = os.fork()
    if host == 0:
        os.close(report)
        os.execv(arguments[1], arguments[1:])  # noqa: S606 - arguments of our own task
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # This process must not hold the command's input open after the writer has closed it.
    os.close(0)
    _, status = os.waitpid(host, 0)
    # Whoever waits for the status may be gone.
    with contextlib.suppress(OSError):
        os.write(report, str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
