"""Where the processes of the corpus come from: forked programs.

Each forked program imports its study anew, as a spawned trial does, so that one service serves every
study and whatever is at module level is fresh in each process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass

import exactness_attempts
from forked_programs import PROGRAM

from sweeper.run.launch.server_process import HASH_SEED
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.channel import Channel


@dataclass
class Forked:
    """A forked program as its harness sees it."""

    channel: Channel
    process: subprocess.Popen[bytes]

    @property
    def pid(self):
        return self.process.pid

    def wait(self, timeout):
        try:
            return ExitStatus(self.process.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()


def forked(part, before=None):
    """Start the study's processes as forked programs."""

    def start(ordered):
        channel, theirs = Channel.pair()
        words = [exactness_attempts.__file__, str(theirs.fileno()), part.group, part.name]
        process = subprocess.Popen(
            [sys.executable, *PROGRAM, *words, before or ""],
            env={**os.environ, **HASH_SEED},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        # One that dies at once is seen as every other death is.
        with contextlib.suppress(OSError):
            channel.send(ordered)
        return Forked(channel, process)

    return start
