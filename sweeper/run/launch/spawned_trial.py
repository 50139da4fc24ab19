"""Spawned trial process: a new Python that imports TensorFlow and the study, and runs one trial.

Signals to stop are blocked from its start until the trial begins.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import cast

from pydantic import TypeAdapter

from sweeper.run.launch.sources import import_study
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource
from sweeper.run.trial.devices import import_tensorflow
from sweeper.run.trial.link import failure_before_trial
from sweeper.run.trial.process import serve_trial
from sweeper.support.processes import die_with_parent


def main(arguments: list[str]) -> None:
    """Entry: ``python -m sweeper.run.launch.spawned_trial CHANNEL ORDER``, two file descriptors."""
    die_with_parent()
    channel = Channel.on(int(arguments[0]))
    try:
        import_tensorflow()
        with os.fdopen(int(arguments[1]), "rb") as order:
            assignment = TypeAdapter(Assignment).validate_python(json.load(order))
        source = cast("StudySource", assignment.source)
        sys.argv = [source.target]
    except Exception as error:
        channel.send(failure_before_trial(error))
        os._exit(0)
    serve_trial(channel, assignment, partial(import_study, source))
    # Threads that the trial's code left running must not keep the process alive after its last message.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
