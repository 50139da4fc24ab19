"""Another process of a trial: it trains what the first one trains, and does as that one decides.

It runs the same factories and the same loop. It has no worker, writes no checkpoint and takes no
signal: the first process sees to all that, and says what is to be done.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

from sweeper.definition import StudyDefinition
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.framing import MessagePipe
from sweeper.execution.protocol.messages import Assignment, Failed
from sweeper.execution.protocol.peers import ClusterJoined
from sweeper.execution.protocol.signals import release_signals, signals_to_stop
from sweeper.execution.trial.devices import configure_tensorflow, limit_memory, show_devices
from sweeper.execution.trial.peers.following import Following, PeerLink
from sweeper.training.replicas.multiworker import ClusterTask


def serve_peer(
    channel: Channel,
    states: MessagePipe,
    load: Callable[[Assignment], StudyDefinition],
    failure_of: Callable[[BaseException], Failed],
) -> None:
    """Take part in one trial in this process, which is the trial's alone.

    Args:
        channel: To the first process.
        states: To it as well, for this process's state.
        load: Gives the study's definition, once TensorFlow is configured.
        failure_of: What the first process is sent of an error.
    """
    # Not ignored, which programs that the trial starts would inherit.
    for number in signals_to_stop():
        signal.signal(number, lambda *_: None)
    release_signals()
    link = PeerLink(channel)
    try:
        assignment = link.next(Assignment)
        joined = link.next(ClusterJoined)
        link.task = ClusterTask(joined.index, joined.addresses)
        show_devices(assignment.devices)
        limit_memory(assignment.memory_limit)
        configure_tensorflow(threads=assignment.threads, deterministic=assignment.deterministic)
        definition = load(assignment)
        from sweeper.execution.trial.peers.training import follow_trial

        follow_trial(definition, replace(assignment, source=None), Following(link, states))
    except BaseException as error:
        link.send(failure_of(error))
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
