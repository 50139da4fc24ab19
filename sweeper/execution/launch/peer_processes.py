"""How the other processes of a trial come to be: children of its first one, forked or fresh Pythons.

They come as the trial's first process itself did. A forked one forks them, before it has run anything
or has a thread; one that was started from nothing starts them from nothing. They die with the first,
and are killed with it: all that a trial starts is below its first process.

Run as a program it is one of those that are started from nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from sweeper.definition import StudyDefinition
from sweeper.errors import ExecutionError
from sweeper.execution.launch.output import log_of_process, log_to
from sweeper.execution.launch.sources import load_source
from sweeper.execution.launch.trial_process import ExitStatus
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.framing import MessagePipe
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.protocol.signals import signals_held, signals_to_stop
from sweeper.execution.trial.devices import import_tensorflow
from sweeper.execution.trial.peers.member import PeerProcess
from sweeper.execution.trial.prctl import die_with_parent
from sweeper.execution.trial.process import failure_of
from sweeper.training.replicas.multiworker import processes_of

_LOOK = 0.01


def other_processes(definition: StudyDefinition, assignment: Assignment) -> int:
    """How many processes the trial has beside its first one.

    What is only rehearsed, measured or exported has none.
    """
    alone = assignment.rehearsal or assignment.evaluation or assignment.export
    return 0 if alone else processes_of(definition.strategy) - 1


def fork_peers(
    definition: StudyDefinition, assignment: Assignment, close: Callable[[], None]
) -> list[PeerProcess]:
    """Fork the trial's other processes; to be called while this one has run nothing.

    Args:
        definition: The study's, which they have as this process has it.
        assignment: The trial.
        close: Closes, in each of them, what only this process holds.

    Raises:
        ExecutionError: The system gives no process.
    """
    peers: list[PeerProcess] = []
    for index in range(1, other_processes(definition, assignment) + 1):
        channel, theirs = Channel.pair()
        own_states, their_states = socket.socketpair()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise _no_process(index, error) from error
        if pid:
            theirs.close()
            their_states.close()
            peers.append(
                PeerProcess(pid, channel, MessagePipe(own_states), _Child(pid).describe_end)
            )
            continue
        try:
            die_with_parent()
            if os.getppid() == parent:
                for each in peers:
                    each.channel.close()
                    each.states.close()
                channel.close()
                own_states.close()
                close()
                log_to(log_of_process(assignment.log, index))
                _serve(Channel.on(theirs.detach()), MessagePipe(their_states), lambda _: definition)
        finally:
            os._exit(0)
    return peers


def start_peers(definition: StudyDefinition, assignment: Assignment) -> list[PeerProcess]:
    """Start the trial's other processes as Pythons that have imported nothing.

    Args:
        definition: The study's.
        assignment: The trial; it says where they load the definition from.

    Raises:
        ExecutionError: The system gives no process.
    """
    peers: list[PeerProcess] = []
    for index in range(1, other_processes(definition, assignment) + 1):
        channel, theirs = Channel.pair()
        own_states, their_states = socket.socketpair()
        ends = (theirs.fileno(), their_states.fileno())
        words = [sys.executable, "-P", "-m", __name__, str(os.getpid()), *map(str, ends)]
        try:
            with (
                open(log_of_process(assignment.log, index), "ab") as log,  # noqa: PTH123 - bytes
                signals_held(),
            ):
                process = subprocess.Popen(words, pass_fds=ends, stdout=log, stderr=log)
        except OSError as error:
            raise _no_process(index, error) from error
        finally:
            theirs.close()
            their_states.close()
        peers.append(
            PeerProcess(
                process.pid, channel, MessagePipe(own_states), _Child(process.pid).describe_end
            )
        )
        # Its end is waited for by its id alone.
        process.returncode = 0
    return peers


class _Child:
    def __init__(self, pid: int) -> None:
        self._pid = pid

    def describe_end(self, patience: float) -> str:
        """How it ended, after waiting for it for so many seconds."""
        until = time.monotonic() + patience
        while True:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                return ExitStatus(None).describe()
            if pid:
                return ExitStatus(os.waitstatus_to_exitcode(status)).describe()
            if time.monotonic() > until:
                return "closed its pipe to the others"
            time.sleep(_LOOK)


def _no_process(index: int, error: OSError) -> ExecutionError:
    msg = f"process {index} of the trial could not be started: {error}; use fewer workers, or free memory"
    return ExecutionError(msg)


def main(arguments: list[str]) -> None:
    """Entry: ``python -m sweeper.execution.launch.peer_processes PARENT CHANNEL STATES``."""
    die_with_parent()
    parent, channel, states = map(int, arguments)
    for number in signals_to_stop():
        signal.signal(number, lambda *_: None)
    if os.getppid() == parent:
        import_tensorflow()
        _serve(Channel.on(channel), MessagePipe(socket.socket(fileno=states)), _loaded)
    # What the trial's code leaves running must not keep a process alive that has had its say.
    os._exit(0)


def _serve(
    channel: Channel, states: MessagePipe, load: Callable[[Assignment], StudyDefinition]
) -> None:
    # What it imports has threads, and the process that starts trials, which has none, imports this.
    from sweeper.execution.trial.peers.serving import serve_peer

    serve_peer(channel, states, load, failure_of)


def _loaded(assignment: Assignment) -> StudyDefinition:
    if assignment.source is None:
        msg = "the assignment names no source of the study"
        raise ExecutionError(msg)
    from sweeper.training.randomness.seeds import IMPORT_SEED, seed_everything

    seed_everything(IMPORT_SEED)
    return load_source(assignment.source)


if __name__ == "__main__":
    main(sys.argv[1:])
