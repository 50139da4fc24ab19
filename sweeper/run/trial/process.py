"""Main function of a trial process: its signals, its settings of TensorFlow and its work.

A trial process ends in one of four ways that the worker can distinguish: it reports the trial's end and
exits with 0; it exits because its worker is gone; it is killed; or it crashes, and the worker receives
the signal or exit code.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeper.definition.definition import StudyDefinition
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, Preparing
from sweeper.run.signals import release_signals, signals_to_stop
from sweeper.run.trial.devices import configure_tensorflow, limit_memory, show_devices
from sweeper.run.trial.link import AnsweredLink, ChannelLink, failure_of
from sweeper.support.processes import adopt_orphans
from sweeper.support.tensorflow_start import look_for_gpus

if TYPE_CHECKING:
    from sweeper.guard.guard import Earlier
    from sweeper.lanes.scheduler import Lane
    from sweeper.run.trial.lanes import LaneLinks


def serve_trial(
    channel: Channel, assignment: Assignment, load: Callable[[], StudyDefinition]
) -> None:
    """Run one trial, or the trials of its group of lanes, in this process and report how it ended.

    Args:
        channel: Channel to the worker.
        assignment: The trial.
        load: Returns the study's definition. Called after TensorFlow is configured, because importing
            the study may run ops, and after the first op the configuration cannot be changed.
    """
    links: LaneLinks | None = None
    if assignment.grouped:
        from sweeper.run.trial.lanes import LaneLinks, refuse_lanes, serve_lanes

        links = LaneLinks(channel, assignment)
    link = ChannelLink(channel) if links is None else links.first
    stopped = link if links is None else links
    adopt_orphans()
    for number in signals_to_stop():
        signal.signal(number, lambda *_: stopped.request_stop())
    release_signals()
    try:
        show_devices(assignment.devices)
        look_for_gpus()
        limit_memory(assignment.memory_limit)
        configure_tensorflow(threads=assignment.threads, deterministic=assignment.deterministic)
        if assignment.source is not None:
            link.send(Preparing("importing the study"))
        definition = load()
        if links is not None:
            serve_lanes(definition, assignment.lanes, links)
        else:
            _serve_alone(definition, assignment, link)
    except BaseException as error:
        # Sent before the traceback is printed, because that fails on a full disk.
        if links is None:
            link.send(failure_of(error, asked=link.asked))
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
        if links is not None:
            refuse_lanes(error, links)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _serve_alone(definition: StudyDefinition, assignment: Assignment, link: AnsweredLink) -> None:
    if assignment.evaluation is not None:
        from sweeper.run.trial.evaluation import evaluate

        evaluate(definition, assignment, link)
    elif assignment.export is not None:
        from sweeper.run.trial.evaluation import export

        export(definition, assignment, link)
    elif assignment.lanes == 1:
        _train(definition, assignment, link)
    else:
        from sweeper.guard.guard import Earlier
        from sweeper.run.trial.lanes import train_alone

        train_alone(assignment, lambda lane: _train(definition, assignment, link, Earlier(), lane))


def _train(
    definition: StudyDefinition,
    assignment: Assignment,
    link: AnsweredLink,
    earlier: Earlier | None = None,
    lane: Lane | None = None,
) -> None:
    if assignment.replay is not None and assignment.replay.rehearsal is not None:
        from sweeper.run.trial.rehearsal import rehearse

        rehearse(definition, assignment, assignment.replay.rehearsal, link, lane)
        return
    from sweeper.run.trial.run import run_trial

    run_trial(definition, assignment, link, earlier, lane)
