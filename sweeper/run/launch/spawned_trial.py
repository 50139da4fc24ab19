"""Spawned trial process: a new Python that imports TensorFlow and the study, and runs one trial.

Signals to stop are blocked from its start until the trial begins.
"""

from __future__ import annotations

import os
import sys

from sweeper.errors import ExecutionError
from sweeper.run.launch.sources import import_study
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource
from sweeper.run.trial.devices import import_tensorflow
from sweeper.run.trial.link import failure_before_trial, worker_is_gone
from sweeper.run.trial.process import serve_trial
from sweeper.support.processes import die_with_parent


def main(arguments: list[str]) -> None:
    """Entry: ``python -m sweeper.run.launch.spawned_trial DESCRIPTOR``."""
    die_with_parent()
    channel = Channel.on(int(arguments[0]))
    try:
        import_tensorflow()
        assignment, source = _receive_assignment(channel)
        sys.argv = [source.target]
    except EOFError:
        worker_is_gone()
    except Exception as error:
        channel.send(failure_before_trial(error))
        os._exit(0)
    serve_trial(channel, assignment, lambda: import_study(source))
    # Threads that the trial's code left running must not keep the process alive after its last message.
    os._exit(0)


def _receive_assignment(channel: Channel) -> tuple[Assignment, StudySource]:
    received = channel.receive()
    if not isinstance(received, Assignment) or received.source is None:
        msg = f"expected an assignment with the study's source, got {received!r}"
        raise ExecutionError(msg)
    return received, received.source


if __name__ == "__main__":
    main(sys.argv[1:])
