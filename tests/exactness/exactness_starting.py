"""Where the processes of the corpus come from: forked programs, or real fork servers.

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

from sweeper.run.launch.launchers import ForkLauncher, WarmServer
from sweeper.run.launch.server_process import HASH_SEED
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import StudySource


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


@contextlib.contextmanager
def warm_servers(part):
    """Start the study's processes in turn from two real fork servers, as two runs of it would."""
    source = StudySource(how="target", target=str(part.file), study=part.name)
    servers = [WarmServer(source) for _ in range(2)]
    launchers = [ForkLauncher(server) for server in servers]
    count = 0

    def start(ordered):
        nonlocal count
        count += 1
        return launchers[count % 2].launch(ordered)

    try:
        for server in servers:
            server.loaded()
        yield start
    finally:
        for launcher in launchers:
            launcher.close()


@contextlib.contextmanager
def starts(part, before=None):
    """Start the study's processes as it asks for."""
    with (
        warm_servers(part)
        if part.own_server
        else contextlib.nullcontext(forked(part, before)) as start
    ):
        yield start
