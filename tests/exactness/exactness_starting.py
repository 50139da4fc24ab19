"""Where the processes of the corpus come from: forked from a bare server, or from real warm ones.

The bare server has imported TensorFlow, and of the studies nothing: each process imports its study
anew, as a spawned trial does, so that one server serves every study and whatever is at module level
is fresh in each process. It has one thread and runs no op, or its children could hang.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from exactness_attempts import Start, serve
from exactness_list import StudyPart, imports_of

from sweeper.execution.launch.launchers import ForkLauncher, WarmServer
from sweeper.execution.launch.trial_process import ExitStatus, TrialProcess
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.protocol.study_source import StudySource
from sweeper.execution.trial.devices import import_tensorflow


@dataclass
class Forked:
    """A child of this process as its harness sees it."""

    channel: Channel
    pid: int
    status: ExitStatus | None = None

    def wait(self, timeout: float) -> ExitStatus | None:
        until = time.monotonic() + timeout
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = ExitStatus(os.waitstatus_to_exitcode(status))
            elif time.monotonic() > until:
                break
            else:
                time.sleep(0.002)
        return self.status

    def kill(self) -> None:
        if self.wait(0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(10)


def get_ready(groups: list[str]) -> None:
    """Import what every process needs, and what the files of ``groups`` import."""
    import_tensorflow()
    import sweeper.execution.trial.run  # noqa: F401 - so that no process has to import it
    from sweeper.inspection.code import read_keras

    read_keras()
    for name in dict.fromkeys(name for group in groups for name in imports_of(group)):
        # What is not installed here fails in the study that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    from tensorflow.python.eager import context

    assert context.context()._context_handle is None, "importing ran TensorFlow"
    assert threading.active_count() == 1, threading.enumerate()


def forked(part: StudyPart, before: str | None = None) -> Start:
    """Start the study's processes as children of this one, which is `get_ready`."""

    def start(ordered: Assignment) -> TrialProcess:
        channel, theirs = Channel.pair()
        pid = os.fork()
        if pid:
            theirs.close()
            return Forked(channel, pid)
        code = 1
        try:
            channel.close()
            serve(part, before, Channel.on(theirs.detach()), ordered)
            code = 0
        finally:
            os._exit(code)

    return start


@contextlib.contextmanager
def warm_servers(part: StudyPart) -> Iterator[Start]:
    """Start the study's processes in turn from two real warm servers, as two runs of it would."""
    source = StudySource(how="target", target=str(part.file), study=part.name)
    servers = [WarmServer(source) for _ in range(2)]
    launchers = [ForkLauncher(server) for server in servers]
    count = 0

    def start(ordered: Assignment) -> TrialProcess:
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
