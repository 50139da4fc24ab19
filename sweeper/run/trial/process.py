"""Main function of a trial process: its signals, its settings of TensorFlow and its work.

It reports the trial's end and exits with 0; exits because its worker is gone; is killed; or crashes, and
the worker receives the signal or exit code.
"""

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from sweeper.definition.definition import StudyDefinition
from sweeper.definition.loading import split_target
from sweeper.files.recorder import RECORDER, install
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, Evaluation, Preparing
from sweeper.run.signals import release_signals, signals_to_stop
from sweeper.run.trial.keeping import keep_for_check
from sweeper.run.trial.link import ChannelLink, failure_of
from sweeper.support.paths import roots_of
from sweeper.support.processes import adopt_orphans
from sweeper.support.tensorflow_start import (
    configure_tensorflow,
    limit_memory,
    look_for_gpus,
    show_devices,
)


def serve_trial(
    channel: Channel, assignment: Assignment, load: Callable[[], StudyDefinition]
) -> None:
    """Run one trial in this process, which runs nothing else, and report how it ended.

    ``load`` returns the study's definition. It is called after TensorFlow is configured, because importing
    the study may run ops, and after the first op the configuration cannot be changed.
    """
    order = assignment.order
    evaluates = isinstance(order, Evaluation)
    link = ChannelLink(channel, ends_early=not evaluates)
    adopt_orphans()
    for number in signals_to_stop():
        signal.signal(number, lambda *_: link.request_stop())
    release_signals()
    try:
        show_devices(assignment.devices)
        look_for_gpus()
        limit_memory(assignment.memory_limit)
        settings = assignment.settings
        configure_tensorflow(threads=settings.threads, deterministic=settings.deterministic)
        install()
        keep_for_check(names=True)
        # The directory of a trial has one for each attempt; that of a replay is a temporary one.
        directories = [str(Path(path).parent) for path in (assignment.log, assignment.files)]
        RECORDER.begin(
            [
                *directories,
                *(location for location in assignment.checkpoints if "://" not in location),
            ]
        )
        if evaluates:
            RECORDER.active = False
        if assignment.source is not None:
            link.send(Preparing("importing the study"))
        definition = load()
        # Before the factories read, so that other trials know what the top of the file writes.
        link.report_files()
        if RECORDER.active:
            study, runs = Path(assignment.log).parents[2:4]
            output = study if Path.cwd().is_relative_to(runs) else runs
            RECORDER.look(roots_of(split_target(sys.argv[0])[0]), own=[*directories, str(output)])
        if isinstance(order, Evaluation):
            from sweeper.run.trial.evaluation import evaluate

            evaluate(definition, assignment, order, link)
        else:
            from sweeper.run.trial.run import run_trial

            run_trial(definition, assignment, link)
    except BaseException as error:
        # Sent before the traceback is printed, because that fails on a full disk.
        link.send(failure_of(error, asked=link.asked))
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        # The disk of the log may be full; the error was sent.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
